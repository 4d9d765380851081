r"""A scan in one pose: axes in RAS order, header axis-aligned and centred, nothing interpolated.

The paper's scans were "axis aligned, centered" (pnlNipype). Voxel axes are permuted and flipped
to the nearest RAS order, then the header is replaced by one whose axes lie exactly along the
world axes and whose origin puts the centre of the volume at 0:

.. math:: A_\mathrm{new} = \begin{pmatrix} \mathrm{diag}(z) & -\mathrm{diag}(z)\,(n - 1)/2 \\
          0 & 1 \end{pmatrix}

with voxel sizes z and shape n (code: ``sizes``, ``shape``). What an oblique header held besides
is a rotation of the world; :math:`T = A_\mathrm{new} A_\mathrm{old}^{-1}` (``old_to_new``) keeps
it, and gradients turn by its polar part, so they stay as they were relative to the image. The
T1w of the same session, conformed by its own transform, meets the scan again through both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.gradients import axis_directions, rotate_bvecs, voxel_sizes
from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Conformed:
    """An image in the conformed pose.

    Attributes
    ----------
    data : (X, Y, Z[, n]) array
    affine : (4, 4) array
        Voxel to the new world; positive diagonal.
    bvecs_ras : (n, 3) array or None
        Directions in the new world.
    old_to_new : (4, 4) array
        Points of the old world to points of the new one, mm.
    n_not_finite : int
        NaN and Inf values that were set to 0.
    """

    data: NDArray[Any]
    affine: NDArray[np.float64]
    bvecs_ras: NDArray[np.float64] | None
    old_to_new: NDArray[np.float64]
    n_not_finite: int


def drop_unit_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out axes of length 1 behind the fourth, which some converters add.

    >>> drop_unit_axes((96, 96, 60, 33, 1))
    (96, 96, 60, 33)
    """
    while len(shape) > 4 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def ras_order(affine: ArrayLike) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return which voxel axis runs along R, A and S, and with which sign.

    Returns
    -------
    axes : (int, int, int)
        Voxel axis nearest to world x, y and z.
    signs : (int, int, int)
        -1 where that axis runs towards L, P or I.
    """
    from scipy.optimize import linear_sum_assignment

    directions = axis_directions(affine)
    # Assignment, not the largest entry of each column: at 45 degrees two axes would claim one.
    _, axes = linear_sum_assignment(-np.abs(directions))
    signs = [1 if directions[world, axis] > 0 else -1 for world, axis in enumerate(axes)]
    return (int(axes[0]), int(axes[1]), int(axes[2])), (signs[0], signs[1], signs[2])


def reorder_axes(
    data: NDArray[Any], affine: ArrayLike
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Permute and flip voxel axes to the nearest RAS order; the world stays.

    Parameters
    ----------
    data : (X, Y, Z[, n]) array
    affine : (4, 4) array

    Returns
    -------
    data : (X', Y', Z'[, n]) array
        A view.
    affine : (4, 4) array
        Voxel of the new array to the same world.
    """
    axes, signs = ras_order(affine)
    turned = np.transpose(data, (*axes, *range(3, data.ndim)))
    matrix = np.asarray(affine, dtype=np.float64)
    new = np.eye(4)
    new[:3, 3] = matrix[:3, 3]
    for column, (axis, sign) in enumerate(zip(axes, signs, strict=True)):
        new[:3, column] = sign * matrix[:3, axis]
        if sign < 0:
            turned = np.flip(turned, column)
            new[:3, 3] += matrix[:3, axis] * (turned.shape[column] - 1)
    return turned, new


def centred_affine(shape: tuple[int, ...], sizes_mm: ArrayLike) -> NDArray[np.float64]:
    """Return the axis-aligned affine whose world origin is the centre of the volume.

    Returns
    -------
    affine : (4, 4) array
    """
    sizes = np.asarray(sizes_mm, dtype=np.float64)
    affine = np.diag([*sizes, 1.0])
    affine[:3, 3] = -sizes * (np.asarray(shape[:3]) - 1) / 2
    return affine


def replace_not_finite(data: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Set NaN and Inf to 0 and count them; integers pass as they are.

    Returns
    -------
    data : (...) array
        The same array when everything is finite.
    count : int
    """
    if not np.issubdtype(data.dtype, np.inexact):
        return data, 0
    wrong = ~np.isfinite(data)
    count = int(np.count_nonzero(wrong))
    return (np.where(wrong, np.zeros((), data.dtype), data), count) if count else (data, 0)


def conform(
    data: NDArray[Any], affine: ArrayLike, bvecs_ras: ArrayLike | None = None
) -> Conformed:
    """Bring an image into the conformed pose.

    Parameters
    ----------
    data : (X, Y, Z) or (X, Y, Z, n) array
    affine : (4, 4) array
        Voxel to world RAS.
    bvecs_ras : (n, 3) array, optional
        Directions in the old world
        (:func:`bids_gevnet.dwi.gradients.bvecs_fsl_to_ras` with the old affine).

    Returns
    -------
    conformed : Conformed
    """
    if data.ndim not in {3, 4} or 0 in data.shape:
        raise ParticipantError(
            expected="a 3D volume or a 4D series",
            found=f"an image of shape {data.shape}",
            remedy="convert the scan again, or leave it out",
        )
    turned, ordered = reorder_axes(data, affine)
    cleaned, count = replace_not_finite(np.ascontiguousarray(turned))
    new = centred_affine(cleaned.shape, voxel_sizes(ordered))
    old_to_new = new @ np.linalg.inv(ordered)
    turned_bvecs = None if bvecs_ras is None else rotate_bvecs(bvecs_ras, old_to_new)
    return Conformed(cleaned, new, turned_bvecs, old_to_new, count)
