r"""Brain mask of a diffusion scan without FSL.

The geometric mean :math:`b_0^{3/4} \bar S^{1/4}` of the mean b0 and the mean diffusion-weighted
volume (code: ``contrast``) darkens eyes and other free water, which are bright in b0, and the
scalp, which keeps its signal less than brain does; smoothed to 3 mm it is cut at 0.7 of Otsu's
threshold. Bridges to scalp and eyes are cut by an erosion, the largest piece is grown back, gaps
between gyri are closed and holes filled.

Erosion, growth and closing are by balls with radii in mm, through exact Euclidean distances, so
that the result does not depend on the voxel size or its shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMOOTHING_MM = 3.0
OTSU_FACTOR = 0.7
"""Otsu's threshold halves brain and background; grey matter at the rim, half out of the voxel, is
darker. This agrees best with bet and with dwi2mask at once."""

BRIDGE_MM = 5.0
GAP_MM = 8.0
DWI_WEIGHT = 0.25
_SMALLEST_ML = 100.0
"""A brain, even an infant's or one cut by the field of view, is larger."""


def brain_mask(
    b0: NDArray[np.floating[Any]],
    affine: NDArray[np.float64],
    mean_dwi: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.bool_]:
    """Return the brain mask.

    Parameters
    ----------
    b0 : (X, Y, Z) array
        Mean b0.
    affine : (4, 4) array
    mean_dwi : (X, Y, Z) array, optional
        Mean of the diffusion-weighted volumes of one shell.

    Returns
    -------
    mask : (X, Y, Z) array of bool

    Examples
    --------
    >>> from bids_gevnet.phantom import simulate
    >>> scan = simulate(voxel_mm=6, directions=6)
    >>> mask = brain_mask(scan.data[..., 0], scan.affine)
    >>> bool(dice(mask, scan.truth.mask) > 0.8)
    True
    """
    from scipy.ndimage import binary_fill_holes

    sizes = voxel_sizes(affine)
    rough = _threshold(_contrast(b0, mean_dwi), sizes)
    core = _largest_piece(_distance_inside(rough, sizes) > BRIDGE_MM)
    brain = _grow(core, sizes, BRIDGE_MM) & rough
    closed: NDArray[np.bool_] = binary_fill_holes(_close(brain, sizes, GAP_MM))
    volume_ml = float(closed.sum() * np.prod(sizes) / 1000)
    if volume_ml < _SMALLEST_ML:
        raise ParticipantError(
            expected=f"a brain of more than {_SMALLEST_ML:.0f} ml",
            found=f"a mask of {volume_ml:.0f} ml",
            remedy="look at the b0: the scan may be empty, cut, or not of a head; otherwise "
            "give a mask by another tool (--masking bet)",
        )
    return closed


def head_mask(
    contrast: NDArray[np.floating[Any]], affine: NDArray[np.float64], grow_mm: float = 8.0
) -> NDArray[np.bool_]:
    """Return where there is signal, grown by some mm: where a registration should look.

    Parameters
    ----------
    contrast : (X, Y, Z) array
    affine : (4, 4) array
    grow_mm : float

    Returns
    -------
    mask : (X, Y, Z) array of bool
    """
    sizes = voxel_sizes(affine)
    return grow_mask(_threshold(np.asarray(contrast, dtype=np.float32), sizes), affine, grow_mm)


def grow_mask(
    mask: NDArray[np.bool_], affine: NDArray[np.float64], radius_mm: float
) -> NDArray[np.bool_]:
    """Return a mask grown by a ball.

    Parameters
    ----------
    mask : (X, Y, Z) array of bool
    affine : (4, 4) array
    radius_mm : float

    Returns
    -------
    grown : (X, Y, Z) array of bool
    """
    return _grow(mask, voxel_sizes(affine), radius_mm)


def _contrast(
    b0: NDArray[np.floating[Any]], mean_dwi: NDArray[np.floating[Any]] | None
) -> NDArray[np.float32]:
    base = np.maximum(np.nan_to_num(b0, posinf=0), 0).astype(np.float32)
    if mean_dwi is None:
        return np.asarray(base)
    weighted = np.maximum(np.nan_to_num(mean_dwi, posinf=0), 0).astype(np.float32)
    return np.asarray(base ** (1 - DWI_WEIGHT) * weighted**DWI_WEIGHT)


def _threshold(contrast: NDArray[np.float32], sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
    from dipy.segment.threshold import otsu
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(contrast, SMOOTHING_MM / 2.355 / sizes)
    # A few very bright voxels (vessels, ghosts) would stretch the histogram.
    smooth = np.minimum(smooth, np.percentile(smooth, 99.5))
    # After an interpolation the same value differs by rounding.
    if smooth.max() - smooth.min() <= 1e-5 * abs(smooth.max()):
        raise ParticipantError(
            expected="a b0 with a head in it",
            found="the same value everywhere",
            remedy="look at the scan and leave it out if it is empty",
        )
    return np.asarray(smooth > OTSU_FACTOR * otsu(smooth))


def _distance_inside(mask: NDArray[np.bool_], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.ndimage import distance_transform_edt

    # Beyond the field of view the head goes on: only what is seen as background counts, unless
    # nothing is.
    if mask.all():
        return np.full(mask.shape, np.inf)
    return np.asarray(distance_transform_edt(mask, sampling=sizes))


def _grow(
    mask: NDArray[np.bool_], sizes: NDArray[np.float64], radius_mm: float
) -> NDArray[np.bool_]:
    return np.asarray(_distance_inside(~mask, sizes) <= radius_mm)


def _close(
    mask: NDArray[np.bool_], sizes: NDArray[np.float64], radius_mm: float
) -> NDArray[np.bool_]:
    margin = [(width, width) for width in (np.ceil(radius_mm / sizes).astype(int) + 1).tolist()]
    grown = _grow(np.pad(mask, margin), sizes, radius_mm)
    closed = _distance_inside(grown, sizes) > radius_mm
    inner = tuple(slice(low, -high) for low, high in margin)
    return np.asarray(closed[inner] | mask)


def _largest_piece(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    from scipy.ndimage import label

    pieces, count = label(mask)
    if count == 0:
        return mask
    return np.asarray(pieces == 1 + np.argmax(np.bincount(pieces.ravel())[1:]))


def dice(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Return the Dice overlap of two masks; 1 when both are empty."""
    total = int(first.sum()) + int(second.sum())
    return 2.0 * int(np.sum(first & second)) / total if total else 1.0
