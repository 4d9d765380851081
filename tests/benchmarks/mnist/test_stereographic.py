"""Images on the sphere: closed forms of the projection, rotations move the signal."""

import numpy as np
import pytest
from mnist.stereographic import project_images, random_rotations, stereographic
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.icosphere_grid import icosphere


def direction(theta: float, phi: float) -> np.ndarray:
    """Unit vector `theta` degrees from the north pole."""
    t, f = np.deg2rad([theta, phi])
    return np.array([np.sin(t) * np.cos(f), np.sin(t) * np.sin(f), np.cos(t)])


@pytest.mark.parametrize("theta", [0.0, 30.0, 90.0, 170.0])
def test_distance_from_the_centre_is_the_tangent_of_half_the_angle(theta: float) -> None:
    for phi in (0.0, 70.0, 200.0):
        plane = stereographic(direction(theta, phi))
        r = np.tan(np.deg2rad(theta) / 2)
        np.testing.assert_allclose(
            plane, [r * np.cos(np.deg2rad(phi)), r * np.sin(np.deg2rad(phi))], atol=1e-12
        )


def test_angles_are_kept() -> None:
    """The derivative in two orthogonal directions is orthogonal and equally long."""
    p = direction(75.0, 40.0)
    e1 = direction(165.0, 40.0)
    e2 = np.cross(p, e1)
    step = 1e-6
    moved = [
        (stereographic(np.cos(step) * p + np.sin(step) * e) - stereographic(p)) / step
        for e in (e1, e2)
    ]
    assert abs(moved[0] @ moved[1]) < 1e-5
    scale = 1 / (1 + p[2])
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), scale, rtol=1e-5)


@pytest.mark.parametrize("edge", [60.0, 110.0])
def test_image_of_ones_ends_at_the_edge(edge: float) -> None:
    image = np.ones((1, 28, 28))
    # Half a pixel inside the side the value is 1, on the side 1/2, half a pixel outside 0.
    half = np.tan(np.deg2rad(edge) / 2)
    thetas = [np.rad2deg(2 * np.arctan(half * (14 + d) / 14)) for d in (-0.5, 0.0, 0.5)]
    for phi in (0.0, 90.0, 180.0, 270.0):
        points = np.array([direction(theta, phi) for theta in thetas])
        found = project_images(image, points, edge=edge)[0]
        np.testing.assert_allclose(found, [1, 0.5, 0], atol=1e-5)
    assert project_images(image, np.array([[0.0, 0.0, -1.0]]), edge=edge)[0, 0] == 0


def test_linear_image_is_met_exactly() -> None:
    rows, columns = np.mgrid[:28, :28]
    image = (3.0 * columns - 2.0 * rows)[None]
    inner = icosphere(3).points[icosphere(3).points[:, 2] > 0.5]
    u, v = (stereographic(inner) * 14).T  # edge 90: the plane's unit is half a side
    expected = 3 * (u + 13.5) - 2 * (v + 13.5)
    np.testing.assert_allclose(project_images(image, inner, edge=90)[0], expected, atol=1e-4)


def test_rotation_of_the_grid_permutes_the_signal() -> None:
    """A fifth of a turn about the pole maps the icosphere to itself, and the samples with it."""
    grid = icosphere(2)
    image = np.random.default_rng(0).random((1, 28, 28))
    turn = Rotation.from_rotvec([0, 0, 2 * np.pi / 5]).as_matrix()
    where = np.argmin(
        np.linalg.norm(grid.points[:, None] - (grid.points @ turn)[None], axis=-1), axis=0
    )  # index of R^-1 p for every p
    still = project_images(image, grid.points, edge=110)
    turned = project_images(image, grid.points, edge=110, rotations=turn[None])
    np.testing.assert_allclose(turned[0], still[0, where], atol=1e-5)
    assert np.abs(turned - still).max() > 0.1


def test_each_image_has_its_own_rotation() -> None:
    images = np.random.default_rng(1).random((3, 28, 28))
    points, rotations = icosphere(2).points, random_rotations(3, 5)
    together = project_images(images, points, edge=100, rotations=rotations)
    for k in range(3):
        alone = project_images(images[k : k + 1], points @ rotations[k], edge=100)
        np.testing.assert_allclose(together[k], alone[0], atol=1e-6)


def test_rotations_are_uniform_and_do_not_depend_on_their_number() -> None:
    many = random_rotations(4000, (3, 1))
    np.testing.assert_allclose(
        many @ many.swapaxes(1, 2), np.broadcast_to(np.eye(3), many.shape), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(many), 1)
    np.testing.assert_array_equal(random_rotations(7, (3, 1)), many[:7])
    assert np.abs(random_rotations(7, (3, 2)) - many[:7]).max() > 0.1
    # Entries of a uniform rotation have mean 0 and variance 1/3; five standard errors.
    assert np.abs(many.mean(axis=0)).max() < 5 * (3 * 4000) ** -0.5
    # And the angle has the density (1 - cos a) / pi: mean pi / 2 + 2 / pi.
    angles = Rotation.from_matrix(many).magnitude()
    assert angles.mean() == pytest.approx(np.pi / 2 + 2 / np.pi, abs=5 * angles.std() / 4000**0.5)


@pytest.mark.parametrize("edge", [0.0, 180.0, -5.0])
def test_impossible_edge_is_refused(edge: float) -> None:
    with pytest.raises(InputError, match="between 0 and 180"):
        project_images(np.ones((1, 4, 4)), icosphere(0).points, edge=edge)
