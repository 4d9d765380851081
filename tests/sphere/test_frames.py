"""Frames and transport against rotations of space, which know nothing of the formulas."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.sphere.frames import (
    default_frames,
    geodesic_distance,
    rotate_frames,
    transport,
    transport_angle,
)

unit = st.tuples(*[st.floats(-1, 1) for _ in range(3)]).map(np.array)


def normalised(v):
    size = np.linalg.norm(v)
    assume(size > 0.1)
    return v / size


@settings(deadline=None)
@given(unit)
def test_frames_are_orthonormal_right_handed_and_tangent_everywhere(v):
    p = normalised(v)[None]
    e1, e2 = default_frames(p)[0]
    assert np.allclose([e1 @ e1, e2 @ e2, e1 @ e2, e1 @ p[0]], [1, 1, 0, 0], atol=1e-12)
    assert np.allclose(np.cross(e1, e2), p[0], atol=1e-12)


def test_frames_exist_at_the_poles_and_just_beside_them():
    p = np.array([[0, 0, 1.0], [0, 0, -1.0], [1e-9, 0, 1.0], [0, 1e-9, -1.0]])
    frames = default_frames(p)
    assert np.isfinite(frames).all()
    assert np.allclose(np.linalg.norm(frames, axis=-1), 1)


@settings(deadline=None)
@given(unit, unit)
def test_transport_is_the_rotation_along_the_great_circle(u, v):
    q, p = normalised(u), normalised(v)
    axis = np.cross(q, p)
    assume(np.linalg.norm(axis) > 1e-3)
    angle = geodesic_distance(q, p)
    turn = Rotation.from_rotvec(axis / np.linalg.norm(axis) * angle)
    e1 = default_frames(q[None])[0, 0]
    assert np.allclose(transport(e1, q, p), turn.apply(e1), atol=1e-8)


@settings(deadline=None)
@given(unit, unit, st.floats(-7, 7), st.floats(-7, 7))
def test_angle_follows_a_change_of_both_frames(u, v, t_p, t_q):
    p, q = normalised(u)[None], normalised(v)[None]
    assume(p[0] @ q[0] > -0.99)
    fp, fq = default_frames(p), default_frames(q)
    before = transport_angle(fp, p, fq, q)
    after = transport_angle(
        rotate_frames(fp, np.array([t_p])), p, rotate_frames(fq, np.array([t_q])), q
    )
    assert np.allclose(np.exp(1j * after), np.exp(1j * (before + t_q - t_p)), atol=1e-9)


def test_transport_around_an_octant_turns_by_its_area():
    """Gauss and Bonnet: the holonomy of a closed path is the enclosed area, here 4 pi / 8."""
    corners = np.eye(3)
    v = np.array([0.0, 1.0, 0.0])  # tangent at x
    for start, end in ((0, 1), (1, 2), (2, 0)):
        v = transport(v, corners[start], corners[end])
    assert np.allclose(v, [0, 0, 1], atol=1e-12) or np.allclose(v, [0, 0, -1], atol=1e-12)
    assert np.arccos(v @ [0, 1, 0]) == pytest.approx(np.pi / 2)


def test_distance_is_accurate_where_arccos_is_not():
    p = np.array([1.0, 0, 0])
    for angle in (1e-9, 1e-5, 1.0, np.pi - 1e-9):
        q = np.array([np.cos(angle), np.sin(angle), 0])
        assert geodesic_distance(p, q) == pytest.approx(angle, rel=1e-6)
