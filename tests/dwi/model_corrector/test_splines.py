import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates

from bids_gevnet.dwi.model_corrector.splines import (
    Sampler,
    inside_grid,
    sample_spline,
    smoothing_matrix,
    spline_matrix,
)

SHAPE = (9, 12, 7)


@pytest.fixture
def volume():
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


@pytest.fixture
def positions():
    return np.random.default_rng(1).uniform(0, 1, (500, 3)) * (np.array(SHAPE) - 1)


def read(volume, positions, **kwargs):
    coefficients = Sampler(volume.shape, **kwargs).coefficients(torch.as_tensor(volume))
    return sample_spline(coefficients, torch.as_tensor(positions, dtype=torch.float32)).numpy()


def test_agrees_with_scipy(volume, positions):
    expected = map_coordinates(volume, positions.T, order=3, mode="mirror")
    np.testing.assert_allclose(read(volume, positions), expected, atol=2e-5)


def test_passes_through_the_voxels(volume):
    voxels = np.argwhere(np.ones(SHAPE))
    np.testing.assert_allclose(read(volume, voxels), volume.ravel(), atol=1e-5)


def test_cubic_polynomials_are_exact_in_the_middle():
    axis = np.arange(30.0)
    volume = np.broadcast_to(axis[:, None, None] ** 3, (30, 5, 5)).astype(np.float32) / 1e4
    at = np.array([[14.3, 2, 2], [15.77, 1.5, 2.2]])
    np.testing.assert_allclose(read(volume, at), at[:, 0] ** 3 / 1e4, rtol=1e-5)


def test_nothing_beyond_the_edge(volume):
    outside = np.array([[-0.6, 3, 3], [3, 11.6, 3], [4, 4, 40]])
    np.testing.assert_array_equal(read(volume, outside), 0)
    assert not inside_grid(torch.as_tensor(outside), SHAPE).any()


def test_smoothing_is_gaussian_away_from_the_edges():
    volume = np.zeros((41, 9, 9), np.float32)
    volume[20, 4, 4] = 1
    matrix = smoothing_matrix(41, np.arange(41.0), 2.0)
    expected = gaussian_filter(volume, (2.0, 0, 0), truncate=6)[:, 4, 4]
    np.testing.assert_allclose(matrix @ volume[:, 4, 4], expected, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 3.0])
def test_a_constant_stays_one(sigma):
    rows = smoothing_matrix(15, np.linspace(0, 14, 6), sigma).sum(axis=1)
    np.testing.assert_allclose(rows, 1)


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_are_those_of_the_values(order):
    coefficients = np.random.default_rng(3).normal(size=12)
    at, step = np.linspace(2.1, 8.9, 40), 1e-5
    lower = [spline_matrix(12, at + s, order - 1) @ coefficients for s in (-step, step)]
    expected = (lower[1] - lower[0]) / (2 * step)
    np.testing.assert_allclose(spline_matrix(12, at, order) @ coefficients, expected, atol=1e-4)


def test_the_chunk_size_does_not_matter(volume, positions, monkeypatch):
    whole = read(volume, positions)
    monkeypatch.setattr("bids_gevnet.dwi.model_corrector.splines.CHUNK", 7)
    np.testing.assert_array_equal(read(volume, positions), whole)
