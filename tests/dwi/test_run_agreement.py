import numpy as np
import pytest

from bids_gevnet.dwi.run_agreement import (
    FEWEST_VOXELS,
    LARGEST_ANGLE_DEG,
    Comparison,
    Directions,
    angle_between,
    b0_correlation,
    choose_group,
    group_runs,
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


def test_b0s_of_one_head_correlate_and_noise_does_not():
    rng = np.random.default_rng(0)
    b0, brain = rng.uniform(1, 2, (12, 12, 12)), np.ones((12, 12, 12), bool)
    assert b0_correlation(b0, 3 * b0 + 1, brain) == pytest.approx(1)
    assert abs(b0_correlation(b0, rng.uniform(1, 2, b0.shape), brain)) < 0.1
    cut = b0.copy()
    cut[:, :, 6:] = 0  # what the other run did not see says nothing
    assert b0_correlation(b0, cut, brain) == pytest.approx(1)
    assert b0_correlation(b0, np.zeros_like(b0), brain) is None
    assert b0_correlation(b0, np.ones_like(b0), brain) is None


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        (["fits", "fits", "wrong"], (0, 1)),
        (["undecided", "fits", "wrong"], (0, 1)),
        (["wrong", "undecided", "fits"], (2,)),
        (["fits", "fits", "fits"], (0, 1)),  # the third may be of another person
        (["undecided"] * 3, None),
        (["wrong"] * 3, None),
    ],
)
def test_the_group_whose_tables_fit_is_chosen(outcomes, chosen):
    agree = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], bool)
    assert choose_group(group_runs(agree), outcomes) == chosen


def test_of_two_single_runs_that_fit_and_disagree_none_is_chosen():
    assert choose_group([(0,), (1,)], ["fits", "fits"]) is None


@pytest.mark.parametrize(
    ("angle", "correlation", "agree"),
    [(10.0, 0.9, True), (50.0, 0.9, False), (10.0, 0.1, False), (None, None, True)],
)
def test_what_runs_disagree_in(angle, correlation, agree):
    assert Comparison(angle, correlation).agree is agree
