"""Triangle meshes: they agree with the sphere where they are one, and are checked."""

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.sphere.mesh import TriangleMesh
from bids_gevnet.sphere.quadrature import ring_stencil


def mesh_of(level, scale=(1.0, 1.0, 1.0), **kwargs):
    grid = icosphere(level)
    return TriangleMesh.build(grid.points * scale, grid.triangles, **kwargs)


def test_mesh_of_the_sphere_tends_to_the_sphere():
    errors = []
    for level in (1, 2, 3):
        a = ring_stencil(icosphere(level), (0.55, 1.2), 2)
        b = ring_stencil(mesh_of(level), (0.55, 1.2), 2)
        dense = [s.operator(1, 1, 1) for s in (a, b)]
        errors.append(np.abs(dense[0] - dense[1]).max())
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.02


def test_area_of_an_ellipsoid_like_mesh_and_constants_on_it():
    mesh = mesh_of(2, scale=(1.0, 1.2, 0.8))
    stencil = ring_stencil(mesh, (0.55, 1.0), 2)
    ones = np.zeros((mesh.n_points, 2, 3), complex)
    np.add.at(ones, stencil.rows, stencil.weights)
    assert np.abs(ones - [1, 0, 0]).max() < 1e-9
    assert mesh.areas.sum() == pytest.approx(12.6, rel=0.05)


def test_open_mesh_is_refused():
    grid = icosphere(0)
    with pytest.raises(InputError, match="closed"):
        TriangleMesh.build(grid.points, grid.triangles[1:])


def test_flipped_triangle_is_refused():
    grid = icosphere(0)
    triangles = grid.triangles.copy()
    triangles[0] = triangles[0][::-1]
    with pytest.raises(InputError, match="orientation"):
        TriangleMesh.build(grid.points, triangles)


def broken_meshes():
    """What files of meshes get wrong, and a word of the sentence about it."""
    grid = icosphere(1)
    points, triangles = grid.points, grid.triangles
    with_nan = points.copy()
    with_nan[3, 0] = np.nan
    return {
        "counted from 1": (points, triangles + 1, "0 to 41; found 1 to 42"),
        "below zero": (points, triangles - 1, "count vertices from 0"),
        "points and triangles exchanged": (triangles, points, "points before the triangles"),
        "a vertex of no triangle": (np.vstack([points, [9, 9, 9]]), triangles, "vertex 42"),
        "a coordinate that is no number": (with_nan, triangles, "found nan, .* for vertex 3"),
        "inside out": (points, triangles[:, ::-1], r"triangles\[:, ::-1\]"),
        "without area": (0 * points, triangles, "no normal"),
    }


@pytest.mark.parametrize("case", broken_meshes())
def test_a_mesh_without_a_normal_everywhere_is_refused_in_a_sentence(case):
    points, triangles, words = broken_meshes()[case]
    with pytest.raises(InputError, match=words):
        TriangleMesh.build(points, triangles)


def test_types_that_readers_of_surfaces_return_are_taken():
    # FreeSurfer's files are big endian, and float32 in GIFTI.
    grid = icosphere(1)
    mesh = TriangleMesh.build(grid.points.astype(">f4"), grid.triangles.astype(">i4"))
    np.testing.assert_allclose(mesh.normals, mesh_of(1).normals, atol=1e-6)


def test_coarser_mesh_must_be_a_prefix():
    with pytest.raises(InputError, match="first"):
        mesh_of(1, coarser=mesh_of(0, scale=(1.0, 1.0, 2.0)))
    assert mesh_of(1, coarser=mesh_of(0)).coarse().n_points == 12
    with pytest.raises(InputError, match="coarser"):
        mesh_of(1).coarse()
