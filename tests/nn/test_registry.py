"""One registry of networks: names without torch, and a door for networks of other packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from network_package import NAME, TITLE, installed, write_package

from bids_gevnet.errors import InputError
from bids_gevnet.nn.registry import Network, build, find_network, networks, scan_networks
from bids_gevnet.settings import LearningSettings

TABLE_3 = ("ckn2", "gevnet", "ckn1+deepsphere", "ckn1+gevnet", "ckn2+deepsphere", "ckn2+gevnet")


def test_networks_that_classify_scans_come_in_the_order_of_table_3():
    assert scan_networks() == TABLE_3
    for name in TABLE_3:
        entry = find_network(name, classifies_scans=True)
        assert entry.sentence
        assert entry.paper_accuracies
        assert entry.title.lower().replace(" ", "").replace("ds", "deepsphere") == name


def test_the_default_network_exists():
    assert LearningSettings().network in scan_networks()


def test_nothing_but_building_imports_torch():
    code = (
        "import sys\n"
        "from bids_gevnet.nn.registry import networks, scan_networks\n"
        "assert all(entry.title for entry in networks().values()) and scan_networks()\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_win_over_the_entrys_own():
    assert build("gevnet-mnist-2layer", level=1, classes=3)(torch.randn(2, 1, 42)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "nearest"), [("ckn2+gevent", "ckn2+gevnet"), ("CKN2", "ckn2"), ("gevnet-mnist", "")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(InputError, match="that classifies scans: ckn2, gevnet") as raised:
        find_network(name, classifies_scans=True)
    assert f"did you mean {nearest!r}" in raised.value.remedy or not nearest


@pytest.mark.parametrize("name", ["", "all", "Upper", "a/b", "../up", "a b", "-x", "100%"])
def test_names_that_cannot_be_file_names_are_refused(name):
    with pytest.raises(InputError, match="a network's name"):
        Network(name=name, builder="os:getcwd")


def test_accuracies_are_given_for_all_tasks_or_none():
    with pytest.raises(InputError, match="one accuracy for each"):
        Network(name="half", builder="os:getcwd", paper_accuracies=(0.5,))


def test_an_installed_package_adds_a_network(tmp_path: Path):
    with installed(write_package(tmp_path / "site")):
        assert (*TABLE_3, NAME) == scan_networks()
        assert find_network(NAME).title == TITLE
        assert find_network(NAME).sentence.startswith("a linear classifier")
        network = build(NAME, classes=3, nside=1, strides=())
    scores = network(torch.rand(2, 6, 3, 3, 3), torch.ones(2, 3, 3, 3, dtype=torch.bool))
    assert scores.shape == (2, 3)
    assert NAME not in networks()


def test_the_command_line_lists_an_installed_network(tmp_path: Path):
    folder = write_package(tmp_path / "site")
    path = os.pathsep.join([str(folder), *sys.path])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bids_gevnet.cli.run", *arguments],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    assert f"ckn2+gevnet, {NAME}, or all" in " ".join(run("--help").stdout.split())
    (tmp_path / "data").mkdir()
    folders = (str(tmp_path / "data"), str(tmp_path / "out"))
    wrong = run(*folders, "group", "--network", "mean-singal")
    assert wrong.returncode == 2
    assert f"did you mean '{NAME}'" in wrong.stderr


def test_two_networks_of_one_name_are_refused(tmp_path: Path):
    write_package(tmp_path / "site")
    write_package(tmp_path / "site", entry=f"{NAME} = another:describe", package="another")
    with (
        installed(tmp_path / "site"),
        pytest.raises(InputError, match="'mean-signal' in both another and mean_signal"),
    ):
        networks()


def test_a_network_of_the_paper_cannot_be_replaced(tmp_path: Path):
    write_package(tmp_path / "site", entry="ckn2+gevnet = mean_signal:describe")
    with (
        installed(tmp_path / "site"),
        pytest.raises(InputError, match=r"'ckn2\+gevnet' in both bids_gevnet and mean_signal"),
    ):
        build("ckn2")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("broken = mean_signal:nothing", "AttributeError"),
        ("broken = no_such_module:describe", "ModuleNotFoundError"),
        ("broken = mean_signal:describe", "one called 'mean-signal'"),
        ("broken = os:sep", "'/'"),
    ],
)
def test_a_broken_package_is_named_and_stops_nobody_else(tmp_path: Path, entry, words):
    with installed(write_package(tmp_path / "site", entry=entry)):
        assert scan_networks() == TABLE_3
        with pytest.raises(InputError, match="mean_signal") as raised:
            build("broken")
    assert words in raised.value.found
