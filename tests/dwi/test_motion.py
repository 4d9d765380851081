import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.motion import (
    align_means,
    displacement_mm,
    estimate_motion,
    framewise_displacement,
    rigid_parameters,
)
from bids_gevnet.dwi.shells import find_shells

PART = list(range(9))  # volumes of the phantom: the b0 and eight directions


@pytest.fixture(scope="module")
def estimated(scan, conformed):
    shells = find_shells(scan.bvals[PART])
    return estimate_motion(conformed.data[..., PART], conformed.affine, shells)


def error_mm(found, truth, points):
    return np.linalg.norm((points @ (found - truth).T)[:, :3], axis=1).mean()


def test_known_motion_is_found(estimated, true_motion, brain_points):
    truth = true_motion[PART]
    errors = [
        error_mm(a, b, brain_points) for a, b in zip(estimated.transforms, truth, strict=True)
    ]
    before = [error_mm(np.eye(4), b, brain_points) for b in truth]
    assert not estimated.failed.any()
    assert np.mean(errors[1:]) < 0.7  # voxels of 4.5 mm
    assert np.mean(errors[1:]) < 0.35 * np.mean(before[1:])


def test_first_b0_is_the_reference(estimated):
    np.testing.assert_allclose(estimated.transforms[0], np.eye(4), atol=1e-12)


def test_transforms_are_rigid(estimated):
    linear = estimated.transforms[:, :3, :3]
    gram = np.swapaxes(linear, 1, 2) @ linear
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(3), gram.shape), atol=1e-5)


@pytest.mark.slow
def test_same_bytes_again_and_with_two_processes(scan, conformed):
    part = [0, 1, 2]
    shells = find_shells(scan.bvals[part])
    data = conformed.data[..., part]
    once, twice = (
        estimate_motion(data, conformed.affine, shells, n_procs=n).transforms for n in (1, 2)
    )
    np.testing.assert_array_equal(once, twice)


def test_two_volumes(scan, conformed, true_motion, brain_points):
    found = estimate_motion(conformed.data[..., :2], conformed.affine, find_shells(scan.bvals[:2]))
    assert error_mm(found.transforms[1], true_motion[1], brain_points) < 1.0


def test_single_slice_is_left_alone_and_says_so():
    found = estimate_motion(np.ones((20, 20, 1, 3)), np.eye(4), find_shells([0, 1000, 1000]))
    np.testing.assert_array_equal(found.transforms, [np.eye(4)] * 3)
    assert "not estimated" in found.note


def test_an_empty_volume_keeps_its_place(scan, conformed):
    data = conformed.data[..., :2].copy()
    data[..., 1] = 0
    found = estimate_motion(data, conformed.affine, find_shells(scan.bvals[:2]))
    np.testing.assert_allclose(found.transforms[1], np.eye(4), atol=1e-12)


class TestNumbers:
    def test_parameters_of_a_known_transform(self):
        matrix = np.eye(4)[None].copy()
        matrix[0, :3, :3] = Rotation.from_euler("xyz", [0.01, -0.02, 0.03]).as_matrix()
        matrix[0, :3, 3] = [1, 2, 3]
        np.testing.assert_allclose(rigid_parameters(matrix), [[1, 2, 3, 0.01, -0.02, 0.03]])

    def test_framewise_displacement_by_hand(self):
        parameters = np.zeros((3, 6))
        parameters[1] = [1, -1, 0, 0.01, 0, 0]
        parameters[2] = [1, -1, 0, 0.01, 0, -0.02]
        np.testing.assert_allclose(framewise_displacement(parameters), [0, 2.5, 1.0])

    def test_displacement_is_the_root_mean_square_over_the_ball(self):
        rng = np.random.default_rng(0)
        matrix = np.eye(4)
        matrix[:3, :3] = Rotation.from_euler("xyz", [0.1, -0.2, 0.3]).as_matrix()
        matrix[:3, 3] = [1, 2, 3]
        points = rng.normal(size=(200_000, 3))
        points *= (50 * rng.uniform(size=200_000) ** (1 / 3) / np.linalg.norm(points, axis=1))[
            :, None
        ]
        moved = points @ matrix[:3, :3].T + matrix[:3, 3]
        expected = np.sqrt(np.mean(np.sum((moved - points) ** 2, axis=1)))
        np.testing.assert_allclose(displacement_mm(matrix[None]), expected, rtol=0.01)


def test_means_of_two_runs_are_brought_together(conformed, brain_points):
    apart = np.eye(4)
    apart[:3, :3] = Rotation.from_euler("xyz", [2, -1, 3], degrees=True).as_matrix()
    apart[:3, 3] = [2.0, -3.0, 1.5]
    fixed = conformed.data[..., 0].astype(np.float32)
    moving = resample_volume(
        fixed, conformed.affine, np.linalg.inv(apart), fixed.shape, conformed.affine
    )
    found = align_means(moving, fixed, conformed.affine)
    before = error_mm(np.eye(4), apart, brain_points)
    assert error_mm(found, apart, brain_points) < 0.15 * before


def test_runs_too_small_to_tell_stay_where_they_are():
    volume = np.ones((4, 4, 2), np.float32)
    np.testing.assert_array_equal(align_means(volume, volume, np.eye(4)), np.eye(4))
