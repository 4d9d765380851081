"""The head: tissue maps on a regular grid in template space.

White matter, grey matter and the brain mask come with nilearn (no download); cerebrospinal fluid
fills the rest of the mask. Skull and scalp are shells around the mask, up to 7 and
13 mm from it. Maps are blurred to the size of the scanner's voxel, whose signal is an average
over its volume, before they are put on a grid of about half that size.

Atrophy pushes tissue away from the ventricles: what is at y comes from
``c + (1 - a exp(-|(y - c) / s|^4 / 4)) (y - c)``, and a share of the grey matter becomes fluid.
The fourth power leaves the surface of the brain where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

TISSUES = ("white", "grey", "fluid", "skull", "scalp")
HEAD_CENTRE_MM = (0.0, -18.0, 6.0)
_VENTRICLE_CENTRE_MM = (0.0, -8.0, 14.0)
_VENTRICLE_EXTENT_MM = (28.0, 44.0, 24.0)
_RIM_MM = 14.0
_MARGIN_MM = 12.0


@dataclass(frozen=True)
class Head:
    """Volume fractions of the tissues on a grid in template space.

    Parameters
    ----------
    maps : (5, X, Y, Z) array
        In the order of `TISSUES`.
    affine : (4, 4) array
        Grid index to template mm; diagonal.
    occupied : (X, Y, Z) bool array
        Nodes within two of any tissue: further away there is no signal to interpolate.
    """

    maps: NDArray[np.float32]
    affine: NDArray[np.float64]
    occupied: NDArray[np.bool_]

    def points(self) -> NDArray[np.float64]:
        """Template mm of every grid node, (X, Y, Z, 3)."""
        return grid_points(self.maps.shape[1:], self.affine)


def grid_points(shape: tuple[int, ...], affine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Millimetres of every node of a grid with a diagonal affine, (X, Y, Z, 3)."""
    axes = [affine[a, a] * np.arange(n) + affine[a, 3] for a, n in enumerate(shape)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


@lru_cache(maxsize=2)
def load_template(resolution_mm: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Tissue maps of nilearn's template, with fluid, skull and scalp.

    Parameters
    ----------
    resolution_mm : int
        1 or 2.

    Returns
    -------
    maps : (5, X, Y, Z) array
        Sum is at most 1 everywhere; read-only, because it is kept for the next call.
    affine : (4, 4) array
        Index to template mm.
    """
    from nilearn import datasets
    from scipy import ndimage

    # Block means of the 1 mm maps: nilearn's own resampling to 2 mm takes seconds.
    images = [
        load(resolution=1)
        for load in (
            datasets.load_mni152_wm_template,
            datasets.load_mni152_gm_template,
            datasets.load_mni152_brain_mask,
        )
    ]
    white, grey, inside = (
        _block_mean(image.get_fdata(dtype=np.float32), resolution_mm) for image in images
    )
    white, mask = np.clip(white, 0, 1), inside > 0.5
    # The template's field of view ends at the brain; the rim needs room.
    pad = int(np.ceil((_RIM_MM + _MARGIN_MM) / resolution_mm))
    white, grey = np.pad(white, pad), np.pad(grey, pad)
    mask = ndimage.binary_fill_holes(np.pad(mask, pad))
    white = white * mask
    grey = np.clip(grey, 0, 1 - white) * mask
    distance = ndimage.distance_transform_edt(~mask, sampling=resolution_mm)
    maps = np.stack(
        [
            white,
            grey,
            mask - white - grey,
            (distance > 0) & (distance <= 7),
            (distance > 7) & (distance <= 13),
        ]
    ).astype(np.float32)
    affine = np.array(images[0].affine, dtype=np.float64)
    affine[:3, 3] += affine[:3, :3] @ np.full(3, (resolution_mm - 1) / 2)
    affine[:3, :3] *= resolution_mm
    affine[:3, 3] -= affine[:3, :3] @ np.full(3, pad)
    # Nothing but air beyond the scalp: keep what blurring and splines need around it.
    occupied = [np.flatnonzero(maps.any(axis=(0, *others))) for others in ((2, 3), (1, 3), (1, 2))]
    margin = int(np.ceil(_MARGIN_MM / resolution_mm))
    low = [max(0, int(o[0]) - margin) for o in occupied]
    x, y, z = (slice(a, int(o[-1]) + margin + 1) for a, o in zip(low, occupied, strict=True))
    affine[:3, 3] += affine[:3, :3] @ np.array(low)
    maps = np.ascontiguousarray(maps[:, x, y, z])
    maps.flags.writeable = affine.flags.writeable = False
    return maps, affine


def _block_mean(volume: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Mean over cubes of `size` voxels; an incomplete last cube is left out."""
    x, y, z = (n // size for n in volume.shape)
    cubes = volume[: x * size, : y * size, : z * size].reshape(x, size, y, size, z, size)
    mean: NDArray[np.float32] = cubes.mean(axis=(1, 3, 5))
    return mean


@lru_cache(maxsize=4)
def blurred_template(
    voxel_mm: float,
) -> tuple[NDArray[np.float32], NDArray[np.float64], float]:
    """Blur the template to the voxel size; also say how fine a grid it needs.

    Returns
    -------
    maps : (5, X, Y, Z) array
    affine : (4, 4) array
    grid_mm : float
        Half the voxel size, between 1.5 and 4 mm.
    """
    from scipy import ndimage

    resolution = 2 if voxel_mm >= 4 else 1
    maps, affine = load_template(resolution)
    # One voxel of full width at half maximum: what echo-planar imaging has at best. A box of one
    # voxel (0.29) would alias, and no interpolation could then undo even a known motion.
    sigma = 0.425 * voxel_mm / resolution
    blurred = np.stack([ndimage.gaussian_filter(m, sigma, truncate=3.0) for m in maps])
    blurred.flags.writeable = False
    return blurred, affine, float(np.clip(voxel_mm / 2, 1.5, 4))


def atrophy_source(points: Floats, atrophy: float) -> Floats:
    """Where the tissue at `points` was before atrophy.

    Parameters
    ----------
    points : (..., 3) array
        Template mm.
    atrophy : float
        0 for none; the ventricles grow by 1 / (1 - atrophy) along each axis.

    Returns
    -------
    (..., 3) array
        Template mm.
    """
    centre = np.asarray(_VENTRICLE_CENTRE_MM)
    offset = points - centre
    scaled = offset / np.asarray(_VENTRICLE_EXTENT_MM)
    pull = atrophy * np.exp(-0.25 * np.sum(scaled**2, axis=-1, keepdims=True) ** 2)
    source: Floats = centre + (1 - pull) * offset
    return source


def make_head(voxel_mm: float, atrophy: float = 0.0) -> Head:
    """Make the tissue maps of one head.

    Parameters
    ----------
    voxel_mm : float
        Voxel size of the scanner that will see it.
    atrophy : float
        See :func:`atrophy_source`.
    """
    from scipy import ndimage

    template, template_affine, grid_mm = blurred_template(voxel_mm)
    low = template_affine[:3, 3]
    extent = np.diag(template_affine)[:3] * (np.array(template.shape[1:]) - 1)
    shape = tuple(int(n) for n in np.floor(extent / grid_mm) + 1)
    affine = np.diag([grid_mm, grid_mm, grid_mm, 1.0])
    affine[:3, 3] = low
    maps = np.zeros((len(TISSUES), *shape), np.float32)
    source = (atrophy_source(grid_points(shape, affine), atrophy) - low) / np.diag(
        template_affine
    )[:3]
    coordinates = np.moveaxis(source, -1, 0)
    for out, tissue in zip(maps, template, strict=True):
        ndimage.map_coordinates(tissue, coordinates, output=out, order=1)
    lost = maps[1] * np.float32(np.clip(0.4 * atrophy, 0, 0.5))
    maps[1] -= lost
    maps[2] += lost
    occupied = ndimage.binary_dilation(maps.sum(axis=0) > 1e-3, iterations=2)
    return Head(maps, affine, occupied)
