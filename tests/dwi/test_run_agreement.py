import numpy as np
import pytest

from bids_gevnet.dwi.run_agreement import (
    FEWEST_VOXELS,
    LARGEST_ANGLE_DEG,
    Directions,
    angle_between,
    main_directions,
)


def directions(vectors, white=None):
    return Directions(vectors, np.ones(len(vectors), bool) if white is None else white)


@pytest.fixture
def fibres():
    vectors = np.random.default_rng(5).normal(size=(4000, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_sign_does_not_matter(fibres):
    assert angle_between(directions(fibres), directions(-fibres)) == pytest.approx(0, abs=1e-3)


def test_unrelated_directions_are_sixty_degrees_apart(fibres):
    # |cos| of the angle between random directions is uniform: its median is 1/2.
    found = angle_between(directions(fibres), directions(np.roll(fibres, 1, axis=0)))
    assert found == pytest.approx(60, abs=2)
    assert found > LARGEST_ANGLE_DEG


def test_a_flip_of_one_axis_is_seen(fibres):
    flipped = fibres * np.array([1, 1, -1])
    assert angle_between(directions(fibres), directions(flipped)) > LARGEST_ANGLE_DEG


def test_little_common_white_matter_says_nothing(fibres):
    white = np.arange(len(fibres)) < FEWEST_VOXELS - 1
    assert angle_between(directions(fibres, white), directions(fibres)) is None
    assert angle_between(None, directions(fibres)) is None


def test_too_few_volumes_for_a_tensor():
    bvecs = np.eye(3)[[0, 1, 2, 0, 1]]
    signal = np.ones((10, 5))
    bvals = np.array([0, 1000, 1000, 1000, 1000.0])
    assert main_directions(signal, bvals, bvecs, b0_threshold=50) is None
