"""Motion that is told from contrast, from the constant eddy term and from errors of the link."""

import numpy as np
import pytest

from bids_gevnet.dwi.model_corrector.motion_over_time import (
    UNKNOWN_MM,
    Positions,
    separate_motion,
)

COUNT = 44
GROUP = np.where(np.arange(COUNT) % 11 == 0, 0, 1)
AXIS = 1


def gradients():
    vectors = np.random.default_rng(0).normal(size=(COUNT, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * (GROUP == 1)[:, None]


def walk(step, jumps=()):
    steps = np.random.default_rng(4).normal(scale=step, size=(COUNT, 6))
    for when, length in jumps:
        steps[when] += length
    steps[0] = 0
    return np.cumsum(steps, axis=0)


def contrast(size):
    """An error that is the same for g and -g, another one for each parameter."""
    x, y, z = gradients().T
    even = np.stack([x * y, z * z, y * z, x * x, x * z, y * y], axis=1)
    even = (even - even[GROUP == 1].mean(axis=0)) * (GROUP == 1)[:, None]
    return size * even / even[GROUP == 1].std(axis=0)


def noise(size):
    return np.random.default_rng(9).normal(scale=size, size=(COUNT, 6))


def separate(parameters, sigma=0.03, drive=None):
    variance = np.full_like(parameters, sigma**2)
    drive = gradients() if drive is None else drive
    return separate_motion(Positions(parameters, variance, GROUP, drive, AXIS))


def spread(values):
    return np.sqrt(np.mean(np.square(values - values.mean(axis=0))))


def test_a_still_head_keeps_still_whatever_the_contrast():
    motion, _ = separate(contrast(0.3) + noise(0.03))
    assert spread(motion) < 0.06


def test_a_restless_head_keeps_its_motion():
    truth = walk(1.0)
    motion, _ = separate(truth + noise(0.03))
    assert spread(motion - truth) < 0.06
    # Negative control: that is motion of several millimetres.
    assert spread(truth) > 2


def test_jumps_are_kept_and_contrast_between_them_is_not():
    truth = walk(0.02, [(15, 2.0), (30, -3.0)])
    motion, _ = separate(truth + contrast(0.3) + noise(0.03))
    assert spread(motion - truth) < 0.12
    assert np.abs(np.diff(motion, axis=0)[14] - 2.0).max() < 0.5


def test_the_constant_eddy_term_is_told_from_a_walk():
    truth = walk(0.1, [(7, 2.0), (25, -1.5)])
    constant = gradients() @ np.array([1.0, -0.6, 0.8])
    parameters = truth + noise(0.03)
    parameters[:, AXIS] += constant
    motion, found = separate(parameters)
    assert np.std(found - constant) < 0.1
    assert spread(motion - truth) < 0.1
    # Regressing the position itself takes part of the walk for eddy currents.
    design = np.c_[gradients(), np.ones(COUNT)]
    naive = gradients() @ np.linalg.lstsq(design, parameters[:, AXIS])[0][:3]
    assert np.std(found - constant) < 0.5 * np.std(naive - constant)


def test_no_gradient_no_constant():
    _, constant = separate(walk(0.1), drive=np.zeros((COUNT, 3)))
    np.testing.assert_allclose(constant, 0, atol=1e-9)


def test_a_head_that_lies_still_tells_the_error_of_the_link():
    motion, _ = separate(0.1 * (GROUP == 1)[:, None] + noise(0.01), sigma=0.01)
    jump = motion[GROUP == 1].mean(axis=0) - motion[GROUP == 0].mean(axis=0)
    assert np.abs(jump).max() < 0.05


def test_a_volume_without_a_position_gets_that_of_its_neighbours():
    parameters = walk(0.05)
    truth = parameters.copy()
    parameters[20] = 50.0
    variance = np.full_like(parameters, 0.03**2)
    variance[20] = UNKNOWN_MM**2 * 1e6
    motion, _ = separate_motion(Positions(parameters, variance, GROUP, gradients(), AXIS))
    assert np.abs(motion - truth).max() < 0.3


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_few_volumes_do_no_harm(count):
    truth = walk(0.5)[:count]
    parameters = truth + noise(0.02)[:count]
    positions = Positions(
        parameters, np.full_like(parameters, 0.02**2), GROUP[:count], gradients()[:count], AXIS
    )
    motion, _ = separate_motion(positions)
    others = [q for q in range(6) if q != AXIS]
    assert np.abs(motion - truth)[:, others].max() < 0.2
