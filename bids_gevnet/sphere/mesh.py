"""Any closed triangle mesh as a grid: the theory of the paper holds on every surface.

exp and log at a vertex are local projections: the neighbourhood is laid into the tangent plane
(orthogonal to the area-weighted normal) along each neighbour's projected direction, at its
distance along the edges. Transport goes along the shortest path of edges, on each edge by the
smallest rotation that takes one normal to the other. On a sphere both tend to the closed forms
of `SphereGrid` as the mesh is refined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import cKDTree

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.frames import FloatArray, IntArray, default_frames, transport_angle
from bids_gevnet.sphere.grid import Grid, triangle_edges

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, eq=False)
class TriangleMesh(Grid):
    """Closed triangle mesh; make one with `TriangleMesh.build`.

    Parameters
    ----------
    coarser : TriangleMesh or None
        Next coarser mesh. Its vertices must be the first vertices of this one.

    Examples
    --------
    >>> from bids_gevnet.sphere import icosphere
    >>> ball = icosphere(1)
    >>> mesh = TriangleMesh.build(2 * ball.points, ball.triangulations[0])
    >>> mesh.n_points
    42
    """

    coarser: TriangleMesh | None = None

    @classmethod
    def build(
        cls,
        points: FloatArray,
        triangles: IntArray,
        *,
        coarser: TriangleMesh | None = None,
        label: str = "mesh",
    ) -> TriangleMesh:
        """Check a mesh and compute its normals, frames and areas.

        Parameters
        ----------
        points : (n, 3) array
        triangles : (m, 3) array
            Corners anticlockwise as seen from outside.
        coarser : TriangleMesh or None
            Mesh of the first points; it takes over the normals of this one.
        label : str
        """
        points = np.asarray(points, dtype=float)
        triangles = np.asarray(triangles, dtype=np.int64)
        check_vertices(points, triangles)
        check_closed(triangles)
        check_outward(points, triangles)
        a, b, c = (points[triangles[:, i]] for i in range(3))
        doubled = np.cross(b - a, c - a)  # normal times twice the area
        normals = np.zeros_like(points)
        np.add.at(normals, triangles.ravel(), np.repeat(doubled, 3, axis=0))
        lengths = np.linalg.norm(normals, axis=-1, keepdims=True)
        if not lengths.all():
            raise InputError(
                expected="triangles with an area around every vertex",
                found=f"none around vertex {lengths.argmin()}, so that it has no normal",
                remedy="remove triangles without area and those that lie on each other",
            )
        normals /= lengths
        third = np.linalg.norm(doubled, axis=-1) / 6
        areas = np.zeros(len(points))
        np.add.at(areas, triangles.ravel(), np.repeat(third, 3))
        if coarser is not None:
            n = coarser.n_points
            if n >= len(points) or not np.allclose(coarser.points, points[:n]):
                raise InputError(
                    expected="a coarser mesh whose vertices are the first of the finer one",
                    found=f"{n} vertices that differ from the first {n} of {len(points)}",
                    remedy="reorder the vertices of the finer mesh",
                )
            coarser = replace(coarser, normals=normals[:n], frames=default_frames(normals[:n]))
        frames = default_frames(normals)
        return cls(label, points, normals, frames, (triangles,), areas, coarser)

    def coarse(self) -> TriangleMesh:
        """Return the coarser mesh given to `build`."""
        if self.coarser is None:
            raise InputError(
                expected="a mesh with a coarser one",
                found=f"{self.label} without",
                remedy="give coarser= to TriangleMesh.build, or pool fewer times",
            )
        return self.coarser

    def edge_lengths(self) -> FloatArray:
        """Straight length of each edge, (m,) array."""
        ends = self.points[self.edges]
        lengths: FloatArray = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=-1)
        return lengths

    @cached_property
    def _graph(self) -> coo_array:
        i, j = self.edges.T
        lengths = self.edge_lengths()
        both = (np.r_[i, j], np.r_[j, i])
        return coo_array((np.r_[lengths, lengths], both), shape=(self.n_points,) * 2).tocsr()

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.points)

    @cached_property
    def _triangles_at(self) -> csr_array:
        """Which triangles each vertex is a corner of, (points, triangles)."""
        corners = self.triangles.ravel()
        of = np.repeat(np.arange(len(self.triangles)), 3)
        shape = (self.n_points, len(self.triangles))
        return csr_array((np.ones(len(of), bool), (corners, of)), shape=shape)

    def _paths(self, source: int, limit: float) -> tuple[IntArray, IntArray]:
        """Vertices within a distance along edges of a vertex, and their predecessors.

        Such paths stay in the ball of that radius, so only its part of the graph is searched:
        what a vertex costs does not grow with the mesh.
        """
        ball = np.sort(self._tree.query_ball_point(self.points[source], limit * (1 + 1e-9)))
        graph = self._graph[ball][:, ball]
        start = int(np.searchsorted(ball, source))
        distance, before = dijkstra(graph, indices=start, limit=limit, return_predecessors=True)
        within = np.isfinite(distance)
        # Where there is no predecessor, at the source, dijkstra gives a negative number.
        return ball[within], ball[np.where(before < 0, start, before)[within]]

    def candidate_pairs(
        self, target: Grid, radius: float, triangles: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Pairs (vertex, triangle) with all corners near enough for the ring to cross it."""
        self._check_target(target)
        limit = radius + 2 * float(self.edge_lengths().max())
        rows, tris = [], []
        for p in range(target.n_points):
            vertices, _ = self._paths(p, limit)
            touched = np.unique(self._triangles_at[vertices].indices)
            near = touched[np.isin(triangles[touched], vertices).all(axis=1)]
            rows.append(np.full(len(near), p))
            tris.append(near)
        return np.concatenate(rows), np.concatenate(tris)

    def ring_charts(self, target: Grid, rows: IntArray, corners: IntArray, r: float) -> FloatArray:
        """Barycentric coordinates in the tangent plane, see `Grid.ring_charts`."""
        charts = np.empty((len(rows), 3, 3))
        for p, here in _by_row(rows):
            vertices = np.unique(corners[here])
            flat = self._log(target, p, vertices)
            xy = flat[np.searchsorted(vertices, corners[here])]  # (k, 3, 2)
            system = np.concatenate([np.ones((*xy.shape[:2], 1)), xy], axis=-1).swapaxes(1, 2)
            # Folded triangles of the chart (far away, seen edge-on) never contain a ring point.
            folded = np.linalg.det(system) <= 1e-12 * r**2
            system[folded] = np.eye(3)
            ring = np.diag([1.0, r, r])
            charts[here] = np.linalg.solve(system, np.broadcast_to(ring, system.shape))
            charts[here[folded]] = [[-1.0, 0, 0]] * 3
        return charts

    def _log(self, target: Grid, p: int, vertices: IntArray) -> FloatArray:
        """log_p by projection: coordinates of the vertices in the frame at p, (n, 2)."""
        offset = self.points[vertices] - target.points[p]
        flat = offset @ target.frames[p].T
        length = np.linalg.norm(flat, axis=-1)
        # Distance along the surface from the chord and the two normals' angle (exact on a sphere).
        chord = np.linalg.norm(offset, axis=-1)
        cosine = np.clip(self.normals[vertices] @ target.normals[p], -1, 1)
        half = np.arccos(cosine) / 2
        distance = chord * np.where(half > 1e-6, half / np.sin(np.maximum(half, 1e-6)), 1.0)
        scale = np.divide(distance, length, out=np.zeros_like(length), where=length > 0)
        coordinates: FloatArray = flat * scale[:, None]
        return coordinates

    def transport_angles(self, target: Grid, rows: IntArray, cols: IntArray) -> FloatArray:
        """Angles of transport along the shortest path of edges, see `Grid.transport_angles`."""
        self._check_target(target)
        i, j = np.concatenate([self.edges, self.edges[:, ::-1]]).T
        frames, normals = self.frames, self.normals
        step = transport_angle(frames[i], normals[i], frames[j], normals[j])
        turn = dict(zip(zip(i.tolist(), j.tolist(), strict=True), step.tolist(), strict=True))
        at_centre = transport_angle(  # from this grid's frame at p to the target's
            target.frames, target.normals, frames[: target.n_points], normals[: target.n_points]
        )
        angles = np.empty(len(rows))
        limit = 4 * float(self.edge_lengths().max()) * 4
        for p, here in _by_row(rows):
            vertices, predecessors = self._paths(p, limit)
            before = dict(zip(vertices.tolist(), predecessors.tolist(), strict=True))
            for k in here:
                q, total = int(cols[k]), at_centre[p]
                while q != p:
                    total += turn[before[q], q]
                    q = before[q]
                angles[k] = total
        return angles

    def _check_target(self, target: Grid) -> None:
        n = target.n_points
        if n > self.n_points or not np.allclose(target.points, self.points[:n]):
            raise InputError(
                expected=f"a target whose points are the first vertices of {self.label}",
                found=target.label,
                remedy="convolve on the mesh itself or pool to its coarser mesh",
            )


