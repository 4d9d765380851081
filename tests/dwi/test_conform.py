import itertools

import nibabel
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.conform import conform, ras_order, reorder_axes
from bids_gevnet.errors import ParticipantError

SIZES = np.array([1.0, 2.0, 3.0])


def affines():
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            affine = np.eye(4)
            affine[:3, :3] = 0
            affine[list(order), range(3)] = signs * SIZES
            affine[:3, 3] = [5, -6, 7]
            yield affine


@pytest.mark.parametrize("tilt", [(0, 0, 0), (12, -20, 8)])
@pytest.mark.parametrize("affine", list(affines()))
def test_reordering_agrees_with_nibabel(affine, tilt):
    affine = affine.copy()
    affine[:3, :3] = Rotation.from_euler("xyz", tilt, degrees=True).as_matrix() @ affine[:3, :3]
    data = np.random.default_rng(0).normal(size=(3, 4, 5, 2)).astype(np.float32)
    oracle = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, affine))
    found, found_affine = reorder_axes(data, affine)
    np.testing.assert_array_equal(found, oracle.get_fdata(dtype=np.float32))
    np.testing.assert_allclose(found_affine, oracle.affine, atol=1e-12)


def test_header_is_axis_aligned_and_centred():
    turn = Rotation.from_euler("xyz", (20, 5, -10), degrees=True).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = turn * SIZES
    affine[:3, 3] = [100, 50, -20]
    found = conform(np.zeros((5, 6, 7)), affine)
    np.testing.assert_allclose(found.affine[:3, :3], np.diag(SIZES), atol=1e-12)
    np.testing.assert_allclose(found.affine @ [2, 2.5, 3, 1], [0, 0, 0, 1], atol=1e-12)


def test_points_follow_the_transform():
    # The same voxel, in the old world and in the new one.
    turn = Rotation.from_euler("xyz", (20, 5, -10), degrees=True).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([-1.0, 2, -3])
    affine[:3, 3] = [100, 50, -20]
    data = np.zeros((5, 6, 7))
    data[1, 2, 3] = 1
    found = conform(data, affine)
    new_voxel = np.argwhere(found.data)[0]
    np.testing.assert_allclose(
        found.affine @ [*new_voxel, 1], found.old_to_new @ affine @ [1, 2, 3, 1], atol=1e-10
    )
    rotation = found.old_to_new[:3, :3]
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(3), atol=1e-12)


def test_directions_stay_with_the_image():
    # An oblique fibre along the first voxel axis lies along x afterwards.
    turn = Rotation.from_euler("xyz", (20, 5, -10), degrees=True).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = turn * SIZES
    found = conform(np.zeros((5, 6, 7, 1)), affine, turn[:, :1].T)
    np.testing.assert_allclose(np.abs(found.bvecs_ras), [[1, 0, 0]], atol=1e-12)


def test_at_45_degrees_no_axis_is_taken_twice():
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("z", 45, degrees=True).as_matrix()
    assert sorted(ras_order(affine)[0]) == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_replaced_and_counted(value):
    data = np.ones((4, 4, 4, 2), np.float32)
    data[1, 2, 3, 0] = data[0, 0, 0, 1] = value
    found = conform(data, np.eye(4))
    assert found.n_not_finite == 2
    assert np.all(np.isfinite(found.data))
    assert found.data.sum() == data.size - 2
    assert not np.isfinite(data[1, 2, 3, 0])  # the input is left alone


def test_integers_keep_their_type():
    found = conform(np.ones((4, 4, 1, 2), np.int16), np.eye(4))
    assert found.data.dtype == np.int16
    assert found.n_not_finite == 0


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 0), (2, 2, 2, 2, 2)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ParticipantError, match="3D volume or a 4D series"):
        conform(np.zeros(shape), np.eye(4))
