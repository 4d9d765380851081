import numpy as np
import pytest

from bids_gevnet.dwi.model_corrector.eddy_over_gradients import (
    EddyModel,
    fit_eddy_model,
    follow_gradients,
    gradient_drive,
)
from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import N_RIGID, Step

COUNT = 40


@pytest.fixture
def drive():
    vectors = np.random.default_rng(0).normal(size=(COUNT, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def truth(drive):
    return drive @ np.random.default_rng(1).normal(size=(3, 3))


def noisy(truth, sigma=0.1):
    return truth + np.random.default_rng(2).normal(scale=sigma, size=truth.shape)


ONE_SHELL = np.zeros(COUNT, np.intp)


def test_drive_follows_the_amplitude_and_spares_b0s():
    drive = gradient_drive(np.array([5.0, 1000, 4000]), np.tile([0.0, 0, 1], (3, 1)), 50)
    np.testing.assert_allclose(drive[:, 2], [0, 1, 2])


def test_model_and_intercept_are_recovered(drive, truth):
    shell = np.arange(COUNT) % 2
    offsets = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])
    model = fit_eddy_model(truth + offsets[shell], drive, shell, np.full_like(truth, 1e-6))
    np.testing.assert_allclose(model.predicted, truth, atol=1e-6)
    np.testing.assert_allclose(model.intercept, offsets[shell], atol=1e-6)


def test_one_bad_volume_does_not_bend_the_model(drive, truth):
    found = noisy(truth, 0.05)
    found[3] += 20
    model = fit_eddy_model(found, drive, ONE_SHELL, np.full_like(truth, 0.05**2))
    assert np.abs(model.predicted - truth).max() < 0.15


def test_too_few_volumes_are_left_alone(drive, truth):
    model = fit_eddy_model(truth[:4], drive[:4], ONE_SHELL[:4], np.ones((4, 3)))
    assert model is None
    step = Step(np.arange(9.0), np.eye(9))
    for delta in follow_gradients([step] * 4, np.zeros((4, 3)), model):
        np.testing.assert_allclose(delta, step.delta)


def test_the_model_beats_the_volumes_on_their_own(drive, truth):
    terms = noisy(truth)
    model = fit_eddy_model(terms, drive, ONE_SHELL, np.full_like(truth, 0.1**2))
    steps = [Step(np.concatenate([np.zeros(N_RIGID), e]), np.eye(9) / 0.1**2) for e in terms]
    deltas = follow_gradients(steps, np.zeros_like(truth), model)
    error = np.stack([delta[N_RIGID:] for delta in deltas]) - truth
    assert np.std(error) < 0.4 * np.std(terms - truth)


def test_a_shell_of_clear_images_speaks_for_one_of_dim_images(drive, truth):
    """The second half has five times the noise, and says so."""
    sigma = np.where(np.arange(COUNT) < COUNT // 2, 0.05, 0.5)[:, None]
    terms = truth + sigma * np.random.default_rng(3).normal(size=truth.shape)
    shell = (np.arange(COUNT) >= COUNT // 2).astype(np.intp)
    error = {
        name: np.std(fit_eddy_model(terms, drive, shell, variance).predicted - truth)
        for name, variance in {"known": sigma**2 + 0 * truth, "alike": 0 * truth + 0.1}.items()
    }
    assert error["known"] < 0.5 * error["alike"]


def test_contrast_is_not_taken_for_eddy_currents(drive, truth):
    """Contrast is the same for g and -g, and a table with both leaves nothing of it."""
    both, shell = np.concatenate([drive, -drive]), np.zeros(2 * COUNT, np.intp)
    terms = np.concatenate([truth, -truth])
    contrast = 0.5 * (both[:, :1] * both[:, 1:2])
    model = fit_eddy_model(terms + contrast, both, shell, np.full_like(terms, 0.01))
    np.testing.assert_allclose(model.predicted, terms, atol=0.02)


def test_motion_follows_when_the_eddy_part_is_replaced(drive):
    """A step whose parts are correlated: the motion is what it is given the right eddy term."""
    precision = np.eye(7)
    precision[1, 6] = precision[6, 1] = 0.8
    target = np.array([0, 1.0, 0, 0, 0, 0, 2.0])
    step = Step(target, precision)
    model = EddyModel(np.array([[1.0]]), np.array([[0.5]]))
    (delta,) = follow_gradients([step], np.zeros((1, 1)), model)
    # The minimum of the quadratic form with the last entry held at 1.5, intercept included.
    assert delta[1] == pytest.approx(1.0 + 0.8 * (2.0 - 1.5))
    assert delta[6] == pytest.approx(1.0)
