"""What a scan saw: the share of the template's brain, and the voxels that left the field of view.

Resampling reads zero outside of the volume, and scanners write zero where they measured nothing.
Such a zero is no signal: a tensor or a sphere fitted to it would show a fibre that is not there.
A voxel without data in some volume is left out of masks and fits, and a volume without data in
most of the brain (a *lost* volume) is left out as a whole, so that it takes no voxel with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 0.5
"""Share of the brain in which a volume must have data, or it is lost."""


@dataclass(frozen=True)
class Seen:
    """Where a series has data.

    Attributes
    ----------
    mask : (X, Y, Z) array of bool
        Voxels of the brain with data in every volume that is not lost.
    volumes : (n,) array of bool
        Volumes that are not lost.
    """

    mask: NDArray[np.bool_]
    volumes: NDArray[np.bool_]


def see_brain(brain: NDArray[np.bool_], data: NDArray[np.floating[Any]]) -> Seen:
    """Tell where a series has data in the brain.

    Parameters
    ----------
    brain : (X, Y, Z) array of bool
    data : (X, Y, Z, n) array
        May be a memory map: it is read volume by volume.

    Returns
    -------
    seen : Seen
    """
    usable = usable_volumes(brain, data)
    count = volumes_without_data(data, np.flatnonzero(usable))
    return Seen(brain & (count == 0), usable)


def usable_volumes(brain: NDArray[np.bool_], data: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Tell which volumes have data in most of the brain, (n,) array of bool.

    Parameters
    ----------
    brain : (X, Y, Z) array of bool
    data : (X, Y, Z, n) array
    """
    filled = [np.count_nonzero(data[..., k][brain] > 0) for k in range(data.shape[3])]
    return np.array(filled) >= _MOST * np.count_nonzero(brain)


def complete_part(
    signal: NDArray[np.floating[Any]],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which part of the measurements of some voxels a fit can rely on.

    Parameters
    ----------
    signal : (v, n) array
        0 where a voxel has no data.

    Returns
    -------
    voxels : (v,) array of bool
        Those with data in every volume of the next.
    volumes : (n,) array of bool
        Those with data in most voxels.
    """
    measured = np.asarray(signal) > 0
    volumes = measured.mean(axis=0) >= _MOST if len(measured) else np.ones(signal.shape[1], bool)
    return np.asarray(measured[:, volumes].all(axis=1)), np.asarray(volumes)


def volumes_without_data(
    data: NDArray[np.floating[Any]], volumes: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Count the volumes in which each voxel has no data, because it left the field of view.

    Resampling gives zero outside the volume that was read. A zero inside the head may also be an
    overshoot that was cut off; what left the field of view hangs together with the rim of the
    grid.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        Resampled volumes; may be a memory map.
    volumes : (k,) array of int, optional
        Those to look at; all by default.

    Returns
    -------
    count : (X, Y, Z) array of int
    """
    from scipy.ndimage import binary_propagation

    shape = data.shape[:3]
    rim = np.ones(shape, bool)
    rim[1:-1, 1:-1, 1:-1] = False
    count = np.zeros(shape, np.intp)
    for k in range(data.shape[3]) if volumes is None else volumes:
        empty = np.asarray(data[..., k]) <= 0
        count += binary_propagation(rim & empty, mask=empty)
    return count


def coverage(
    shape: tuple[int, int, int],
    affine: NDArray[np.float64],
    to_template: NDArray[np.float64],
    brain: NDArray[np.bool_],
    brain_affine: NDArray[np.float64],
) -> float:
    """Return the share of the template's brain that lies in the field of view of a scan.

    Parameters
    ----------
    shape, affine
        Grid of the scan: (int, int, int) and its (4, 4) voxel to world.
    to_template : (4, 4) array
        World of the scan to world of the template, mm.
    brain : (X, Y, Z) array of bool
        Of the template.
    brain_affine : (4, 4) array

    Returns
    -------
    share : float
        From 0 to 1; voxels count with their centre.
    """
    points = np.argwhere(brain)
    pull = np.linalg.inv(to_template @ affine) @ brain_affine
    seen = points @ pull[:3, :3].T + pull[:3, 3]
    inside = np.all((seen >= -0.5) & (seen <= np.array(shape) - 0.5), axis=1)
    return float(inside.mean()) if len(points) else 0.0
