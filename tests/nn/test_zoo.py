"""The zoo: exact counts, the rule of the ablation, one call to build."""

import subprocess
import sys

import pytest
import torch

from bids_gevnet.errors import InputError
from bids_gevnet.nn import zoo
from bids_gevnet.nn.gevnet import count_parameters
from bids_gevnet.nn.registry import build, networks

EXACT = {
    "gevnet-mnist-2layer": 804,
    "genet-mnist-2layer": 824,
    "gevnet-mnist": 31336,
    "genet-mnist": 45532,
    "gevnet-dmri": 12424,
    "gevnet-qm7": 6980,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_counts_are_the_papers(name, count):
    assert networks()[name].count_parameters()["total"] == count


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_ablation_has_five_growing_sizes_and_never_a_smaller_genet(layers):
    def count(kind, size):
        name = zoo.ablation_name(kind, layers, size)
        net = build(name, level=3)
        convolutions = [m for m in net.layers if hasattr(m, "order")]
        assert len(convolutions) == layers
        return count_parameters(net)

    gevnets = [count("gevnet", size) for size in range(1, 6)]
    genets = [count("genet", size) for size in range(1, 6)]
    assert gevnets == sorted(set(gevnets))
    assert all(b >= a for a, b in zip(gevnets, genets, strict=True))
    assert all(b <= 1.06 * a for a, b in zip(gevnets, genets, strict=True))


def test_parts_add_up():
    for name in ("gevnet-mnist", "gevnet-dmri"):
        counts = networks()[name].count_parameters()
        total = counts.pop("total")
        assert sum(counts.values()) == total


def test_networks_run():
    assert build("gevnet-dmri")(torch.randn(3, 8, 192)).shape == (3, 12)
    assert build("gevnet-mnist-2layer", samples=7)(torch.randn(2, 1, 2562)).shape == (2, 10)
    assert build("gevnet-qm7", samples=None)(torch.randn(2, 5, 642)).shape == (2, 10)


def test_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match="gevnet-dmri"):
        build("gevnet-mnits")


@pytest.mark.slow
def test_module_prints_the_table():
    run = subprocess.run(
        [sys.executable, "-m", "bids_gevnet.nn.zoo"], capture_output=True, text=True, check=True
    )
    for name, count in EXACT.items():
        assert any(
            f"| {name} |" in line and f"{count:,}" in line for line in run.stdout.split("\n")
        )
