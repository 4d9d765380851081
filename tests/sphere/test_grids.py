"""Grids: known counts, areas, neighbours, hierarchy, symmetry."""

import healpy
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.testing import grid_symmetry

GRIDS = [*(("healpix", n) for n in (1, 2, 4, 8)), *(("icosphere", k) for k in range(4))]


def grid_of(kind, size):
    return healpix(size) if kind == "healpix" else icosphere(size)


@pytest.mark.parametrize(("kind", "size"), GRIDS)
def test_triangulations_cover_the_sphere_once(kind, size):
    grid = grid_of(kind, size)
    for triangles in grid.triangulations:
        assert len(triangles) == 2 * grid.n_points - 4  # Euler
        a, b, c = (grid.points[triangles[:, i]] for i in range(3))
        triple = np.einsum("ij,ij->i", a, np.cross(b, c))
        assert (triple > 0).all()  # anticlockwise
        dots = (a * b + b * c + c * a).sum(1)
        assert (2 * np.arctan2(triple, 1 + dots)).sum() == pytest.approx(4 * np.pi)


@pytest.mark.parametrize(("kind", "size"), GRIDS)
def test_areas_and_neighbours(kind, size):
    grid = grid_of(kind, size)
    assert grid.areas.sum() == pytest.approx(4 * np.pi)
    for p, near in enumerate(grid.neighbours):
        assert p not in near
        assert all(p in grid.neighbours[q] for q in near)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_icosphere_has_twelve_points_with_five_neighbours(level):
    counts = [len(near) for near in icosphere(level).neighbours]
    assert counts.count(5) == 12
    assert counts.count(6) == len(counts) - 12 == 10 * 4**level + 2 - 12


@pytest.mark.parametrize("level", [1, 2, 4])
def test_coarse_icosphere_is_a_prefix(level):
    fine = icosphere(level)
    coarse = fine.coarse()
    assert np.array_equal(fine.points[: coarse.n_points], coarse.points)


@pytest.mark.parametrize("nside", [2, 4, 8])
def test_healpix_is_nested_and_its_coarse_grid_holds_the_parents(nside):
    fine = healpix(nside)
    assert np.allclose(
        fine.points, np.stack(healpy.pix2vec(nside, np.arange(12 * nside**2), nest=True), -1)
    )
    children = fine.points.reshape(-1, 4, 3).mean(1)
    children /= np.linalg.norm(children, axis=-1, keepdims=True)
    nearest = np.argmax(children @ fine.coarse().points.T, axis=1)
    assert np.array_equal(nearest, np.arange(3 * nside**2))


def test_same_grid_is_made_once():
    assert healpix(4) is healpix(4)
    assert icosphere(3) is icosphere(3)


def test_rotate_frames_keeps_everything_else():
    grid = healpix(1)
    turned = grid.rotate_frames(np.full(12, np.pi / 2))
    assert np.allclose(turned.frames[:, 0], grid.frames[:, 1])
    assert turned.points is grid.points
    assert turned.coarser is grid.coarser


def test_quarter_turn_maps_healpix_to_itself_and_another_angle_does_not():
    quarter = Rotation.from_rotvec([0, 0, np.pi / 2]).as_matrix()
    assert grid_symmetry(healpix(4), quarter) is not None
    assert grid_symmetry(healpix(4), Rotation.from_rotvec([0, 0, 1.0]).as_matrix()) is None


@pytest.mark.parametrize(
    "make", [lambda: healpix(3), lambda: healpix(64), lambda: icosphere(7), lambda: icosphere(-1)]
)
def test_impossible_sizes_are_refused_with_a_remedy(make):
    with pytest.raises(InputError, match="What to do"):
        make()


def test_coarsest_grid_has_no_coarser_one():
    with pytest.raises(InputError, match="coarsest"):
        healpix(1).coarse()
