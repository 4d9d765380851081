r"""Brain mask of a diffusion scan without FSL.

The geometric mean :math:`b_0^{3/4} \bar S^{1/4}` of the mean b0 and the mean diffusion-weighted
volume (code: ``contrast``) darkens eyes and other free water, which are bright in b0, and the
scalp, which keeps its signal less than brain does; smoothed to 3 mm it is cut at 0.7 of Otsu's
threshold. Bridges to scalp and eyes are cut by an erosion, the largest piece is grown back, gaps
between gyri are closed and holes filled.

Once the scan is registered the template's brain tells more (`refine_mask`): what lies deep inside
of it is brain however dark it is, and what lies far outside (the cord, the eyes) is not. Between
the two the threshold decides, on the contrast without its shading.

Erosion, growth and closing are by balls with radii in mm, through exact Euclidean distances, so
that the result does not depend on the voxel size or its shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.shading import estimate_shading
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
HEAD_FACTOR = 0.3
"""Of Otsu's threshold: where there is a head at all, bright or dark."""

CERTAIN_MM = 8.0
"""As deep inside the template's brain a voxel is brain: more than an affine registration errs."""

REACH_MM = 8.0
"""As far beyond the template's brain a voxel can be brain."""

_SMALLEST_ML = 100.0
"""A brain, even an infant's or one cut by the field of view, is larger."""


_THINNEST_MM = 20.0
"""Even a slab of a brain is wider than that within its slices."""


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
    sizes = voxel_sizes(affine)
    return _shape_brain(_threshold(_contrast(b0, mean_dwi), sizes), sizes)


def refine_mask(
    b0: NDArray[np.floating[Any]],
    affine: NDArray[np.float64],
    prior: NDArray[np.bool_],
    mean_dwi: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.bool_]:
    """Return the brain mask of a scan that has been registered to the template.

    Parameters
    ----------
    b0 : (X, Y, Z) array
        Mean b0.
    affine : (4, 4) array
    prior : (X, Y, Z) array of bool
        The template's brain in the space of the scan.
    mean_dwi : (X, Y, Z) array, optional
        Mean of the diffusion-weighted volumes of one shell.

    Returns
    -------
    mask : (X, Y, Z) array of bool
    """
    sizes = voxel_sizes(affine)
    contrast = _contrast(b0, mean_dwi)
    depth_mm = _distance_inside(prior, sizes) - _distance_inside(~prior, sizes)
    flat = contrast / estimate_shading(contrast, affine, prior & (contrast > 0))
    rough = _threshold(flat, sizes) & (depth_mm > -REACH_MM)
    certain = (depth_mm > CERTAIN_MM) & (contrast > 0)
    return _shape_brain(rough | certain, sizes)


def shading_of_head(
    b0: NDArray[np.floating[Any]],
    affine: NDArray[np.float64],
    mean_dwi: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.float32]:
    """Return the shading of a head, for which no brain mask is needed.

    Parameters
    ----------
    b0 : (X, Y, Z) array
    affine : (4, 4) array
    mean_dwi : (X, Y, Z) array, optional

    Returns
    -------
    shading : (X, Y, Z) array of float32
        Divide ``b0`` and ``mean_dwi`` by it.
    """
    contrast = _contrast(b0, mean_dwi)
    head = _threshold(contrast, voxel_sizes(affine), HEAD_FACTOR)
    return estimate_shading(contrast, affine, head)


def _shape_brain(rough: NDArray[np.bool_], sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Cut bridges, keep the largest piece, close gaps and fill holes."""
    from scipy.ndimage import binary_fill_holes

    depth_mm = _distance_inside(rough, sizes)
    core = _largest_piece(depth_mm > BRIDGE_MM)
    brain = _grow(core, sizes, BRIDGE_MM) & rough
    closed: NDArray[np.bool_] = binary_fill_holes(_close(brain, sizes, GAP_MM))
    volume_ml = float(closed.sum() * np.prod(sizes) / 1000)
    if volume_ml < _SMALLEST_ML:
        raise _no_brain(volume_ml, 2 * float(depth_mm.max()))
    return closed


def _no_brain(volume_ml: float, thickness_mm: float) -> ParticipantError:
    expected = f"a brain of more than {_SMALLEST_ML:.0f} ml"
    if thickness_mm < _THINNEST_MM:
        return ParticipantError(
            expected=expected,
            found=f"nothing bright in the b0 that is thicker than {thickness_mm:.0f} mm",
            remedy="look at the b0: bars, rings or specks show a test object or noise, not a "
            "head. Leave the scan out (--exclude-participant-label)",
        )
    return ParticipantError(
        expected=expected,
        found=f"a mask of {volume_ml:.0f} ml",
        remedy="look at the b0: the scan may be empty, cut, or not of a head; otherwise give a "
        "mask by another tool (--masking bet)",
    )


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


def _threshold(
    contrast: NDArray[np.float32], sizes: NDArray[np.float64], factor: float = OTSU_FACTOR
) -> NDArray[np.bool_]:
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
    return np.asarray(smooth > factor * otsu(smooth))


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
