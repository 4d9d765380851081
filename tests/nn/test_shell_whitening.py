"""Shells are decorrelated in the brain, so that a kernel network sees how they differ."""

import pytest
import torch

from bids_gevnet.nn.compound import CompoundNetwork
from bids_gevnet.nn.registry import build
from bids_gevnet.nn.shell_whitening import ShellWhitening

BRAIN = torch.zeros(10, 10, 10, dtype=torch.bool)
BRAIN[2:8, 2:8, 2:8] = True


def volumes(count: int, sign: float, seed: int) -> list[torch.Tensor]:
    """Two shells that follow one anatomy, and change by 15 % together or against each other."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        anatomy, change = (torch.randn(BRAIN.shape, generator=generator) for _ in range(2))
        tissue = 1 + 0.2 * anatomy
        low = 0.4 * tissue * torch.exp(0.15 * change)
        high = 0.1 * tissue * torch.exp(sign * 0.15 * change)
        found.append(torch.stack([low, high]) * BRAIN)
    return found


def test_white_shells_have_variance_one_and_do_not_correlate() -> None:
    training = volumes(4, 1.0, 0) + volumes(4, -1.0, 1)
    whitening = ShellWhitening(2)
    whitening.fit_(training)
    white = whitening(torch.stack(training))
    signals = white.movedim(1, 0)[:, :, BRAIN].flatten(1)
    torch.testing.assert_close(signals.mean(1), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(signals.cov(), torch.eye(2), atol=0.1, rtol=0)
    assert not white[:, :, ~BRAIN].any()


def test_what_is_alike_in_both_shells_is_not_blown_up() -> None:
    """Shells that differ by rounding alone: noise stays small beside the signal."""
    (volume,) = volumes(1, 1.0, 0)
    volume[1] = volume[0] * (1 + 1e-4 * torch.randn(BRAIN.shape))
    whitening = ShellWhitening(2)
    whitening.fit_([volume])
    white = whitening(volume[None])[0][:, BRAIN]
    assert (white[0] - white[1]).std() < 0.02 * white.std()


@pytest.mark.parametrize("inside", [0, 1])
def test_a_volume_without_a_brain_leaves_the_shells_as_they_are(inside: int) -> None:
    empty = torch.zeros(2, 3, 3, 3)
    empty[:, :inside, 0, 0] = 1.0
    whitening = ShellWhitening(2)
    whitening.fit_([empty])
    volume = torch.rand(1, 2, 3, 3, 3)
    torch.testing.assert_close(whitening(volume), volume)


def test_one_shell_is_left_alone() -> None:
    assert not [name for name in build("ckn2+gevnet", nside=1).state_dict() if "white" in name]


def separation(whiten: bool) -> float:
    """Distance of two groups' mean features of the first layer, in standard deviations."""
    torch.manual_seed(0)
    network = build("ckn2", nside=1, shells=2)
    assert isinstance(network, CompoundNetwork)
    if not whiten:
        network.whitening = None
    network.initialise_(volumes(8, 1.0, 2) + volumes(8, -1.0, 3), n_patches=2000)
    whitening = network.whitening or ShellWhitening(2)
    assert network.ckn is not None
    groups = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            maps = network.ckn.layers[0](whitening(torch.stack(volumes(40, sign, 4))))
        groups.append(maps.flatten(2).mean(2))
    one, other = groups
    spread = torch.cat([one - one.mean(0), other - other.mean(0)]).std(0)
    return float(((one.mean(0) - other.mean(0)).abs() / spread).max())


def test_groups_that_differ_between_shells_alone_are_apart_before_training() -> None:
    white, raw = separation(whiten=True), separation(whiten=False)
    assert white > 3
    assert raw < 1
