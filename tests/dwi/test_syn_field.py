"""A field from another contrast, against a known displacement."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from bids_gevnet.dwi.syn_field import _register_along

SIZES = np.array([4.0, 4.0, 4.0])


@pytest.mark.parametrize("axis", [0, 1])
def test_known_displacement_is_found_with_its_sign_and_axis(axis):
    shape = (26, 28, 22)
    tissue = gaussian_filter(np.random.default_rng(0).normal(size=shape), 1.5)
    tissue = 500 + 300 * tissue / tissue.std()
    where = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij")).astype(float)
    middle = np.array(shape)[:, None, None, None] / 2
    bump = np.exp(-np.sum(((where - middle) / 5) ** 2, axis=0))
    true_mm = 6 * bump  # what is at x appears 6 mm further along the axis in the middle
    # Seen at y is what lies at x with x + u(x) = y; u is smooth: a few steps find it.
    source = where.copy()
    for _ in range(20):
        shift = map_coordinates(true_mm, source, order=1, mode="nearest") / SIZES[axis]
        source[axis] = where[axis] - shift
    seen = map_coordinates(1000 - tissue, source, order=3, mode="nearest")
    found = _register_along(seen, tissue, SIZES, axis)
    core = bump > 0.3
    before = np.sqrt(np.mean(true_mm[core] ** 2))
    after = np.sqrt(np.mean((found - true_mm)[core] ** 2))
    assert after < 0.4 * before
