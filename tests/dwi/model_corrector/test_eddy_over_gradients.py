import numpy as np
import pytest

from bids_gevnet.dwi.model_corrector.eddy_over_gradients import (
    continuity_offset,
    fit_eddy_model,
    gradient_bias,
    gradient_drive,
    regularise,
    split_constant,
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


def test_noise_is_not_taken_for_a_volumes_own_part(drive, truth):
    only_noise = fit_eddy_model(noisy(truth), drive, ONE_SHELL, np.full_like(truth, 0.1**2))
    own = fit_eddy_model(noisy(truth, 0.5), drive, ONE_SHELL, np.full_like(truth, 0.1**2))
    assert np.sqrt(only_noise.own_variance).max() < 0.06
    assert np.sqrt(own.own_variance).min() > 0.3


def test_too_few_volumes_are_left_alone(drive, truth):
    model = fit_eddy_model(truth[:4], drive[:4], ONE_SHELL[:4], np.ones((4, 3)))
    assert np.isinf(model.own_variance).all()
    step = Step(np.arange(9.0), np.eye(9))
    for delta in regularise([step] * 4, np.zeros((4, 3)), model):
        np.testing.assert_allclose(delta, step.delta)


def test_shrinking_beats_the_volumes_on_their_own(drive, truth):
    found = noisy(truth)
    variance = np.full_like(truth, 0.1**2)
    model = fit_eddy_model(found, drive, ONE_SHELL, variance)
    steps = [Step(np.concatenate([np.zeros(N_RIGID), e]), np.eye(9) / 0.1**2) for e in found]
    deltas = regularise(steps, np.zeros_like(truth), model)
    shrunk = np.stack([delta[N_RIGID:] for delta in deltas])
    assert np.std(shrunk - truth) < 0.6 * np.std(found - truth)


class TestConstantTerm:
    @pytest.fixture
    def walk(self):
        rng = np.random.default_rng(4)
        steps = rng.normal(scale=0.1, size=COUNT)
        steps[[7, 25]] += [2.0, -1.5]  # the head jumps twice
        return np.cumsum(steps)

    def test_is_told_from_a_walk(self, drive, walk):
        constant = drive @ np.array([1.0, -0.6, 0.8])
        error = split_constant(constant + walk, drive) - constant
        assert np.std(error) < 0.1
        # Regressing the sum itself takes part of the walk for eddy currents.
        design = np.c_[drive, np.ones(COUNT)]
        naive = drive @ np.linalg.lstsq(design, constant + walk)[0][:3] - constant
        assert np.std(error) < 0.5 * np.std(naive)

    def test_no_gradient_no_constant(self, walk):
        np.testing.assert_array_equal(split_constant(walk, np.zeros((COUNT, 3))), 0)


class TestContinuity:
    """Three b0s between the volumes of a shell that was linked with an error."""

    GROUP = np.where(np.arange(COUNT) % 14 == 0, 0, 1)

    def positions(self, step, error=0.2):
        rng = np.random.default_rng(7)
        walk = np.cumsum(rng.normal(scale=step, size=(COUNT, 1)), axis=0)
        return walk + error * (self.GROUP == 1)[:, None]

    def test_a_still_head_tells_the_error_of_the_link(self):
        offset = continuity_offset(self.positions(0.01), self.GROUP, 1, 0.1)
        np.testing.assert_allclose(offset, 0.2, atol=0.03)

    def test_a_restless_head_does_not(self):
        offset = continuity_offset(self.positions(2.0), self.GROUP, 1, 0.1)
        assert abs(offset[0]) < 0.05

    def test_a_shell_without_neighbours(self):
        offset = continuity_offset(np.ones((4, 6)), np.ones(4, np.intp), 1, 0.1)
        np.testing.assert_array_equal(offset, 0)


class TestGradientBias:
    def test_what_follows_the_gradient_is_not_motion(self, drive):
        rng = np.random.default_rng(8)
        bias = (drive[:, :1] * drive[:, 1:2]) + 0.5 * (drive[:, 2:] ** 2)
        walk = np.cumsum(rng.normal(scale=0.02, size=(COUNT, 1)), axis=0)
        found = gradient_bias(walk + bias, drive)
        np.testing.assert_allclose(found, bias - bias.mean(), atol=0.1)

    def test_a_restless_head_keeps_its_motion(self, drive):
        rng = np.random.default_rng(9)
        walk = np.cumsum(rng.normal(size=(COUNT, 6)), axis=0)
        assert np.std(gradient_bias(walk, drive)) < 0.15 * np.std(walk)

    def test_few_volumes_are_left_alone(self, drive):
        np.testing.assert_array_equal(gradient_bias(drive[:12], drive[:12]), 0)
