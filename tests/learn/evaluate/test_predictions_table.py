"""Calibration of held-out scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.learn.evaluate.predictions_table import calibrate
from bids_gevnet.learn.models.calibration import fit_temperature


@settings(deadline=None, max_examples=10)
@given(st.floats(0.2, 5), st.integers(0, 100))
def test_temperature_is_recovered(temperature: float, seed: int) -> None:
    """Labels drawn from softmax(z) and scores scaled by T: the fit finds T."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (2000, 3))
    # The largest of scores plus Gumbel noise is a draw from their softmax.
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    assert fit_temperature(scores * temperature, labels) == pytest.approx(temperature, rel=0.2)


def test_few_people_leave_the_temperature() -> None:
    assert fit_temperature(np.array([[1.0, 0.0]]), np.array([0])) == 1.0


def test_a_fold_is_calibrated_by_the_others() -> None:
    rng = np.random.default_rng(0)
    scores, truth = rng.normal(0, 3, (40, 2)), rng.integers(0, 2, 40)
    folds = np.repeat([1, 2], 20)
    chances, _ = calibrate(scores, truth, folds)
    flipped = truth.copy()
    flipped[folds == 1] = 1 - flipped[folds == 1]
    again, _ = calibrate(scores, flipped, folds)
    np.testing.assert_array_equal(again[folds == 1], chances[folds == 1])
    assert not np.array_equal(again[folds == 2], chances[folds == 2])