def _by_row(rows: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Give each row once, with its places."""
    order = np.argsort(rows, kind="stable")
    names, starts = np.unique(rows[order], return_index=True)
    yield from zip(names.tolist(), np.split(order, starts[1:]), strict=True)


def check_vertices(points: FloatArray, triangles: IntArray) -> None:
    """Raise InputError unless triangles name all of the points and nothing else."""
    if points.ndim != 2 or points.shape[1] != 3 or triangles.ndim != 2 or triangles.shape[1] != 3:
        raise InputError(
            expected="points of shape (n, 3) and triangles of shape (m, 3)",
            found=f"{points.shape} and {triangles.shape}",
            remedy="give vertex coordinates and triples of vertex indices",
        )
    unknown = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if unknown.size:
        raise InputError(
            expected="finite coordinates",
            found=f"{', '.join(f'{v:g}' for v in points[unknown[0]])} for vertex {unknown[0]}",
            remedy="export the mesh again",
        )
    if triangles.size and not 0 <= triangles.min() <= triangles.max() < len(points):
        raise InputError(
            expected=f"triangles of vertices 0 to {len(points) - 1}",
            found=f"{triangles.min()} to {triangles.max()}",
            remedy="count vertices from 0, and give the points before the triangles",
        )
    lonely = np.setdiff1d(np.arange(len(points)), triangles)
    if lonely.size:
        raise InputError(
            expected="every vertex in a triangle",
            found=f"{lonely.size} in none, such as vertex {lonely[0]}",
            remedy="remove these vertices and number the others anew",
        )


def check_closed(triangles: IntArray) -> None:
    """Raise InputError unless the mesh is a closed, consistently oriented surface."""
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    once = len(np.unique(sides, axis=0)) == len(sides)
    if not once or 2 * len(triangle_edges(triangles)) != len(sides):
        raise InputError(
            expected="a closed mesh: every edge in exactly two triangles, of one orientation",
            found=f"{len(sides)} directed edges, {len(triangle_edges(triangles))} undirected",
            remedy="fill holes and orient all triangles anticlockwise seen from outside",
        )


def check_outward(points: FloatArray, triangles: IntArray) -> None:
    """Raise InputError where a closed mesh is inside out: its frames would be mirrored."""
    a, b, c = (points[triangles[:, i]] - points.mean(axis=0) for i in range(3))
    if np.einsum("ij,ij->", a, np.cross(b, c)) < 0:  # six times the volume
        raise InputError(
            expected="triangles whose corners go anticlockwise as seen from outside",
            found="clockwise ones: the mesh encloses a negative volume",
            remedy="give triangles[:, ::-1]",
        )
