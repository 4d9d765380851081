"""Equal or opposite phase encodings, told from the images."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.phase_encoding import Relation
from bids_gevnet.dwi.polarity import try_both
from bids_gevnet.phantom import simulate


@pytest.fixture(scope="module")
def pair():
    """Two b0s of a phantom with opposite encodings, conformed."""
    scan = simulate(directions=6, voxel_mm=6, reverse_b0=True, seed=5)
    return conform(scan.data[..., 0], scan.affine), conform(scan.reverse_b0, scan.affine)


def scanned_again(b0, affine):
    """The same distortion, seen from another position of the head, with other noise."""
    move = np.eye(4)
    move[:3, :3] = Rotation.from_euler("xyz", [1.5, -1, 1], degrees=True).as_matrix()
    move[:3, 3] = [0.8, -1, 1.2]
    moved = resample_series(b0[..., None], affine, move[None], b0.shape, affine)[..., 0]
    noise = np.random.default_rng(1).normal(0, 0.02 * np.percentile(b0, 98), b0.shape)
    return np.abs(moved + noise)


def test_opposite_encodings_are_found(pair):
    one, other = pair
    trial = try_both(one.data, other.data, one.affine, axis=1)
    assert trial.relation is Relation.OPPOSITE


def test_equal_encodings_are_found(pair):
    """Motion and noise are no susceptibility field."""
    for image in pair:
        again = scanned_again(image.data, image.affine)
        trial = try_both(image.data, again, image.affine, axis=1)
        assert trial.relation is Relation.EQUAL


def test_along_another_axis_a_field_explains_less(pair):
    one, other = pair
    right = try_both(one.data, other.data, one.affine, axis=1)
    wrong = try_both(one.data, other.data, one.affine, axis=0)
    assert wrong.as_opposite < right.as_opposite
