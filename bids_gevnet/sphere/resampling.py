r"""From any gradient scheme to the HEALPix grid, as one matrix per gradient table.

A spherical RBF interpolant through the signal :math:`s_k` measured along :math:`g_k` is

.. math:: f(x) = \sum_k a_k \phi(|x - g_k|) + c_0 + c \cdot x, \qquad \phi(r) = r^2 \log r,

where :math:`(K + \lambda I) a + P c = s`, :math:`P^T a = 0`. It is linear in :math:`s`, so
evaluating it at fixed points is a matrix that depends on the directions only: one 96 x n
matrix per gradient table, one product per brain.

In the code: :math:`g_k` is ``directions``, :math:`\lambda` is ``smoothing``, the matrix is
``resampling_matrix``. Conventions:

- diffusion is antipodally symmetric, so every sample enters at both :math:`g_k` and
  :math:`-g_k`; the linear term then vanishes and rows sum to one through the constant;
- HEALPix pixels are in NESTED order. With ``nside = 4`` there are 192 pixels and 96 distinct
  directions; of each opposite pair the pixel with the smaller index is stored, in increasing
  order (:func:`distinct_points`); :func:`expand_index` leads back to all 192.

The paper ("spherical (radial basis function) interpolation ... Healpix grid with 192 grid
points", section on the dMRI data) leaves kernel and smoothing open; thin-plate with 0.1 has the
lowest error of the RBF kernels at SNR 20 (``benchmarks/accuracy.py``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError, ParticipantError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_DIRECTIONS = 6
"""Fewer directions do not determine even a diffusion tensor."""

DEFAULT_SMOOTHING = 0.1
DEFAULT_KERNEL = "thin_plate_spline"

# Voxels per product: 16k x (64 + 96) float32 stay in a second-level cache of 1 to 2 MB per core
# to a good part, and a chunk bounds the memory of the conversion to float32.
_CHUNK = 16384


@lru_cache(maxsize=16)
def _healpix_points(nside: int) -> NDArray[np.float64]:
    import healpy

    if nside < 1 or nside & (nside - 1):
        raise InputError(
            expected="an nside that is a power of two (NESTED order needs it)",
            found=f"nside = {nside}",
            remedy="give 1, 2, 4, 8 or 16",
        )
    points = np.stack(healpy.pix2vec(nside, np.arange(12 * nside**2), nest=True), axis=-1)
    points.setflags(write=False)
    return points


def healpix_points(nside: int) -> NDArray[np.float64]:
    """Return the unit vectors of all HEALPix pixel centres in NESTED order.

    Returns
    -------
    points : (12 nside^2, 3) array
    """
    return _healpix_points(nside).copy()


@lru_cache(maxsize=16)
def _antipode(nside: int) -> NDArray[np.intp]:
    import healpy

    opposite = -_healpix_points(nside)
    index: NDArray[np.intp] = np.asarray(
        healpy.vec2pix(nside, *opposite.T, nest=True), dtype=np.intp
    )
    index.setflags(write=False)
    return index


def antipode(nside: int) -> NDArray[np.intp]:
    """Return the index of the pixel opposite to each pixel.

    Returns
    -------
    index : (12 nside^2,) array of int
        ``healpix_points(nside)[index] == -healpix_points(nside)`` to rounding.
    """
    return _antipode(nside).copy()


def distinct_points(nside: int) -> NDArray[np.intp]:
    """Return the pixels that stand for their opposite pair, in increasing order.

    Returns
    -------
    index : (6 nside^2,) array of int
        Pixels whose index is smaller than that of their antipode.
    """
    opposite = _antipode(nside)
    return np.flatnonzero(np.arange(opposite.size) < opposite)


def expand_index(nside: int) -> NDArray[np.intp]:
    """Return, for every pixel, the position of its pair among the distinct points.

    Returns
    -------
    index : (12 nside^2,) array of int
        ``samples[..., expand_index(nside)]`` turns 96 distinct samples into all 192.
    """
    opposite = _antipode(nside)
    representative = np.minimum(np.arange(opposite.size), opposite)
    return np.asarray(np.searchsorted(distinct_points(nside), representative), dtype=np.intp)


def distinct_directions(nside: int) -> NDArray[np.float64]:
    """Return the unit vectors of the distinct points.

    Returns
    -------
    directions : (6 nside^2, 3) array

    Examples
    --------
    >>> distinct_directions(4).shape
    (96, 3)
    """
    return np.asarray(_healpix_points(nside)[distinct_points(nside)])


def _check_directions(directions: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    table = np.asarray(directions, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 3:
        raise InputError(
            expected="gradient directions of shape (n, 3)",
            found=f"shape {table.shape}",
            remedy="transpose the table, or select one shell first",
        )
    norms = np.linalg.norm(table, axis=1)
    if not np.all(np.isfinite(table)) or np.any(norms < 1e-3):
        bad = int(np.sum(~np.isfinite(norms) | (norms < 1e-3)))
        raise InputError(
            expected="finite, non-zero gradient directions",
            found=f"{bad} of {len(table)} that are zero or not finite",
            remedy="leave the b0 volumes out and repair the bvec file",
        )
    table = np.asarray(table / norms[:, None], dtype=np.float64)
    axes = np.linalg.svd(table, compute_uv=False)
    if len(table) < MIN_DIRECTIONS or axes[2] < 1e-3 * axes[0]:
        raise ParticipantError(
            expected=f"at least {MIN_DIRECTIONS} directions that do not lie in one plane",
            found=f"{len(table)} directions, smallest extent {axes[-1] / axes[0]:.2g}",
            remedy="choose another shell with --shell, or leave this scan out",
        )
    return np.asarray(table)


def resampling_matrix(
    directions: NDArray[np.floating[Any]],
    targets: NDArray[np.floating[Any]],
    *,
    smoothing: float = DEFAULT_SMOOTHING,
    kernel: str = DEFAULT_KERNEL,
    epsilon: float | None = None,
) -> NDArray[np.float64]:
    """Return the matrix that takes a signal along ``directions`` to ``targets``.

    Parameters
    ----------
    directions : (n, 3) array
        Gradient directions of one shell; sign and length do not matter. Half-sphere and
        full-sphere schemes and repeated directions are accepted.
    targets : (m, 3) array
        Unit vectors to evaluate at, usually :func:`distinct_directions`.
    smoothing : float
        0 interpolates exactly, and then refuses directions that repeat.
    kernel, epsilon
        As in :class:`scipy.interpolate.RBFInterpolator`.

    Returns
    -------
    matrix : (m, n) array
        Its rows sum to one.

    Examples
    --------
    >>> targets = distinct_directions(2)
    >>> matrix = resampling_matrix(distinct_directions(4), targets)
    >>> matrix.shape, bool(np.allclose(matrix.sum(axis=1), 1))
    ((24, 96), True)
    """
    from scipy.interpolate import RBFInterpolator

    table = _check_directions(directions)
    identity = np.eye(len(table))
    both = np.concatenate([table, -table])
    options: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon}
    try:
        # Fitting the identity gives the response to each unit signal: the columns.
        interpolant = RBFInterpolator(
            both,
            np.concatenate([identity, identity]),
            kernel=kernel,
            smoothing=smoothing,
            degree=1,
            **options,
        )
        matrix: NDArray[np.float64] = interpolant(np.asarray(targets, dtype=np.float64))
    except np.linalg.LinAlgError as error:
        raise ParticipantError(
            expected="gradient directions that differ from each other when smoothing is 0",
            found=f"a singular system for {len(table)} directions ({error})",
            remedy="use a smoothing above 0, for instance 0.1",
        ) from error
    return matrix


def resample(
    signal: NDArray[np.floating[Any]],
    matrix: NDArray[np.floating[Any]],
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Apply a resampling matrix to every voxel, in float32.

    Parameters
    ----------
    signal : (n_voxels, n) array
        S/b0 of one shell.
    matrix : (m, n) array
        From :func:`resampling_matrix`.
    out : (n_voxels, m) array of float32, optional
        Where to write, for instance a memory map.

    Returns
    -------
    samples : (n_voxels, m) array of float32

    Examples
    --------
    >>> matrix = resampling_matrix(distinct_directions(4), distinct_directions(2))
    >>> resample(np.ones((10, 96)), matrix).shape
    (10, 24)
    """
    if signal.ndim != 2 or signal.shape[1] != matrix.shape[1]:
        raise InputError(
            expected=f"a signal of shape (voxels, {matrix.shape[1]})",
            found=f"shape {signal.shape}",
            remedy="select the shell that the matrix was made for",
        )
    operator = np.ascontiguousarray(matrix.T, dtype=np.float32)  # (n, m)
    result = np.empty((len(signal), len(matrix)), np.float32) if out is None else out
    for start in range(0, len(signal), _CHUNK):
        piece = slice(start, start + _CHUNK)
        np.matmul(signal[piece].astype(np.float32, copy=False), operator, out=result[piece])
    return result


def expand(samples: NDArray[Any], nside: int) -> NDArray[Any]:
    """Return all HEALPix samples from the distinct ones.

    Parameters
    ----------
    samples : (..., 6 nside^2) array

    Returns
    -------
    expanded : (..., 12 nside^2) array

    Examples
    --------
    >>> expand(np.zeros((10, 96)), nside=4).shape
    (10, 192)
    """
    return np.asarray(samples[..., expand_index(nside)])
