"""Simulate white matter in which every wrong gradient table can be told from the right one."""

import numpy as np


def bundles(seed=0):
    """Return data, affine, b-values and world gradients of a ball of brain with thin bundles.

    They are oblique, so that a wrong table leads out of every one of them.
    """
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(13, 3))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    bvals = np.array([0.0, *[1000.0] * 12])
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = -62.0
    world = np.moveaxis(np.indices((32, 32, 32)), 0, -1) * 4.0 - 62.0
    inside = np.linalg.norm(world, axis=-1) < 52
    adc = np.full((*inside.shape, 13), 8e-4)
    b0 = np.full(inside.shape, 800.0)
    for _ in range(14):
        axis, through = rng.normal(size=3), rng.uniform(-30, 30, 3)
        axis /= np.linalg.norm(axis)
        across = np.linalg.norm(np.cross(world - through, axis), axis=-1)
        adc[across < 5] = 3e-4 + 1.4e-3 * (gradients @ axis) ** 2
        b0[across < 5] = 600.0
    signal = b0[..., None] * np.exp(-bvals * adc) * inside[..., None]
    noise = rng.normal(scale=8.0, size=signal.shape)
    return np.abs(signal + noise).astype(np.float32), affine, bvals, gradients
