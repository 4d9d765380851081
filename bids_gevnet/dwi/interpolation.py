r"""One interpolation from raw volumes to a target grid.

Volume k is pulled through the whole chain at once: with A the voxel-to-world affine of the scan,
B that of the target and :math:`T_k` the world transform of volume k to the target (motion, then
the affine to MNI), target voxel v takes the value at scan voxel :math:`A^{-1} T_k^{-1} B v`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

ORDER = 3
"""Cubic splines: linear interpolation smooths by up to half a voxel and lowers the noise where
voxels happen to fall between others, which looks like anatomy to a network."""


def resample_volume(
    volume: NDArray[Any],
    affine: NDArray[np.float64],
    to_target: NDArray[np.float64],
    target_shape: tuple[int, int, int],
    target_affine: NDArray[np.float64],
    *,
    order: int = ORDER,
) -> NDArray[np.float32]:
    """Interpolate one volume on a target grid.

    Parameters
    ----------
    volume : (X, Y, Z) array
    affine : (4, 4) array
        Voxel to world of the volume.
    to_target : (4, 4) array
        World of the volume to world of the target, mm.
    target_shape : (int, int, int)
    target_affine : (4, 4) array
        Voxel to world of the target.
    order : int
        0 for masks (nearest voxel), 1 linear, 3 cubic spline.

    Returns
    -------
    resampled : (X', Y', Z') array of float32
        0 outside the volume.
    """
    from scipy.ndimage import affine_transform

    pull = np.linalg.inv(to_target @ affine) @ target_affine
    # Axes of one voxel carry no spline, and none is needed along them.
    usable_order = min(order, 1) if min(volume.shape) < 4 else order
    result = affine_transform(
        np.asarray(volume, dtype=np.float32),
        pull[:3, :3],
        pull[:3, 3],
        output_shape=target_shape,
        output=np.float32,
        order=usable_order,
        mode="constant",
        cval=0.0,
    )
    return np.asarray(result)


def resample_series(
    data: NDArray[Any],
    affine: NDArray[np.float64],
    to_target: ArrayLike,
    target_shape: tuple[int, int, int],
    target_affine: NDArray[np.float64],
    *,
    order: int = ORDER,
    n_threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Interpolate a series on a target grid, volume by volume.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        Of any type; one volume per thread is in memory as float at a time, so this may be a
        memory map.
    affine : (4, 4) array
    to_target : (4, 4) or (n, 4, 4) array
        World transforms to the target, for instance ``dwi_to_mni @ transforms``.
    target_shape : (int, int, int)
    target_affine : (4, 4) array
    order : int
    n_threads : int
        The result does not depend on it.
    out : (X', Y', Z', n) array of float32, optional

    Returns
    -------
    resampled : (X', Y', Z', n) array of float32
        Values are never negative: cubic splines overshoot at edges, magnitude images do not.
    """
    count = data.shape[3]
    chain = np.broadcast_to(np.asarray(to_target, dtype=np.float64), (count, 4, 4))
    result = np.empty((*target_shape, count), np.float32) if out is None else out

    def fill(k: int) -> None:
        volume = resample_volume(
            data[..., k], affine, chain[k], target_shape, target_affine, order=order
        )
        np.maximum(volume, 0, out=result[..., k])

    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        list(pool.map(fill, range(count)))
    return result


def coarsen(
    volume: NDArray[Any], affine: NDArray[np.float64], voxel_mm: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Smooth and resample a volume to isotropic voxels for registration.

    Parameters
    ----------
    volume : (X, Y, Z) array
    affine : (4, 4) array
        Axis-aligned or not; the axes are kept.
    voxel_mm : float
        Finer axes are brought to this size, coarser ones too (by linear interpolation).

    Returns
    -------
    coarse : (X', Y', Z') array of float32
    affine : (4, 4) array
    """
    from scipy.ndimage import gaussian_filter

    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    # Width at half height that is wanted, less what the voxel itself has.
    sigma = np.sqrt(np.maximum(voxel_mm**2 - sizes**2, 0)) / 2.355 / sizes
    smooth = gaussian_filter(np.asarray(volume, dtype=np.float32), sigma)
    extent = np.asarray(volume.shape) * sizes
    shape = np.maximum(np.ceil(extent / voxel_mm), 1).astype(int)
    coarse_affine = np.eye(4)
    coarse_affine[:3, :3] = affine[:3, :3] / sizes * voxel_mm
    centre = affine @ np.append((np.asarray(volume.shape) - 1) / 2, 1)
    coarse_affine[:3, 3] = centre[:3] - coarse_affine[:3, :3] @ ((shape - 1) / 2)
    target = (int(shape[0]), int(shape[1]), int(shape[2]))
    coarse = resample_volume(smooth, affine, np.eye(4), target, coarse_affine, order=1)
    return coarse, coarse_affine
