"""HEALPix grids in nested order, from healpy, triangulated by their convex hull.

The four children of pixel k of nside are the pixels 4k to 4k + 3 of 2 nside. All pixels have
the same area. A child is never at the centre of its parent. Some neighbouring pixels lie on
one circle (around the poles and across the meridians 0, 90, 180, 270 degrees): their
quadrilaterals can be cut in two ways, and both are kept, so that the grid's own rotations
remain exact symmetries of the interpolation.
"""

from __future__ import annotations

from functools import cache

import healpy
import numpy as np
from scipy.spatial import ConvexHull

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.frames import FloatArray, IntArray, default_frames
from bids_gevnet.sphere.grid import SphereGrid

MAX_NSIDE = 32


@cache
def healpix(nside: int) -> SphereGrid:
    """HEALPix grid of 12 nside^2 points in nested order; made once per process.

    Parameters
    ----------
    nside : int
        1, 2, 4, 8, 16 or 32. The dMRI networks use 4: 192 points.

    Examples
    --------
    >>> healpix(4).n_points
    192
    >>> round(float(healpix(4).areas.sum() / np.pi), 6)
    4.0
    """
    if nside not in (1, 2, 4, 8, 16, 32):
        raise InputError(
            expected=f"nside a power of two from 1 to {MAX_NSIDE}",
            found=repr(nside),
            remedy="choose 1, 2, 4, 8, 16 or 32",
        )
    n = 12 * nside**2
    points = np.stack(healpy.pix2vec(nside, np.arange(n), nest=True), axis=-1)
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return SphereGrid(
        label=f"HEALPix nside {nside}",
        points=points,
        normals=points,
        frames=default_frames(points),
        triangulations=hull_triangulations(points),
        areas=np.full(n, 4 * np.pi / n),
        coarser=None if nside == 1 else lambda: healpix(nside // 2),
    )


def hull_triangulations(points: FloatArray) -> tuple[IntArray, ...]:
    """Delaunay triangulation of the sphere; two where quadrilaterals can be cut in two ways.

    Parameters
    ----------
    points : (n, 3) array
        Unit vectors around the origin.

    Returns
    -------
    tuple of one or two (m, 3) arrays
        Triangles anticlockwise seen from outside. The second differs from the first in the
        diagonal of each quadrilateral with its corners on one circle.
    """
    hull = ConvexHull(points)
    triangles = outward(points, hull.simplices.astype(np.int64))
    offsets = hull.equations  # normal and offset of each facet's plane
    flipped = triangles.copy()
    for t in range(len(triangles)):
        for s in hull.neighbors[t]:
            if s > t and np.allclose(offsets[t], offsets[s], rtol=0, atol=1e-9):
                ours, theirs = set(triangles[t].tolist()), set(triangles[s].tolist())
                a, b = ours - theirs, theirs - ours
                c, d = sorted(ours & theirs)
                flipped[t] = [*a, *b, c]
                flipped[s] = [*a, *b, d]
    if np.array_equal(flipped, triangles):
        return (triangles,)
    return triangles, outward(points, flipped)


def outward(points: FloatArray, triangles: IntArray) -> IntArray:
    """Order the corners of each triangle anticlockwise as seen from outside."""
    a, b, c = (points[triangles[:, i]] for i in range(3))
    inside = np.einsum("ij,ij->i", np.cross(b - a, c - a), a + b + c) < 0
    ordered = triangles.copy()
    ordered[inside] = ordered[inside][:, [0, 2, 1]]
    return ordered
