import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.model_corrector.warp import (
    INVERSION_TOLERANCE_MM,
    RADIUS_MM,
    Field,
    Warp,
    displacement,
    eddy_basis,
    eddy_shift,
    grid_points,
    pull,
    push,
    resample_warped,
    still_warp,
)

SHAPE = (24, 26, 22)
AFFINE = np.diag([4.0, 4.0, 4.0, 1.0])
AFFINE[:3, 3] = -4.0 * (np.array(SHAPE) - 1) / 2
SIZES = np.full(3, 4.0)


def bump(points, width=18.0):
    """A smooth lopsided head, anywhere in mm."""
    x, y, z = points.T
    return 100 * np.exp(-(x**2 + 1.4 * y**2 + z**2) / (2 * width**2)) * (1 + 0.01 * x + 0.01 * z)


def rigid(translation, degrees):
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_euler("xyz", degrees, degrees=True).as_matrix()
    matrix[:3, 3] = translation
    return matrix


def tensor(array):
    return torch.as_tensor(np.asarray(array), dtype=torch.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_shift_is_the_basis_times_the_terms_and_slope_its_derivative(axis):
    points = torch.rand(20, 3, dtype=torch.float64) * 80 - 40
    eddy = torch.linspace(-1, 2, 10, dtype=torch.float64)
    shift, slope = eddy_shift(points, eddy, axis)
    torch.testing.assert_close(shift, eddy_basis(points) @ eddy)
    step = torch.zeros(3, dtype=torch.float64)
    step[axis] = 1e-4
    expected = (eddy_basis(points + step) - eddy_basis(points - step)) @ eddy / 2e-4
    torch.testing.assert_close(slope, expected, atol=1e-9, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(-2, 2), min_size=10, max_size=10),
    st.lists(st.floats(-5, 5), min_size=6, max_size=6),
    st.integers(0, 2),
)
def test_push_undoes_pull(eddy, motion, axis):
    points = tensor(grid_points((5, 5, 5), np.diag([12.0, 12, 12, 1])) - 24)
    matrix = tensor(rigid(motion[:3], motion[3:]))
    _, seen, jacobian = pull(points, matrix, tensor(eddy), axis)
    back, same = push(seen, matrix, tensor(eddy), axis)
    # Quadratic terms of 2 mm each have slopes of 0.1: four steps leave a thousandth.
    torch.testing.assert_close(back, points, atol=0.02, rtol=0)
    torch.testing.assert_close(same, jacobian, atol=2e-3, rtol=0)


@pytest.mark.parametrize("degrees", [0.0, 3.0, 12.0])
def test_push_undoes_pull_through_a_field_of_nine_millimetres(degrees):
    """As above the nasal sinuses: 9 mm, with a slope of 0.25."""
    x, y, z = grid_points(SHAPE, AFFINE).T
    values = 9 * np.exp(-((x - 4) ** 2 + (y - 20) ** 2 + (z + 12) ** 2) / (2 * 22**2))
    field = Field(values.reshape(SHAPE).astype(np.float32), SIZES)
    points = tensor(np.random.default_rng(3).uniform(-36, 36, (4000, 3)))
    motion = tensor(rigid([3, -2, 1], [degrees, -degrees, degrees / 2]))
    eddy = tensor(np.linspace(-1, 1, 10))
    _, seen, jacobian = pull(points, motion, eddy, 1, field)
    back, same = push(seen, motion, eddy, 1, field)
    assert float((back - points).norm(dim=1).max()) < INVERSION_TOLERANCE_MM
    torch.testing.assert_close(same, jacobian, atol=0.01, rtol=0)
    # Negative control: without the field the points end up elsewhere.
    assert float((push(seen, motion, eddy, 1)[0] - points).norm(dim=1).max()) > 5


def test_a_field_on_a_grid_is_the_field_at_its_points():
    values = np.fromfunction(lambda x, y, z: np.sin(x / 2 + y / 3) * np.cos(z / 2.5), (7, 6, 8))
    values = values.astype(np.float32)
    field = Field(values, np.array([4.0, 5.0, 3.0]))
    positions = [np.linspace(0.3, n - 1.4, 5) for n in values.shape]
    index = np.stack(np.meshgrid(*positions, indexing="ij"), axis=-1).reshape(-1, 3)
    places = (index - (np.array(values.shape) - 1) / 2) * [4, 5, 3]
    fast, slow = field.on_grid(positions), field.at(tensor(places))
    torch.testing.assert_close(fast.values, slow.values, atol=1e-4, rtol=0)
    torch.testing.assert_close(fast.gradient, slow.gradient, atol=5e-3, rtol=0)
    nodes = tensor((np.argwhere(values > -np.inf) - (np.array(values.shape) - 1) / 2) * [4, 5, 3])
    exact = field.linear(nodes)  # at the voxels themselves, linear interpolation is exact
    torch.testing.assert_close(exact.values, tensor(values).ravel(), atol=1e-4, rtol=0)


