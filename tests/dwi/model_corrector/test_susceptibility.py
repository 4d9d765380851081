import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from bids_gevnet.dwi.model_corrector.susceptibility import FieldLevel, estimate_field
from bids_gevnet.dwi.model_corrector.warp import Warp, grid_points, resample_warped

SHAPE, SIZES = (32, 36, 28), np.array([5.0, 4.5, 5.5])
AFFINE = np.diag([*SIZES, 1.0])
AFFINE[:3, 3] = -SIZES * (np.array(SHAPE) - 1) / 2
QUICK = (
    FieldLevel(8.0, 16.0, 24.0, 0.003, 5),
    FieldLevel(5.0, 8.0, 16.0, 0.001, 5),
)


def head():
    points = grid_points(SHAPE, AFFINE)
    radius = np.sqrt(np.sum((points / [55, 62, 58]) ** 2, axis=1))
    texture = sum(
        np.cos(points @ k + phase)
        for k, phase in zip(
            np.random.default_rng(0).normal(scale=0.14, size=(12, 3)), range(12), strict=True
        )
    )
    return ((100 + 12 * texture) / (1 + np.exp((radius - 1) * 15))).reshape(SHAPE)


def true_field():
    x, y, z = grid_points(SHAPE, AFFINE).T
    front = 6 * np.exp(-(x**2 + (y - 35) ** 2 + (z + 15) ** 2) / (2 * 20**2))
    side = -4 * np.exp(-((x - 35) ** 2 + (y + 10) ** 2 + (z + 20) ** 2) / (2 * 18**2))
    return (front + side).reshape(SHAPE).astype(np.float32)


def distort(image, field, axis):
    """Push the image along the axis, by iterating for the inverse field on a fine model."""
    origin = field.copy()
    voxels = np.argwhere(np.ones(SHAPE)).T.astype(float)
    for _ in range(15):
        place = voxels.copy()
        place[axis] -= origin.ravel() / SIZES[axis]
        origin = map_coordinates(field, place, order=3, mode="nearest").reshape(SHAPE)
    place = voxels.copy()
    place[axis] -= origin.ravel() / SIZES[axis]
    slope = np.gradient(field, SIZES[axis], axis=axis)
    squeezed = 1 + map_coordinates(slope, place, order=3, mode="nearest")
    return (map_coordinates(image, place, order=3) / squeezed).reshape(SHAPE).astype(np.float32)


@pytest.mark.parametrize(("axis", "ratio"), [(1, 1.0), (0, 0.7)])
def test_a_known_field_is_recovered(axis, ratio):
    image, field = head(), true_field()
    first, second = distort(image, field, axis), distort(image, -ratio * field, axis)
    found = estimate_field(first, 3 * second, SIZES, axis, readout_ratio=ratio, levels=QUICK)
    brain = image > 50
    error = np.sqrt(np.mean((found.field - field)[brain] ** 2))
    assert error < 0.5
    assert error < 0.35 * np.sqrt(np.mean(field[brain] ** 2))
    assert found.correlation_after > found.correlation_before
    warp = Warp(np.eye(4)[None], np.zeros((1, 10)), axis, found.field)
    corrected = resample_warped(first[..., None], AFFINE, warp, np.eye(4), SHAPE, AFFINE)[..., 0]
    before, after = (np.abs(i - image)[brain].mean() for i in (first, corrected))
    assert after < 0.5 * before


def test_no_field_between_equal_images():
    image = head().astype(np.float32)
    found = estimate_field(image, image, SIZES, 1, levels=QUICK)
    assert np.abs(found.field).max() < 0.05
    np.testing.assert_allclose(found.motion, np.eye(4), atol=0.01)


def test_motion_between_the_images_is_found():
    image, field = head(), true_field()
    shift = np.eye(4)
    shift[:3, 3] = [2.0, 0, -1.5]
    first, second = distort(image, field, 1), distort(image, -field, 1)
    moved = resample_warped(
        second[..., None],
        AFFINE,
        Warp(np.linalg.inv(shift)[None], np.zeros((1, 10)), 1),
        np.eye(4),
        SHAPE,
        AFFINE,
    )[..., 0]
    found = estimate_field(first, moved, SIZES, 1, levels=QUICK)
    np.testing.assert_allclose(found.motion[[0, 2], 3], [2.0, -1.5], atol=0.4)
    brain = image > 50
    assert np.sqrt(np.mean((found.field - field)[brain] ** 2)) < 0.6
