r"""Rotation invariant features: the energy of each degree of the diffusion signal.

.. math:: \mathrm{RISH}_l = \sum_{m=-l}^{l} |c_{lm}|^2

with :math:`c_{lm}` the real spherical harmonic coefficients of S/b0. On the distinct HEALPix
samples x (the code's ``samples``), :math:`c = A x` with the fixed matrix A of
:func:`bids_gevnet.sphere.harmonics.analysis_matrix`; so a map is one product, one square and one
sum. Equivalently :math:`\mathrm{RISH}_l = \int (P_l x)^2` over the sphere, with :math:`P_l` the
projector on degree l. A constant signal s has RISH_0 = 4 pi s^2 and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.harmonics import LMAX, analysis_matrix, even_degrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEGREES = (0, 2, 4, 6)
"""Degrees that are mapped: above 6 there is more noise than signal at b of 1000 to 3000."""

_CHUNK = 16384  # voxels at a time: bounds the memory of the coefficients


def rish_features(
    samples: NDArray[np.floating[Any]],
    *,
    nside: int = 4,
    degrees: tuple[int, ...] = DEGREES,
    lmax: int = LMAX,
) -> NDArray[np.float32]:
    """Return the energy of each degree at each voxel.

    Parameters
    ----------
    samples : (..., n_shells * 6 nside^2) array
        S/b0 at the distinct HEALPix points, shell after shell.
    nside : int
    degrees : tuple of int
        Even degrees up to ``lmax``.
    lmax : int
        Highest degree in the fit.

    Returns
    -------
    features : (..., n_shells * n_degrees) array of float32
        All degrees of the first shell, then of the next.

    Examples
    --------
    >>> constant = rish_features(np.ones((1, 96)))
    >>> bool(np.allclose(constant, [[4 * np.pi, 0, 0, 0]], atol=1e-5))
    True
    """
    matrix = analysis_matrix(nside, lmax)
    shells, rest = divmod(samples.shape[-1], matrix.shape[1])
    if rest or not shells:
        raise InputError(
            expected=f"{matrix.shape[1]} distinct samples per voxel and shell (nside {nside})",
            found=f"{samples.shape[-1]}",
            remedy="resample to this nside first",
        )
    column_degree = even_degrees(lmax)
    missing = [degree for degree in degrees if degree not in column_degree]
    if missing:
        raise InputError(
            expected=f"even degrees from 0 to {lmax}",
            found=", ".join(map(str, missing)),
            remedy="leave these degrees out or raise lmax",
        )
    wanted = np.isin(column_degree, degrees)
    operator = np.ascontiguousarray(matrix[wanted].T, dtype=np.float32)  # (points, coefficients)
    membership = np.equal.outer(column_degree[wanted], np.asarray(degrees)).astype(np.float32)
    flat = samples.reshape(-1, matrix.shape[1])  # (voxels * shells, points)
    features = np.empty((len(flat), len(degrees)), np.float32)
    for start in range(0, len(flat), _CHUNK):
        piece = slice(start, start + _CHUNK)
        coefficients = flat[piece].astype(np.float32, copy=False) @ operator
        features[piece] = np.square(coefficients) @ membership
    return features.reshape(*samples.shape[:-1], shells * len(degrees))
