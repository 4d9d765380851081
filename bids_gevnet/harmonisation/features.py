r"""What the harmonisation model sees of a scan: the logarithm of smoothed RISH maps.

.. math:: y_l(v) = \log \frac{(G * M \cdot \mathrm{RISH}_l)(v)}{(G * M)(v)}

with M the brain mask and G a Gaussian (``fwhm_mm`` wide). Smoothing inside the mask comes before
the logarithm: the logarithm of an energy near zero is mostly noise, that of the mean energy
around a voxel is not, and smoothing the data of a linear model is the same as smoothing its
coefficients, so the model's own standard errors are right for the smooth maps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.harmonisation.rish import DEGREES, rish_features
from bids_gevnet.sphere.harmonics import LMAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

FWHM_MM = 10.0
_FLOOR = 1e-9  # energy of a signal of about 1e-5: far below any noise
_ENOUGH = 0.05  # part of the window inside the mask below which there is nothing to average


def fit_limits(nside: int) -> tuple[int, tuple[int, ...]]:
    """Return the highest degree to fit and the degrees to harmonise on a HEALPix grid.

    There are (l + 1)(l + 2) / 2 harmonics of even degree up to l, and 6 nside^2 distinct points.
    """
    points = 6 * nside**2
    lmax = max(d for d in range(0, LMAX + 1, 2) if (d + 1) * (d + 2) // 2 <= points)
    return lmax, tuple(degree for degree in DEGREES if degree <= lmax)


def log_rish_maps(
    samples: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    *,
    voxel_mm: float,
    nside: int = 4,
    fwhm_mm: float = FWHM_MM,
) -> NDArray[np.float32]:
    """Return the logarithm of the smoothed RISH maps.

    Parameters
    ----------
    samples : (n_voxels, n_shells * 6 nside^2) array
        S/b0 at the voxels of the mask, in the order of ``mask.nonzero()``.
    mask : (X, Y, Z) bool array
    voxel_mm : float
    nside : int
    fwhm_mm : float
        0 leaves the maps as they are.

    Returns
    -------
    maps : (X, Y, Z, n_shells * n_degrees) array of float32
        Degrees 0, 2, ... as `fit_limits` gives them, shell after shell; NaN where too little
        brain is near.
    """
    lmax, degrees = fit_limits(nside)
    inside = rish_features(samples, nside=nside, degrees=degrees, lmax=lmax)
    energy = np.zeros((*mask.shape, inside.shape[1]), np.float32)
    energy[mask] = inside
    weight = mask.astype(np.float32)
    if fwhm_mm > 0:
        sigma = fwhm_mm / voxel_mm / np.sqrt(8 * np.log(2))
        weight = _smooth(weight, sigma)
        for number in range(energy.shape[-1]):
            energy[..., number] = _smooth(energy[..., number], sigma)
    maps: NDArray[np.float32] = np.full(energy.shape, np.nan, np.float32)
    near = weight > _ENOUGH
    maps[near] = np.log(np.maximum(energy[near] / weight[near, None], _FLOOR))
    return maps


def _smooth(image: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    from scipy import ndimage

    smooth: NDArray[np.float32] = ndimage.gaussian_filter(
        image, sigma, mode="constant", truncate=3.0
    )
    return smooth
