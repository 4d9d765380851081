r"""Frames and parallel transport: the gauge of the paper, section 2.1.

A frame at p is an orthonormal pair (e1, e2) of the tangent plane with e2 = n x e1, n the
outward unit normal (on the unit sphere n = p), so that it is right-handed seen from outside.
A tangent vector v is the complex number z with v = Re(z) e1 + Im(z) e2. A gauge change by the
angle t turns the frame, e1' = cos(t) e1 + sin(t) e2, hence z' = exp(-i t) z: the
transformation law a' = rho(t^-1) a.

Transport along the geodesic from q to p on the unit sphere, closed form:

    P v = v - (p . v) / (1 + p . q) (p + q),      undefined for p = -q only,

and the gauge transformation t_(p <- q) of Eq. (1) is the angle tau with

    z_p = exp(i tau) z_q,     tau = atan2(e2(p) . P e1(q), e1(p) . P e1(q)).

The same formula with normals in place of points is the smallest rotation of one tangent plane
onto another, which is the transport along an edge of a mesh.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def geodesic_distance(p: FloatArray, q: FloatArray) -> FloatArray:
    """Angle between unit vectors, accurate for near and far pairs alike (unlike arccos).

    Parameters
    ----------
    p, q : (..., 3) array
        Unit vectors.

    Returns
    -------
    (...,) array
        Angles in radians, 0 to pi.

    Examples
    --------
    >>> float(geodesic_distance(np.array([1.0, 0, 0]), np.array([0, 1.0, 0])) / np.pi)
    0.5
    """
    distance: FloatArray = np.arctan2(
        np.linalg.norm(np.cross(p, q), axis=-1), np.sum(p * q, axis=-1)
    )
    return distance


def default_frames(normals: FloatArray) -> FloatArray:
    """Frames chosen point by point: no continuous frame field exists on the sphere.

    e1 is the direction to +z, and to +x within 26 degrees of the poles, where the direction
    to +z is ill defined.

    Parameters
    ----------
    normals : (n, 3) array
        Unit normals; the points themselves on the unit sphere.

    Returns
    -------
    (n, 2, 3) array
        e1 and e2 of each point.
    """
    polar = np.abs(normals[:, 2]) > 0.9
    axis = np.where(polar[:, None], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    e1 = axis - np.sum(axis * normals, axis=-1, keepdims=True) * normals
    e1 /= np.linalg.norm(e1, axis=-1, keepdims=True)
    return np.stack([e1, np.cross(normals, e1)], axis=1)


def rotate_frames(frames: FloatArray, angles: FloatArray) -> FloatArray:
    """Turn each frame in its tangent plane: e1' = cos(t) e1 + sin(t) e2.

    Parameters
    ----------
    frames : (n, 2, 3) array
    angles : (n,) array
        Radians, anticlockwise seen from outside.

    Returns
    -------
    (n, 2, 3) array
    """
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    e1, e2 = frames[:, 0], frames[:, 1]
    return np.stack([c * e1 + s * e2, c * e2 - s * e1], axis=1)


def transport(v: FloatArray, q: FloatArray, p: FloatArray) -> FloatArray:
    """Carry tangent vectors from q to p along the geodesic, closed form.

    Parameters
    ----------
    v : (..., 3) array
        Tangent vectors at q.
    q, p : (..., 3) array
        Unit vectors (points of the sphere, or normals of a mesh), not antipodal.

    Returns
    -------
    (..., 3) array
        Tangent vectors at p.

    Examples
    --------
    >>> x, y, z = np.eye(3)
    >>> transport(y, x, z)  # from (1, 0, 0) to the pole: eastward stays y
    array([0., 1., 0.])
    """
    factor = np.sum(p * v, axis=-1) / (1.0 + np.sum(p * q, axis=-1))
    carried: FloatArray = v - factor[..., None] * (p + q)
    return carried


def transport_angle(
    frames_p: FloatArray, normals_p: FloatArray, frames_q: FloatArray, normals_q: FloatArray
) -> FloatArray:
    """Angle tau of t_(p <- q) in Eq. (1): z_p = exp(i tau) z_q.

    Parameters
    ----------
    frames_p, frames_q : (..., 2, 3) array
    normals_p, normals_q : (..., 3) array

    Returns
    -------
    (...,) array
        Radians.
    """
    carried = transport(frames_q[..., 0, :], normals_q, normals_p)
    along = np.sum(frames_p[..., 0, :] * carried, axis=-1)
    across = np.sum(frames_p[..., 1, :] * carried, axis=-1)
    angle: FloatArray = np.arctan2(across, along)
    return angle
