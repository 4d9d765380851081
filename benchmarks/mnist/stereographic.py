r"""Flat images on the sphere by stereographic projection.

The projection from the south pole takes a point p = (x, y, z) of the unit sphere to the plane,

    (u, v) = (x, y) / (1 + z),        |(u, v)| = tan(theta / 2),

theta the angle from the north pole: circles stay circles and angles stay angles. The image lies
in that plane with its centre on the pole, u to the right and v down, so that seen from inside the
sphere it reads as on paper; the middles of its sides are `edge` away from the pole, at
|u| = tan(edge / 2). Outside the image the signal is 0.

A rotation R moves the signal: f_R(p) = f(R^-1 p). In the code: R is ``rotations``, R^-1 p is
``points @ rotation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.sphere.frames import FloatArray

_FAR = 1e9  # where the south pole is put, which has no image


def stereographic(points: FloatArray) -> FloatArray:
    """Project unit vectors from the south pole: (..., 3) to (..., 2) array."""
    above = np.maximum(1 + points[..., 2:], 0)
    pole = above * _FAR < 1
    plane: FloatArray = np.where(pole, _FAR, points[..., :2] / np.where(pole, 1, above))
    return plane


def random_rotations(n: int, seed: int | tuple[int, ...]) -> FloatArray:
    """Draw n rotations, uniform over all; the first m are those of random_rotations(m, seed).

    Returns
    -------
    rotations : (n, 3, 3) array
    """
    from scipy.spatial.transform import Rotation

    # Normal quaternions have no preferred direction, hence give uniform rotations.
    quaternions = np.random.default_rng(seed).normal(size=(n, 4))
    rotations: FloatArray = Rotation.from_quat(quaternions).as_matrix()
    return rotations


def project_images(
    images: NDArray[np.floating[Any]],
    points: FloatArray,
    *,
    edge: float,
    rotations: FloatArray | None = None,
) -> NDArray[np.float32]:
    """Sample images at points of the sphere, bilinearly between pixels.

    Parameters
    ----------
    images : (n, side, side) array
    points : (n_points, 3) array
        Unit vectors.
    edge : float
        Angle from the pole to the middles of the image's sides, in degrees.
    rotations : (n, 3, 3) array or None
        Rotation of each image after projection; None leaves all at the pole.

    Returns
    -------
    signals : (n, n_points) array
    """
    if not 0 < edge < 180:
        raise InputError(
            expected="an edge between 0 and 180 degrees from the pole",
            found=f"{edge:g}",
            remedy="90 puts the image on a hemisphere",
        )
    side = images.shape[-1]
    where = points[None] if rotations is None else points @ rotations
    half = np.tan(np.deg2rad(edge) / 2)
    # Pixel i covers [i, i + 1) of the side, its value sits in the middle.
    pixels = (stereographic(where) / half + 1) * (side / 2) - 0.5  # (n or 1, n_points, 2)
    # A frame of zeros makes the signal fall to 0 within a pixel, and keeps far points in reach.
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1))).astype(np.float32, copy=False)
    pixels = np.clip(pixels + 1, 0, side + 1)
    low = np.minimum(pixels.astype(np.intp), side)
    (right, down), (i, j) = np.moveaxis(pixels - low, -1, 0), np.moveaxis(low, -1, 0)
    n = np.arange(len(images))[:, None]
    upper = framed[n, j, i] * (1 - right) + framed[n, j, i + 1] * right
    lower = framed[n, j + 1, i] * (1 - right) + framed[n, j + 1, i + 1] * right
    signals: NDArray[np.float32] = (upper * (1 - down) + lower * down).astype(np.float32)
    return signals
