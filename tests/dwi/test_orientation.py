"""Orientation functions of signals with known fibres."""

import numpy as np
import pytest

from bids_gevnet.dwi.orientation import count_fibres, harmonic_order, orientation_functions
from bids_gevnet.sphere.resampling import distinct_directions, healpix_points

B = 1500.0


def signal(fibres, nside=4):
    """S/b0 of equal shares of some fibres, each a tensor of 1.7 and 0.3 µm²/ms."""
    points = distinct_directions(nside)
    parts = [np.exp(-B * (0.3e-3 + 1.4e-3 * (points @ np.array(f)) ** 2)) for f in fibres]
    return np.mean(parts, axis=0)[None]


def fibres_of(samples, nside=4):
    odf = orientation_functions(samples, distinct_directions(nside), nside=nside, b_value=B)
    return int(count_fibres(odf, nside)[0])


def rotation(seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_maximum_is_along_the_fibre(seed):
    fibre = rotation(seed)[0]
    points = healpix_points(16)
    odf = orientation_functions(signal([fibre]), points, nside=4, b_value=B)
    assert abs(points[np.argmax(odf[0])] @ fibre) > np.cos(np.radians(4))


@pytest.mark.parametrize("seed", range(8))
def test_one_fibre_and_two_that_cross_are_told_apart(seed):
    x, y, _ = rotation(seed)
    assert fibres_of(signal([x])) == 1
    assert fibres_of(signal([x, y])) == 2


def test_water_has_no_fibre():
    assert fibres_of(np.full((1, 96), 0.3)) == 0


def test_a_coarse_grid_gets_a_lower_order():
    assert [harmonic_order(nside) for nside in (1, 2, 4, 8)] == [2, 4, 6, 6]
    assert fibres_of(signal([rotation(1)[0]], nside=2), nside=2) == 1
