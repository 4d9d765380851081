r"""Orientation distribution functions from samples on the sphere, by DIPY.

The constant solid angle ODF (Aganj et al. 2010) needs one shell over b0:

.. math:: \psi(u) = \frac{1}{4\pi} + \frac{1}{16\pi^2} FRT\{\nabla_b^2 \ln(-\ln S(g)/S_0)\}(u)

Here :math:`S/S_0` are the HEALPix samples of a voxel, whatever directions were measured. Maxima
are counted on the HEALPix grid itself: 15 degrees apart at nside 4, enough to tell one bundle of
fibres from two.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.sphere.resampling import distinct_directions, expand, healpix_points

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HIGHEST_ORDER = 6
_SMOOTH = 0.006
PEAK_SHARE = 0.5
"""A maximum lower than this share of the highest, both above the minimum, is no second fibre."""


def harmonic_order(nside: int) -> int:
    """Return the highest even order whose coefficients the samples determine, at most 6."""
    points = 6 * nside**2
    orders = [n for n in range(2, _HIGHEST_ORDER + 1, 2) if (n + 1) * (n + 2) // 2 <= points]
    return max(orders, default=0)


def orientation_functions(
    samples: NDArray[np.floating[Any]],
    directions: NDArray[np.floating[Any]],
    *,
    nside: int,
    b_value: float,
) -> NDArray[np.float32]:
    """Evaluate the ODF of voxels along any directions.

    Parameters
    ----------
    samples : (voxels, 6 nside^2) array
        S/b0 at the distinct HEALPix points.
    directions : (n, 3) array
        In the frame of the HEALPix points.
    nside : int
    b_value : float
        s/mm².

    Returns
    -------
    odf : (voxels, n) array
        Per steradian.
    """
    from dipy.core.gradients import gradient_table
    from dipy.core.sphere import Sphere
    from dipy.reconst.shm import CsaOdfModel

    points = distinct_directions(nside)
    table = gradient_table(
        np.array([0.0, *[b_value] * len(points)]), bvecs=np.vstack([np.zeros(3), points])
    )
    data = np.concatenate([np.ones((len(samples), 1)), np.clip(samples, 1e-3, 0.999)], axis=1)
    with warnings.catch_warnings():
        # Which of two bases holds the coefficients does not matter: they are never seen.
        warnings.filterwarnings("ignore", message="The legacy descoteaux07 SH basis")
        model = CsaOdfModel(table, harmonic_order(nside), smooth=_SMOOTH)
        odf = model.fit(data).odf(Sphere(xyz=np.asarray(directions, dtype=np.float64)))
    return np.asarray(odf, dtype=np.float32)


def count_fibres(odf: NDArray[np.floating[Any]], nside: int) -> NDArray[np.intp]:
    """Count the clear maxima of ODFs on the HEALPix grid.

    Parameters
    ----------
    odf : (voxels, 6 nside^2) array
        At the distinct HEALPix points.
    nside : int

    Returns
    -------
    count : (voxels,) array of int
        Opposite maxima count as one.
    """
    import healpy

    every = expand(odf, nside)  # (voxels, 12 nside^2)
    pixels = np.arange(every.shape[1])
    neighbours = healpy.get_all_neighbours(nside, pixels, nest=True)  # (8, points), -1 for none
    peak = np.ones(every.shape, bool)
    for around in neighbours:
        peak &= (every >= every[:, around]) | (around < 0)
    low, high = every.min(axis=1, keepdims=True), every.max(axis=1, keepdims=True)
    peak &= every - low >= PEAK_SHARE * (high - low)
    # Plateaus of two pixels are rare and count twice at most; of opposite pixels one is kept.
    half = healpix_points(nside) @ np.array([1.0, 1e-3, 1e-6]) > 0
    return np.asarray(np.sum(peak[:, half] & (high > low), axis=1))
