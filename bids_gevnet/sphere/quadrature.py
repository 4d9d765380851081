r"""Ring quadrature: the integral of Eq. (1) on a grid whose patches are all different.

The signal around p is interpolated on a ring of radius r, barycentrically in the triangles of
the grid, and its angular frequencies are integrated:

    E[p, j, ring, f] = 1/(2 pi) int w_j(theta) exp(i f theta) dtheta ,   f = 0 ... F,

w_j(theta) the barycentric weight of the grid point j at exp_p(r theta), theta measured in the
frame at p, so that the mean over the ring of s exp(i f theta) is sum_j E[p, j, ring, f] s_j,
and that of a tangent vector z is sum_j E[p, j, ring, f] exp(i tau[p, j]) z_j with the
transport angle tau of t_(p <- j). Negative frequencies are complex conjugates.

Averaging over the neighbours instead leaks a constant into frequency 1, because points have
5, 6, 7 or 8 neighbours at uneven directions.

The Q nodes. The weights have a kink wherever the ring crosses an edge of the triangulation.
Nodes are placed between kinks, by Gauss and Legendre on each arc, about Q on each ring in all.
This converges exponentially (Q = 64 is exact to rounding; Q equispaced nodes have an error of
order Q^-2, 1e-6 for the paper's 1000), and where a node stands depends neither on the frame
nor on the orientation of the grid: random changes of frame and the rotations that map the grid
to itself are then exact symmetries, to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from bids_gevnet.sphere.frames import FloatArray, IntArray
    from bids_gevnet.sphere.grid import Grid

ComplexArray = NDArray[np.complex128]

DEFAULT_Q = 64
_LONGEST_ARC = np.pi / 3
_FEWEST_NODES = 8
_CHUNK_VALUES = 2_000_000  # bounds the memory of a fine grid with Q in the thousands


@dataclass(frozen=True, eq=False)
class RingStencil:
    """Sparse E and tau of the module's docstring.

    Parameters
    ----------
    shape : (int, int)
        Number of points of the target and of the source grid.
    rows, cols : (k,) int arrays
        The pairs (p, j) with a weight, sorted by p, then j.
    weights : (k, n_rings, F + 1) complex array
        E.
    angles : (k,) array
        tau, radians.
    """

    shape: tuple[int, int]
    rows: IntArray
    cols: IntArray
    weights: ComplexArray
    angles: FloatArray

    def operator(self, n: int, f: int, ring: int, *, conjugate: bool = False) -> ComplexArray:
        """Dense A with (A z)[p] = mean over the ring of z exp(i f theta), z of frequency n.

        With `conjugate` the mean is of conj(z) exp(i f theta), and A applies to conj(z).

        Returns
        -------
        shape array
        """
        phase = np.exp(1j * (-n if conjugate else n) * self.angles)
        dense = np.zeros(self.shape, dtype=complex)
        dense[self.rows, self.cols] = self.frequency(f)[:, ring] * phase
        return dense

    def frequency(self, f: int) -> ComplexArray:
        """(k, n_rings) array: E at frequency f, which may be negative."""
        weights = self.weights[:, :, abs(f)]
        return weights.conj() if f < 0 else weights


@lru_cache(maxsize=32)
def ring_stencil(
    grid: Grid, radii: tuple[float, ...], max_frequency: int = 2, q: int = DEFAULT_Q
) -> RingStencil:
    """Stencil of every point of a grid, computed once per grid and settings in a process.

    Parameters
    ----------
    grid : Grid
    radii : tuple of float
        In units of the grid's mean neighbour spacing. 0 is the point itself, which feeds
        frequency 0 only: anything else there would depend on the frame.
    max_frequency : int
        F; 2 for rho0 + rho1.
    q : int
        Nodes on each ring, about.

    Examples
    --------
    >>> from bids_gevnet.sphere import healpix
    >>> ring_stencil(healpix(2), (0.5, 1.0)).shape
    (48, 48)
    """
    return stencil_between(grid, grid, radii, max_frequency, q)


@lru_cache(maxsize=32)
def stencil_between(
    target: Grid,
    source: Grid,
    radii: tuple[float, ...],
    max_frequency: int = 0,
    q: int = DEFAULT_Q,
) -> RingStencil:
    """Stencil of rings around the points of `target`, interpolated from those of `source`.

    Parameters are those of `ring_stencil`; the radii are in units of the source's spacing.
    """
    if not radii or min(radii) < 0 or q < 1 or max_frequency < 0:
        raise InputError(
            expected="at least one radius, none negative, q at least 1",
            found=f"radii {radii}, q {q}, max_frequency {max_frequency}",
            remedy="for instance radii (0.55, 1.2) and q 64",
        )
    entries = [
        _ring_entries(target, source, triangles, ring, len(radii), radius, max_frequency, q)
        for triangles in source.triangulations
        for ring, radius in enumerate(radii)
    ]
    keys = np.concatenate([key for key, _ in entries])
    values = np.concatenate([value for _, value in entries])  # (n, n_rings, F + 1)
    unique, inverse = np.unique(keys, return_inverse=True)
    weights = np.zeros((len(unique), *values.shape[1:]), dtype=complex)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(unique)))
    weights[:] = np.add.reduceat(values[order], starts, axis=0) / len(source.triangulations)
    rows, cols = np.divmod(unique, source.n_points)
    return RingStencil(
        shape=(target.n_points, source.n_points),
        rows=rows,
        cols=cols,
        weights=weights,
        angles=source.transport_angles(target, rows, cols),
    )


def _ring_entries(
    target: Grid,
    source: Grid,
    triangles: IntArray,
    ring: int,
    n_rings: int,
    radius: float,
    max_frequency: int,
    q: int,
) -> tuple[IntArray, ComplexArray]:
    """Contributions of one ring and one triangulation, keyed by p * n_source + j.

    Returns
    -------
    keys : (3 a,) array
    values : (3 a, n_rings, F + 1) array
        For each arc and corner of its triangle.
    """
    length = radius * source.spacing
    rows, tris = source.candidate_pairs(target, length, triangles)
    charts = source.ring_charts(target, rows, triangles[tris], length)
    if radius == 0:
        pair, values = _centre_weights(charts, rows, max_frequency)
    else:
        pair, start, end = split_arcs(charts)
        per_arc = max(_FEWEST_NODES, round(q * target.n_points / len(pair)))
        values = _integrate_arcs(charts[pair], start, end, max_frequency, per_arc)
        covered = np.bincount(rows[pair], end - start, minlength=target.n_points)
        if not np.allclose(covered, 2 * np.pi, rtol=0, atol=1e-6):
            worst = int(np.argmax(np.abs(covered - 2 * np.pi)))
            raise InputError(
                expected=f"rings of radius {length:.4g} covered once by the triangles",
                found=f"{covered[worst] / (2 * np.pi):.3f} of the ring around point {worst}"
                f" of {source.label}",
                remedy="take a smaller radius, or repair the mesh (closed, no folded triangles)",
            )
    keys = rows[pair, None] * source.n_points + triangles[tris[pair]]
    spread = np.zeros((values.size // values.shape[-1], n_rings, values.shape[-1]), dtype=complex)
    spread[:, ring] = values.reshape(-1, values.shape[-1])
    return keys.ravel(), spread


def _centre_weights(
    charts: FloatArray, rows: IntArray, max_frequency: int
) -> tuple[IntArray, ComplexArray]:
    """Barycentric weights of the centres themselves: one triangle each, frequency 0 only."""
    weights = charts[:, :, 0] / charts[:, :, 0].sum(axis=-1, keepdims=True)
    inside = np.where(charts[:, :, 0].sum(axis=-1) > 0, weights.min(axis=-1), -np.inf)
    order = np.lexsort((-inside, rows))
    pair = order[np.unique(rows[order], return_index=True)[1]]  # best triangle of each row
    values = np.zeros((len(pair), 3, max_frequency + 1), dtype=complex)
    values[:, :, 0] = np.where(np.abs(weights[pair]) < 1e-12, 0.0, weights[pair])
    return pair, values


def split_arcs(charts: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Arcs of each ring inside each triangle.

    The corner weight a + b cos(theta) + c sin(theta) vanishes where the ring crosses the
    opposite edge: theta = atan2(c, b) +- arccos(-a / hypot(b, c)).

    Parameters
    ----------
    charts : (k, 3, 3) array
        From `Grid.ring_charts`.

    Returns
    -------
    pair : (a,) int array
        Which of the k rings and triangles each arc belongs to.
    start, end : (a,) array
        Angles, start < end, none longer than 60 degrees.
    """
    a, b, c = charts[..., 0], charts[..., 1], charts[..., 2]
    amplitude, phase = np.hypot(b, c), np.arctan2(c, b)
    crosses = np.abs(a) < amplitude
    half = np.arccos(np.clip(-a / np.where(amplitude > 0, amplitude, 1.0), -1, 1))
    cuts = np.concatenate([phase - half, phase + half], axis=1)
    valid = np.concatenate([crosses, crosses], axis=1)
    # Missing cuts repeat an existing one (an arc of length 0); a ring with none is one arc.
    first = np.take_along_axis(cuts, np.argmax(valid, axis=1)[:, None], axis=1)
    cuts = np.where(valid, cuts, np.where(np.any(valid, axis=1, keepdims=True), first, 0.0))
    cuts = np.sort(np.mod(cuts, 2 * np.pi), axis=1)  # (k, 6)
    ends = np.concatenate([cuts[:, 1:], cuts[:, :1] + 2 * np.pi], axis=1)
    middle = (cuts + ends) / 2
    at_middle = np.stack([np.ones_like(middle), np.cos(middle), np.sin(middle)], axis=1)
    smallest: FloatArray = np.min(charts @ at_middle, axis=1)
    pair, which = np.nonzero((smallest > 0) & (ends - cuts > 1e-14))
    start, end = cuts[pair, which], ends[pair, which]
    pieces = np.ceil((end - start) / _LONGEST_ARC - 1e-9).astype(int).clip(min=1)
    step = np.repeat((end - start) / pieces, pieces)
    index = np.arange(len(step)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = np.repeat(start, pieces) + index * step
    return np.repeat(pair, pieces), start, start + step


def _integrate_arcs(
    charts: FloatArray, start: FloatArray, end: FloatArray, max_frequency: int, n_nodes: int
) -> ComplexArray:
    """1/(2 pi) int over each arc of w_i(theta) exp(i f theta), Gauss-Legendre.

    Returns
    -------
    (a, 3, F + 1) array
    """
    x, gauss = np.polynomial.legendre.leggauss(n_nodes)
    frequencies = np.arange(max_frequency + 1)
    values = np.empty((len(charts), 3, max_frequency + 1), dtype=complex)
    step = max(1, _CHUNK_VALUES // (n_nodes * (3 + max_frequency)))
    for i in range(0, len(charts), step):
        part = slice(i, i + step)
        half = (end[part] - start[part])[:, None] / 2
        theta = (start[part] + end[part])[:, None] / 2 + half * x  # (a, nodes)
        trig = np.stack([np.ones_like(theta), np.cos(theta), np.sin(theta)], axis=1)
        w = charts[part] @ trig  # (a, 3, nodes)
        w *= (half * gauss / (2 * np.pi) / w.sum(axis=1))[:, None]
        turn = trig[:, 1] + 1j * trig[:, 2]
        waves = turn[..., None] ** frequencies  # (a, nodes, F + 1)
        values[part] = w @ waves
    return values
