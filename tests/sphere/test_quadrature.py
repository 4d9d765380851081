"""Ring quadrature: constants, closed forms, exact symmetries, and what a plain mean does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.sphere.quadrature import ring_stencil, split_arcs, stencil_between
from bids_gevnet.testing import grid_symmetry

GRIDS = [healpix(1), healpix(2), healpix(4), icosphere(0), icosphere(1), icosphere(3)]
RADII = (0.55, 1.2)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.label)
def test_constant_goes_to_frequency_zero_only(grid):
    """At every point: poles, 5-neighbour points, HEALPix corners."""
    stencil = ring_stencil(grid, RADII, 3)
    ones = np.zeros((grid.n_points, 2, 4), complex)
    np.add.at(ones, stencil.rows, stencil.weights)
    assert np.allclose(ones[..., 0], 1, atol=1e-13)
    assert np.abs(ones[..., 1:]).max() < 1e-13


def test_plain_neighbour_mean_leaks_a_constant_into_frequency_one():
    """The negative control of the test above: why the quadrature is there."""
    grid = healpix(4)
    leaks = []
    for p, near in enumerate(grid.neighbours):
        offset = (grid.points[near] - grid.points[p]) @ grid.frames[p].T
        theta = np.arctan2(offset[:, 1], offset[:, 0])
        leaks.append(abs(np.exp(1j * theta).mean()))
    assert max(leaks) > 0.05


@pytest.mark.parametrize("f", [0, 1, 2])
def test_linear_and_quadratic_signals_have_their_closed_form(f):
    """A linear signal a.x on a ring of radius r is a.p cos r + sin r (a.e1 cos + a.e2 sin).

    Hence frequency 1 is sin(r) (a.e1 + i a.e2) / 2; barycentric interpolation is second order.
    """
    grid = icosphere(4)
    a = np.array([0.3, -0.8, 0.52])
    r = 1.2 * grid.spacing
    operator = ring_stencil(grid, RADII, 2)
    response = np.zeros(grid.n_points, complex)
    np.add.at(
        response, operator.rows, operator.weights[:, 1, f] * (grid.points @ a)[operator.cols]
    )
    e1, e2 = grid.frames[:, 0] @ a, grid.frames[:, 1] @ a
    expected = {0: np.cos(r) * grid.points @ a, 1: np.sin(r) * (e1 + 1j * e2) / 2, 2: 0 * e1}[f]
    assert np.abs(response - expected).max() < 2e-3 * (1 if f == 0 else np.sin(r))


def test_uniform_nodes_converge_to_it():
    """Q equispaced nodes, as in the paper, located triangle by triangle, approach the same E."""
    grid, p, r = icosphere(2), 7, 1.2 * icosphere(2).spacing
    q = 4000
    theta = 2 * np.pi * np.arange(q) / q
    ring = np.cos(r) * grid.points[p] + np.sin(r) * (
        np.cos(theta)[:, None] * grid.frames[p, 0] + np.sin(theta)[:, None] * grid.frames[p, 1]
    )
    weights = np.linalg.solve(
        grid.points[grid.triangles].swapaxes(1, 2)[:, None], ring[None, :, :, None]
    )[..., 0]
    best = weights.min(-1).argmax(0)  # triangle of each node
    w = weights[best, np.arange(q)]
    w /= w.sum(-1, keepdims=True)
    dense = np.zeros((q, grid.n_points))
    np.add.at(dense, (np.arange(q)[:, None], grid.triangles[best]), w)
    for f in (0, 1, 2):
        expected = (dense * np.exp(1j * f * theta)[:, None]).mean(0)
        stencil = ring_stencil(grid, (1.2,), 2)
        mine = np.zeros(grid.n_points, complex)
        here = stencil.rows == p
        mine[stencil.cols[here]] = stencil.weights[here, 0, f]
        assert np.abs(mine - expected).max() < 1e-6


@pytest.mark.parametrize("grid", [healpix(2), icosphere(1)], ids=lambda g: g.label)
def test_more_nodes_change_nothing(grid):
    few, many = ring_stencil(grid, RADII, 2, 16), ring_stencil(grid, RADII, 2, 2000)
    assert np.array_equal(few.cols, many.cols)
    assert np.abs(few.weights - many.weights).max() < 1e-12


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_frame_changes_turn_the_weights_and_nothing_else(seed):
    grid = healpix(1)
    angles = np.random.default_rng(seed).uniform(-4, 4, 12)
    a, b = ring_stencil(grid, RADII, 2), ring_stencil(grid.rotate_frames(angles), RADII, 2)
    turn = np.exp(-1j * np.arange(3) * angles[a.rows, None])
    assert np.array_equal(a.cols, b.cols)
    assert np.abs(a.weights * turn[:, None] - b.weights).max() < 1e-13
    shift = np.exp(1j * (a.angles + angles[a.cols] - angles[a.rows] - b.angles))
    assert np.allclose(shift, 1, atol=1e-12)


@pytest.mark.parametrize(
    ("grid", "rotvec"),
    [
        (healpix(4), [0, 0, np.pi / 2]),
        (healpix(2), [np.pi, 0, 0]),
        (icosphere(2), [0, 0, 2 * np.pi / 5]),
    ],
    ids=["healpix quarter turn", "healpix half turn about x", "icosphere fifth turn"],
)
def test_the_grids_own_rotations_are_exact_symmetries(grid, rotvec):
    """Frequency 0, which no frame enters, must be permuted exactly."""
    image = grid_symmetry(grid, Rotation.from_rotvec(rotvec).as_matrix())
    assert image is not None
    dense = ring_stencil(grid, RADII, 2).operator(0, 0, 1)
    assert np.abs(dense[np.ix_(image, image)] - dense).max() < 1e-12


def test_one_triangulation_alone_would_break_the_symmetry():
    """Negative control: HEALPix quadrilaterals cut one way only are not invariant."""
    from dataclasses import replace

    grid = healpix(4)
    assert len(grid.triangulations) == 2
    one = replace(grid, triangulations=grid.triangulations[:1])
    image = grid_symmetry(grid, Rotation.from_rotvec([0, 0, np.pi / 2]).as_matrix())
    dense = ring_stencil(one, RADII, 2).operator(0, 0, 1)
    assert np.abs(dense[np.ix_(image, image)] - dense).max() > 1e-3


def test_radius_zero_is_the_point_itself_at_frequency_zero():
    grid = healpix(2)
    stencil = ring_stencil(grid, (0.0, 1.0), 2)
    assert np.allclose(stencil.operator(0, 0, 0), np.eye(48), atol=1e-12)
    for f in (1, 2):
        assert np.abs(stencil.operator(0, f, 0)).max() == 0


def test_between_grids_a_linear_signal_is_met_at_the_parents():
    fine, coarse = healpix(8), healpix(4)
    stencil = stencil_between(coarse, fine, (0.0,), 0)
    a = np.array([0.1, 0.7, -0.7])
    assert np.abs(stencil.operator(0, 0, 0) @ (fine.points @ a) - coarse.points @ a).max() < 6e-3


def test_ring_inside_one_triangle_is_one_whole_circle():
    """No edge is crossed: weights are 1/3 everywhere on the ring."""
    charts = np.array([[[1 / 3, 0.05, 0.0], [1 / 3, -0.05, 0.02], [1 / 3, 0.0, -0.02]]])
    _, start, end = split_arcs(charts)
    assert (end - start).sum() == pytest.approx(2 * np.pi)


@pytest.mark.parametrize("radii", [(), (-0.1, 1.0), (0.5, 40.0)])
def test_impossible_radii_are_refused(radii):
    with pytest.raises(InputError):
        ring_stencil(healpix(2), radii)


@pytest.mark.slow
def test_level_five_with_a_thousand_nodes():
    stencil = ring_stencil(icosphere(5), RADII, 2, 1000)
    ones = np.zeros((10242, 2, 3), complex)
    np.add.at(ones, stencil.rows, stencil.weights)
    assert np.abs(ones - [1, 0, 0]).max() < 1e-12
