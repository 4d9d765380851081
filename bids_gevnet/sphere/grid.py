"""One interface for every grid: points, triangulation, areas, neighbours, frames, coarse grid.

A `Grid` knows its surface through three methods that the ring quadrature needs: which
triangles a ring may cross (`candidate_pairs`), barycentric coordinates of the ring in such a
triangle (`ring_charts`), and parallel transport (`transport_angles`). `SphereGrid` answers
them in closed form; `TriangleMesh` by local projection and transport along edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from scipy.spatial import cKDTree

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.frames import (
    FloatArray,
    IntArray,
    geodesic_distance,
    rotate_frames,
    transport_angle,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def triangle_edges(triangles: IntArray) -> IntArray:
    """Each undirected edge once, as (m, 2) sorted pairs."""
    pairs = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    edges: IntArray = np.unique(np.sort(pairs, axis=1), axis=0)
    return edges


@dataclass(frozen=True, eq=False)
class Grid(ABC):
    """Points of a closed surface with a frame at each; compared and hashed by identity.

    Parameters
    ----------
    label : str
        For messages and reports.
    points : (n, 3) array
    normals : (n, 3) array
        Outward unit normals; equal to the points on the unit sphere.
    frames : (n, 2, 3) array
        e1, e2 at each point; `rotate_frames` replaces them.
    triangulations : tuple of (m, 3) int arrays
        Usually one. Two where a grid has quadrilaterals with four corners on one circle:
        the two ways to cut them, which interpolation averages so as to break no symmetry.
    areas : (n,) array
        Area that belongs to each point; sums to the area of the surface.

    Examples
    --------
    >>> from bids_gevnet.sphere import healpix
    >>> grid = healpix(2)
    >>> turned = grid.rotate_frames(np.full(grid.n_points, np.pi))  # another gauge
    >>> bool(np.allclose(turned.frames, -grid.frames))
    True
    """

    label: str
    points: FloatArray
    normals: FloatArray
    frames: FloatArray
    triangulations: tuple[IntArray, ...]
    areas: FloatArray

    @property
    def n_points(self) -> int:
        """Number of points."""
        return len(self.points)

    @property
    def triangles(self) -> IntArray:
        """(m, 3) array: a triangulation of the points."""
        return self.triangulations[0]

    @cached_property
    def edges(self) -> IntArray:
        """(m, 2) array: pairs of neighbours, each once."""
        return triangle_edges(self.triangles)

    @cached_property
    def neighbours(self) -> tuple[IntArray, ...]:
        """Indices of the points that share an edge with each point, in increasing order."""
        both = np.concatenate([self.edges, self.edges[:, ::-1]])
        both = both[np.lexsort((both[:, 1], both[:, 0]))]
        starts = np.searchsorted(both[:, 0], np.arange(1, self.n_points))
        return tuple(np.split(both[:, 1], starts))

    @cached_property
    def spacing(self) -> float:
        """Mean distance between neighbours, along the surface: the unit of the radii."""
        return float(np.mean(self.edge_lengths()))

    def rotate_frames(self, angles: FloatArray) -> Self:
        """Return the same grid in another gauge: the frame of each point turned by its angle."""
        return replace(self, frames=rotate_frames(self.frames, np.asarray(angles, dtype=float)))

    @abstractmethod
    def coarse(self) -> Grid:
        """Next coarser grid of the hierarchy."""

    @abstractmethod
    def edge_lengths(self) -> FloatArray:
        """Length of each edge along the surface, (m,) array."""

    @abstractmethod
    def candidate_pairs(
        self, target: Grid, radius: float, triangles: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Pairs (point of target, triangle of this grid) such that the ring may cross it."""

    @abstractmethod
    def ring_charts(self, target: Grid, rows: IntArray, corners: IntArray, r: float) -> FloatArray:
        """Barycentric coordinates of the ring around target[row], as functions of its angle.

        Parameters
        ----------
        target : Grid
            Grid whose points are the centres.
        rows : (k,) array
            Centres.
        corners : (k, 3) array
            Corners of one triangle of this grid for each.
        r : float
            Radius of the ring along the surface.

        Returns
        -------
        (k, 3, 3) array
            M with w(theta) = M (1, cos theta, sin theta), to be divided by its sum;
            theta is measured in the frame at the centre.
        """

    @abstractmethod
    def transport_angles(self, target: Grid, rows: IntArray, cols: IntArray) -> FloatArray:
        """Angles tau of t_(p <- q) for p = target[rows], q = this grid's points[cols]."""


