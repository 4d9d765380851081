r"""Gradient tables: FSL's convention, world RAS, and what transforms do to them.

A bvec file holds directions in voxel axes, with the first component negated when the affine has
a positive determinant (FSL stores radiologically). With A the 3 x 3 part of the affine,
:math:`\hat A` the orthogonal matrix nearest to its columns scaled to length 1, and F = diag(-1, 1,
1) if det A > 0, else the identity:

.. math:: g_\mathrm{RAS} = \hat A F g_\mathrm{FSL}.

A point transform x' = M x + t of the image turns directions by the rotation of its polar
decomposition, M = Q P with Q orthogonal and P symmetric positive; for a reflection Q is improper,
which is right, because g and -g are the same measurement. Lengths (b-values) never change.

In the code: g_RAS is ``bvecs_ras``, g_FSL is ``bvecs_fsl``; tables are (n, 3), b0 volumes have a
zero row. World is RAS+ in mm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def polar_rotation(matrix: ArrayLike) -> NDArray[np.float64]:
    """Return the orthogonal factor Q of the polar decomposition M = Q P.

    Parameters
    ----------
    matrix : (..., 3, 3) or (..., 4, 4) array
        Linear or homogeneous transforms.

    Returns
    -------
    rotation : (..., 3, 3) array
        Orthogonal; improper where the transform reflects.
    """
    linear = np.asarray(matrix, dtype=np.float64)[..., :3, :3]
    left, stretch, right = np.linalg.svd(linear)
    if np.any(stretch[..., -1] <= 1e-9 * stretch[..., 0]):
        raise ParticipantError(
            expected="an affine that can be inverted",
            found=f"singular values {np.array2string(stretch, precision=3)}",
            remedy="repair the header of the image",
        )
    return np.asarray(left @ right)


def voxel_sizes(affine: ArrayLike) -> NDArray[np.float64]:
    """Return the voxel size in mm along each voxel axis.

    Returns
    -------
    sizes_mm : (3,) array
    """
    return np.asarray(np.linalg.norm(np.asarray(affine, dtype=np.float64)[:3, :3], axis=0))


def axis_directions(affine: ArrayLike) -> NDArray[np.float64]:
    """Return the world directions of the voxel axes, made orthogonal.

    Returns
    -------
    directions : (3, 3) array
        Column i is the direction of voxel axis i.
    """
    matrix = np.asarray(affine, dtype=np.float64)[:3, :3]
    sizes = voxel_sizes(affine)
    if not np.all(np.isfinite(matrix)) or np.any(sizes <= 0):
        raise ParticipantError(
            expected="an affine with three finite voxel axes",
            found=np.array2string(matrix, precision=3),
            remedy="repair the header of the image",
        )
    return polar_rotation(matrix / sizes)


def _fsl_flip(affine: ArrayLike) -> NDArray[np.float64]:
    positive = np.linalg.det(np.asarray(affine, dtype=np.float64)[:3, :3]) > 0
    return np.array([-1.0 if positive else 1.0, 1.0, 1.0])


def bvecs_fsl_to_ras(bvecs_fsl: ArrayLike, affine: ArrayLike) -> NDArray[np.float64]:
    """Turn directions of a bvec file into world RAS.

    Parameters
    ----------
    bvecs_fsl : (n, 3) array
        Rows as in the bvec file of the image.
    affine : (4, 4) array
        Voxel to world RAS of the same image.

    Returns
    -------
    bvecs_ras : (n, 3) array

    Examples
    --------
    >>> bvecs_fsl_to_ras([[1, 0, 0]], np.diag([2, 2, 2, 1]))  # det > 0: x is flipped
    array([[-1.,  0.,  0.]])
    """
    table = np.asarray(bvecs_fsl, dtype=np.float64)
    return np.asarray((table * _fsl_flip(affine)) @ axis_directions(affine).T)


def bvecs_voxel_to_ras(bvecs_voxel: ArrayLike, affine: ArrayLike) -> NDArray[np.float64]:
    """Turn directions along the voxel axes, without FSL's flip, into world RAS.

    Parameters
    ----------
    bvecs_voxel : (n, 3) array
        As DIPY takes them and QSIPrep writes them.
    affine : (4, 4) array
        Voxel to world RAS of the same image.

    Returns
    -------
    bvecs_ras : (n, 3) array

    Examples
    --------
    >>> bvecs_voxel_to_ras([[1, 0, 0]], np.diag([-2, -2, 2, 1]))
    array([[-1.,  0.,  0.]])
    """
    return np.asarray(np.asarray(bvecs_voxel, dtype=np.float64) @ axis_directions(affine).T)


def bvecs_ras_to_fsl(bvecs_ras: ArrayLike, affine: ArrayLike) -> NDArray[np.float64]:
    """Turn world RAS directions into those of a bvec file for an image with this affine.

    Parameters
    ----------
    bvecs_ras : (n, 3) array
    affine : (4, 4) array

    Returns
    -------
    bvecs_fsl : (n, 3) array

    Examples
    --------
    >>> affine = np.diag([-2, 2, 2, 1])
    >>> bvecs_ras_to_fsl(bvecs_fsl_to_ras([[0.6, 0.8, 0]], affine), affine)
    array([[0.6, 0.8, 0. ]])
    """
    table = np.asarray(bvecs_ras, dtype=np.float64)
    return np.asarray((table @ axis_directions(affine)) * _fsl_flip(affine))


def rotate_bvecs(bvecs_ras: ArrayLike, transforms: ArrayLike) -> NDArray[np.float64]:
    """Turn directions along with an image that is transformed.

    Parameters
    ----------
    bvecs_ras : (n, 3) array
        World directions before the transform.
    transforms : (4, 4) or (n, 4, 4) array
        World to world, from the space the directions are in to the new one: one for all
        volumes, or one per volume (motion).

    Returns
    -------
    bvecs_ras : (n, 3) array
        World directions in the new space.

    Examples
    --------
    >>> turn = np.array([[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    >>> rotate_bvecs([[1, 0, 0]], turn)
    array([[0., 1., 0.]])
    """
    table = np.asarray(bvecs_ras, dtype=np.float64)
    rotation = np.broadcast_to(polar_rotation(transforms), (len(table), 3, 3))
    return np.asarray(np.einsum("nij,nj->ni", rotation, table))


def unit_directions(
    bvecs: NDArray[np.floating[Any]], weighted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Give every direction length 1, and volumes without diffusion weighting a zero row.

    Files hold two to six digits, so their vectors are a little too long or too short; the vector
    of a b0 has no meaning and may be anything, NaN included.

    Parameters
    ----------
    bvecs : (n, 3) array
    weighted : (n,) array of bool
        Volumes with diffusion weighting; their vectors must not be zero.

    Returns
    -------
    directions : (n, 3) array
    """
    directions = np.zeros(np.shape(bvecs), np.float64)
    directions[weighted] = bvecs[weighted]
    directions[weighted] /= np.linalg.norm(directions[weighted], axis=1, keepdims=True)
    return directions


def direction_angle_deg(
    first: NDArray[np.floating[Any]], second: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return the angle between axes (sign does not matter), in degrees.

    Parameters
    ----------
    first, second : (..., 3) array

    Returns
    -------
    angle_deg : (...) array
        From 0 to 90.
    """
    cross = np.linalg.norm(np.cross(first, second), axis=-1)
    return np.asarray(np.degrees(np.arctan2(cross, np.abs(np.sum(first * second, axis=-1)))))
