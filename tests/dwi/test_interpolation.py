import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.interpolation import coarsen, resample_series, resample_volume

GRID = np.diag([2.0, 2.5, 3.0, 1.0])
GRID[:3, 3] = [-20, -25, -30]
SHAPE = (21, 21, 21)


def blob(affine, shape, centre, width=6.0):
    index = np.moveaxis(np.indices(shape), 0, -1)
    world = index @ affine[:3, :3].T + affine[:3, 3]
    return np.exp(-np.sum((world - centre) ** 2, axis=-1) / (2 * width**2))


def transform(seed):
    rng = np.random.default_rng(seed)
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_euler("xyz", rng.uniform(-10, 10, 3), degrees=True).as_matrix()
    matrix[:3, 3] = rng.uniform(-3, 3, 3)
    return matrix


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31))
def test_a_blob_goes_where_the_transform_says(seed):
    move = transform(seed)
    centre = np.array([3.0, -4, 5])
    found = resample_volume(blob(GRID, SHAPE, centre), GRID, move, SHAPE, GRID)
    expected = blob(GRID, SHAPE, move[:3, :3] @ centre + move[:3, 3])
    inner = (slice(5, -5),) * 3  # at the rim the target looks beyond the volume, where it is 0
    np.testing.assert_allclose(found[inner], expected[inner], atol=0.01)


def test_identity_changes_nothing():
    volume = np.random.default_rng(0).uniform(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(
        resample_volume(volume, GRID, np.eye(4), SHAPE, GRID), volume, atol=1e-5
    )


def test_one_interpolation_is_sharper_than_two():
    sharp = blob(GRID, SHAPE, np.zeros(3), width=2.5)
    first, second = transform(1), transform(2)
    together = resample_volume(sharp, GRID, second @ first, SHAPE, GRID)
    apart = resample_volume(
        resample_volume(sharp, GRID, first, SHAPE, GRID), GRID, second, SHAPE, GRID
    )
    truth = blob(GRID, SHAPE, (second @ first)[:3, 3], width=2.5)
    assert np.abs(together - truth).max() < np.abs(apart - truth).max()


@pytest.mark.parametrize("n_threads", [1, 2])
def test_series_with_a_transform_per_volume(n_threads):
    data = np.stack([blob(GRID, SHAPE, np.zeros(3))] * 3, axis=-1)
    moves = np.stack([transform(seed) for seed in range(3)])
    found = resample_series(data, GRID, moves, SHAPE, GRID, n_threads=n_threads)
    for k in range(3):
        single = resample_volume(data[..., k], GRID, moves[k], SHAPE, GRID)
        np.testing.assert_array_equal(found[..., k], np.maximum(single, 0))


def test_never_negative_although_splines_overshoot():
    data = np.zeros((*SHAPE, 1))
    data[10, 10, 10] = 1000
    single = resample_volume(data[..., 0], GRID, transform(3), SHAPE, GRID)
    assert single.min() < 0
    assert resample_series(data, GRID, transform(3), SHAPE, GRID).min() == 0


def test_outside_is_zero():
    far = np.eye(4)
    far[0, 3] = 1000
    assert not resample_volume(np.ones(SHAPE), GRID, far, SHAPE, GRID).any()


def test_single_slice():
    volume = np.random.default_rng(0).uniform(size=(9, 9, 1))
    found = resample_volume(volume, GRID, np.eye(4), (9, 9, 1), GRID)
    np.testing.assert_allclose(found, volume, atol=1e-6)


@pytest.mark.parametrize("voxel_mm", [2.0, 4.0, 8.0])
def test_coarsening_keeps_place_and_size(voxel_mm):
    centre = np.array([3.0, -4, 5])
    coarse, affine = coarsen(blob(GRID, SHAPE, centre, 8.0), GRID, voxel_mm)
    index = np.moveaxis(np.indices(coarse.shape), 0, -1)
    world = index @ affine[:3, :3].T + affine[:3, 3]
    inner = np.linalg.norm(world - centre, axis=-1) < 15
    weight = (coarse * inner) / (coarse * inner).sum()
    found = np.tensordot(weight, world, 3)
    np.testing.assert_allclose(found, centre, atol=0.7)
    np.testing.assert_allclose(np.linalg.norm(affine[:3, :3], axis=0), voxel_mm)