@dataclass(frozen=True, eq=False)
class SphereGrid(Grid):
    """Points on the unit sphere; exp, log and transport in closed form.

    Parameters
    ----------
    coarser : callable or None
        Makes the next coarser grid; None for the coarsest.

    Examples
    --------
    >>> from bids_gevnet.sphere import icosphere
    >>> isinstance(icosphere(1), SphereGrid)
    True
    """

    coarser: Callable[[], SphereGrid] | None = None

    def coarse(self) -> SphereGrid:
        """Next coarser grid of the hierarchy."""
        if self.coarser is None:
            raise InputError(
                expected="a grid that has a coarser one",
                found=f"{self.label}, the coarsest of its family",
                remedy="start from a finer grid or pool fewer times",
            )
        return self.coarser()

    def edge_lengths(self) -> FloatArray:
        """Great-circle length of each edge, (m,) array."""
        return geodesic_distance(self.points[self.edges[:, 0]], self.points[self.edges[:, 1]])

    def candidate_pairs(
        self, target: Grid, radius: float, triangles: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Pairs (point of target, triangle) such that the ring may cross the triangle."""
        if not 0 <= radius < np.pi / 2:
            raise InputError(
                expected="ring radii from 0 to less than a quarter of a great circle (1.5708)",
                found=f"{radius:.4f} on {self.label}",
                remedy="take smaller radii or a finer grid",
            )
        corners = self.points[triangles]  # (m, 3, 3)
        centres = corners.sum(axis=1)
        centres /= np.linalg.norm(centres, axis=-1, keepdims=True)
        reach = geodesic_distance(centres[:, None], corners).max(axis=1)  # (m,)
        chord = 2 * np.sin(min(radius + reach.max() + 1e-9, np.pi) / 2)
        hits = cKDTree(centres).query_ball_point(target.points, chord)
        rows = np.repeat(np.arange(target.n_points), [len(h) for h in hits])
        tris = np.concatenate([np.asarray(h, dtype=np.int64) for h in hits])
        # A triangle meets the ring if it has a point nearer and a corner farther than it.
        p = target.points[rows]
        nearest = geodesic_distance(p, centres[tris]) - reach[tris]
        farthest = geodesic_distance(p[:, None], corners[tris]).max(axis=1)
        keep = (nearest <= radius + 1e-9) & (farthest >= radius - 1e-9)
        return rows[keep], tris[keep]

    def ring_charts(self, target: Grid, rows: IntArray, corners: IntArray, r: float) -> FloatArray:
        """Solve sum_i w_i v_i = exp_p(r theta) for w, see `Grid.ring_charts`."""
        ring = np.stack(
            [
                np.cos(r) * target.points[rows],
                np.sin(r) * target.frames[rows, 0],
                np.sin(r) * target.frames[rows, 1],
            ],
            axis=-1,
        )  # exp_p(r theta) = ring @ (1, cos theta, sin theta)
        corner_columns = np.swapaxes(self.points[corners], 1, 2)
        charts: FloatArray = np.linalg.solve(corner_columns, ring)
        return charts

    def transport_angles(self, target: Grid, rows: IntArray, cols: IntArray) -> FloatArray:
        """Angles of closed-form transport along great circles, see `Grid.transport_angles`."""
        return transport_angle(
            target.frames[rows], target.normals[rows], self.frames[cols], self.normals[cols]
        )