def test_jacobian_is_the_volume_change():
    field = Field(np.random.default_rng(0).normal(size=(6, 6, 6)).astype(np.float32), SIZES * 4)
    points = tensor(np.random.default_rng(1).uniform(-30, 30, (50, 3)))
    eddy, motion = tensor(np.linspace(-1, 1, 10)), tensor(rigid([1, 2, 3], [3, -2, 4]))
    _, _, jacobian = pull(points, motion, eddy, 1, field)
    columns = []
    for axis in range(3):
        step = torch.zeros(3)
        step[axis] = 0.5
        sides = [pull(points + s * step, motion, eddy, 1, field)[1] for s in (-1, 1)]
        columns.append(sides[1] - sides[0])
    volume = torch.linalg.det(torch.stack(columns, dim=2))
    torch.testing.assert_close(jacobian, volume, atol=0.01, rtol=0)


@pytest.fixture(scope="module")
def warp():
    x, y, z = grid_points(SHAPE, AFFINE).T
    field = 3 * np.exp(-((x - 5) ** 2 + (y + 8) ** 2 + z**2) / (2 * 15**2))
    return Warp(
        np.stack([np.eye(4), rigid([2, -1.5, 1], [3, -2, 4])]),
        np.array([np.zeros(10), [0.7, 1.5, -2.0, 1.0, 0.5, 0.3, -0.4, 0.2, 0.6, -0.5]]),
        1,
        field.reshape(SHAPE).astype(np.float32),
    )


@pytest.fixture(scope="module")
def raw(warp):
    field = Field(warp.field, SIZES)
    seen = tensor(grid_points(SHAPE, AFFINE))
    volumes = []
    for motion, eddy in zip(warp.motion, warp.eddy, strict=True):
        points, jacobian = push(seen, tensor(motion), tensor(eddy), warp.axis, field)
        volumes.append(bump(points.numpy()) / jacobian.numpy())
    return np.stack(volumes, axis=-1).reshape(*SHAPE, 2).astype(np.float32)


class TestResampling:
    """A head seen through a known warp comes back, brightness and all."""

    def test_the_truth_is_recovered(self, warp, raw):
        points = grid_points(SHAPE, AFFINE)
        inside = np.all(np.abs(points) < 36, axis=1).reshape(SHAPE)
        truth = bump(points).reshape(SHAPE)
        corrected = resample_warped(raw, AFFINE, warp, np.eye(4), SHAPE, AFFINE)
        for k in range(2):
            assert np.abs(corrected[..., k] - truth)[inside].max() < 0.6
            assert np.abs(raw[..., k] - truth)[inside].max() > 5  # negative control

    def test_without_the_jacobian_it_would_not_be(self, warp, raw):
        corrected = resample_warped(raw, AFFINE, warp, np.eye(4), SHAPE, AFFINE)
        assert corrected[..., 1].sum() == pytest.approx(raw[..., 1].sum(), rel=2e-3)

    def test_on_to_another_grid_and_space_at_once(self, warp, raw):
        to_target, link = rigid([3, 4, -2], [5, 5, 5]), rigid([1, 0, -1], [-4, 2, 1])
        shape, affine = (30, 28, 26), np.diag([3.0, 3.5, 3.5, 1])
        affine[:3, 3] = [-45, -48, -44]
        linked = Warp(warp.motion, warp.eddy, 1, warp.field, link)
        found = resample_warped(raw, AFFINE, linked, to_target, shape, affine, n_threads=2)
        back = np.linalg.inv(to_target @ link)
        points = grid_points(shape, affine) @ back[:3, :3].T + back[:3, 3]
        inside = np.all(np.abs(points) < 38, axis=1).reshape(shape)
        truth = bump(points).reshape(shape)
        assert np.abs(found[..., 1] - truth)[inside].max() < 0.8

    def test_threads_do_not_change_a_bit(self, warp, raw):
        once, twice = (
            resample_warped(raw, AFFINE, warp, np.eye(4), SHAPE, AFFINE, n_threads=n)
            for n in (1, 2)
        )
        np.testing.assert_array_equal(once, twice)


def test_displacement_of_known_parameters():
    warp = still_warp(1, 2)
    warp.eddy[0, 1] = 2.0
    points = np.array([[RADIUS_MM, 0, 0], [0, 5, 5]])
    np.testing.assert_allclose(
        displacement(warp, points, SIZES)[0], [[0, 0, 2], [0, 0, 0]], atol=1e-6
    )
