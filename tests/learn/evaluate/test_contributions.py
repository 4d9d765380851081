"""Contributions to a score: they add up to it, and angles to fibres are what they should be."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bids_gevnet.learn.evaluate.contributions import (
    ANGLE_BINS,
    SMOOTH_MM,
    Baseline,
    count_by_angle,
    explain,
    fibre_angle_bins,
    mean_scan,
    smooth,
    untrained_network,
)
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.sphere.resampling import distinct_directions

NSIDE = 2
SHAPE = (6, 6, 6)
POINTS = 6 * NSIDE**2


class Polynomial(nn.Module):
    """Scores of first and second order in the samples, whose contributions are known."""

    shells = 1

    def __init__(self, classes: int, *, second: float) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.weights = nn.Parameter(torch.randn((classes, POINTS, *SHAPE), generator=rng))
        self.second = second

    def forward(self, scans, masks):
        inside = scans * masks[:, None]
        values = inside + self.second * inside.square()
        return torch.einsum("npxyz,kpxyz->nk", values, self.weights)


def random_case(seed=0):
    rng = torch.Generator().manual_seed(seed)
    scan, mean = torch.rand((2, POINTS, *SHAPE), generator=rng)
    mask = torch.rand(SHAPE, generator=rng) > 0.2
    bins = torch.randint(0, ANGLE_BINS + 1, (POINTS, *SHAPE), generator=rng)
    return scan * mask, mask, Baseline(mean, torch.ones(SHAPE) > 0, bins.numpy().astype(np.uint8))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("second", [0.0, 0.7])
def test_contributions_add_up_to_the_difference_in_score(classes, second):
    scan, mask, baseline = random_case()
    found = explain(Polynomial(classes, second=second), scan, mask, baseline, classes=classes)
    assert found.accounts[0] == pytest.approx(found.accounts[1], rel=1e-4)
    np.testing.assert_allclose(found.voxels.sum(axis=0), 0, atol=1e-4)
    assert (found.voxels[:, ~mask.numpy()] == 0).all()
    assert found.voxels[-1].sum() == pytest.approx(found.accounts[0], rel=1e-3)


def test_contributions_of_a_linear_network_are_weights_times_differences():
    scan, mask, baseline = random_case(1)
    network = Polynomial(2, second=0.0)
    found = explain(network, scan, mask, baseline, classes=2)
    weights = (network.weights[1] - network.weights[0]).detach()
    expected = (weights * (scan - baseline.mean) * mask).numpy()
    np.testing.assert_allclose(found.voxels[1], expected.sum(axis=0), atol=1e-4)
    for number in range(ANGLE_BINS):
        inside = expected[baseline.angle_bin == number].sum()
        assert found.angles[1, number] == pytest.approx(inside, abs=1e-3)
    assert count_by_angle(baseline).sum() == (baseline.angle_bin < ANGLE_BINS).sum()


def test_smoothing_spreads_a_map_and_keeps_its_sum():
    sharp = np.zeros((21, 21, 21), np.float32)
    sharp[10, 10, 10] = 1
    blurred = smooth(sharp, 2.0)
    assert blurred.sum() == pytest.approx(1, rel=1e-4)
    half = blurred[10, 10] >= blurred.max() / 2
    assert half.sum() * 2.0 == pytest.approx(SMOOTH_MM, abs=2.0)
    np.testing.assert_allclose(smooth(sharp, 50.0), sharp, atol=1e-6)


def fibres(directions, spread):
    """S/b0 of a fibre along each direction."""
    cosine = directions @ distinct_directions(4).T
    return np.exp(-0.3 - spread * cosine**2)


def test_angles_are_those_between_directions_and_the_fibre():
    rng = np.random.default_rng(0)
    axes = rng.normal(size=(40, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    bins = fibre_angle_bins(fibres(axes, 1.5), 4)
    angle = np.rad2deg(np.arccos(np.clip(np.abs(axes @ distinct_directions(4).T), 0, 1)))
    away = np.abs(angle / 15 - np.rint(angle / 15)) > 0.1  # not at the border of a bin
    np.testing.assert_array_equal(bins[away], (angle[away] // 15).astype(int))


def test_where_nothing_is_anisotropic_there_is_no_fibre():
    assert (fibre_angle_bins(fibres(np.eye(3), 0.01), 4) == ANGLE_BINS).all()


@pytest.fixture(scope="module")
def readers(trained):
    _, _, gains = load_model(Path(trained.model_dir))
    return ScanReader(trained.training, gains), ScanReader(trained.testing, gains)


def test_the_mean_scan_is_the_mean_of_the_training_scans(trained, readers):
    baseline = mean_scan(readers[0], trained.nside)
    volumes = [readers[0].single(i)[0][0] for i in range(len(trained.training))]
    np.testing.assert_allclose(baseline.mean, torch.stack(volumes).mean(0), atol=1e-5)
    assert baseline.angle_bin.shape == baseline.mean.shape


def test_contributions_of_a_trained_network_account_for_its_score(trained, readers):
    network = load_model(Path(trained.model_dir)).network
    baseline = mean_scan(readers[0], trained.nside)
    pairs = []
    for index in range(len(trained.testing)):
        volume, mask = (tensor[0] for tensor in readers[1].single(index))
        found = explain(network, volume, mask, baseline, classes=2)
        pairs.append(found.accounts)
    total, expected = np.array(pairs).T
    # One midpoint is not exact for a network with square roots; over scans it accounts for most.
    assert total @ expected / (expected @ expected) == pytest.approx(1, abs=0.25)
    assert np.corrcoef(total, expected)[0, 1] > 0.9


def test_an_untrained_network_is_another_one_and_always_the_same(trained, readers):
    device = torch.device("cpu")
    first, again = (untrained_network(trained, readers[0], device) for _ in range(2))
    known = load_model(Path(trained.model_dir)).network.state_dict()
    differs = []
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        differs.append(not torch.equal(value, known[name]))
    assert np.mean(differs) > 0.5
    assert not first.training
