"""Icosphere: an icosahedron whose triangles are cut in four `level` times.

Level k has 10 * 4^k + 2 points, twelve of them with five neighbours and all others with six.
The points of level k - 1 come first, in the same order: the coarse grid is a prefix. Points do
not own equal areas (they differ by about 30 % at level 4): a third of the spherical area of
each adjacent triangle is given to each corner.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.frames import FloatArray, IntArray, default_frames
from bids_gevnet.sphere.grid import SphereGrid
from bids_gevnet.sphere.healpix_grid import hull_triangulations

MAX_LEVEL = 6


@cache
def icosphere(level: int) -> SphereGrid:
    """Icosphere of 10 * 4^level + 2 points; made once per process.

    Parameters
    ----------
    level : int
        0 to 6. Spherical MNIST uses 4: 2,562 points.

    Examples
    --------
    >>> icosphere(4).n_points
    2562
    >>> icosphere(4).coarse().n_points
    642
    """
    if not (isinstance(level, int) and 0 <= level <= MAX_LEVEL):
        raise InputError(
            expected=f"an icosphere level from 0 to {MAX_LEVEL}",
            found=repr(level),
            remedy="4 has 2,562 points, 5 has 10,242",
        )
    if level == 0:
        points = icosahedron_points()
        triangles = hull_triangulations(points)[0]
    else:
        coarse = icosphere(level - 1)
        points, triangles = subdivide(coarse.points, coarse.triangles)
    return SphereGrid(
        label=f"icosphere level {level}",
        points=points,
        normals=points,
        frames=default_frames(points),
        triangulations=(triangles,),
        areas=corner_areas(points, triangles),
        coarser=None if level == 0 else lambda: icosphere(level - 1),
    )


def icosahedron_points() -> FloatArray:
    """Twelve corners, two of them at the poles."""
    angles = np.arange(5) * 2 * np.pi / 5
    z, rho = 1 / np.sqrt(5), 2 / np.sqrt(5)
    upper = np.stack([rho * np.cos(angles), rho * np.sin(angles), np.full(5, z)], axis=-1)
    # The lower corners are the antipodes of the upper ones.
    return np.concatenate([[[0.0, 0.0, 1.0]], upper, -upper, [[0.0, 0.0, -1.0]]])


def subdivide(points: FloatArray, triangles: IntArray) -> tuple[FloatArray, IntArray]:
    """Cut each triangle in four at the middles of its edges, put back on the sphere.

    Parameters
    ----------
    points : (n, 3) array
    triangles : (m, 3) array

    Returns
    -------
    points : (n + e, 3) array
        Old points first.
    triangles : (4 m, 3) array
    """
    sides = triangles[:, [[0, 1], [1, 2], [2, 0]]]  # (m, 3, 2)
    edges, which = np.unique(np.sort(sides.reshape(-1, 2), axis=1), axis=0, return_inverse=True)
    middles = points[edges].sum(axis=1)
    middles /= np.linalg.norm(middles, axis=-1, keepdims=True)
    ab, bc, ca = (len(points) + which.reshape(-1, 3)).T
    a, b, c = triangles.T
    parts = [[a, ab, ca], [b, bc, ab], [c, ca, bc], [ab, bc, ca]]
    finer = np.concatenate([np.stack(part, axis=1) for part in parts])
    return np.concatenate([points, middles]), finer


def corner_areas(points: FloatArray, triangles: IntArray) -> FloatArray:
    """Area of each point: a third of the spherical area of every adjacent triangle.

    The solid angle is 2 atan2(a . (b x c), 1 + a.b + b.c + c.a) (Van Oosterom and Strackee).

    Returns
    -------
    (n,) array
        Sums to 4 pi.
    """
    a, b, c = (points[triangles[:, i]] for i in range(3))
    triple = np.einsum("ij,ij->i", a, np.cross(b, c))
    dots = sum(np.einsum("ij,ij->i", u, v) for u, v in ((a, b), (b, c), (c, a)))
    solid = 2 * np.arctan2(np.abs(triple), 1 + dots)
    areas = np.zeros(len(points))
    np.add.at(areas, triangles.ravel(), np.repeat(solid / 3, 3))
    return areas
