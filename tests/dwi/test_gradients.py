"""A known fibre keeps its direction, whatever the header, the motion and the template."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.gradients import (
    axis_directions,
    bvecs_fsl_to_ras,
    bvecs_ras_to_fsl,
    direction_angle_deg,
    polar_rotation,
    rotate_bvecs,
    voxel_sizes,
)
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.tensor import fit_tensor
from bids_gevnet.errors import ParticipantError

ORIENTATIONS = [
    (order, signs)
    for order in itertools.permutations(range(3))
    for signs in itertools.product((1, -1), repeat=3)
]
SIZES = np.array([2.0, 2.2, 2.5])
SHAPE = (26, 24, 22)


def make_affine(order, signs, oblique_deg=(0.0, 0.0, 0.0)):
    """Affine whose voxel axis i runs along world axis order[i], with a sign, then tilted."""
    axes = np.zeros((3, 3))
    axes[list(order), range(3)] = signs
    tilt = Rotation.from_euler("xyz", oblique_deg, degrees=True).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = tilt @ axes * SIZES
    affine[:3, 3] = [12.0, -7.0, 30.0] - affine[:3, :3] @ (np.array(SHAPE) / 2)
    return affine


def rigid(degrees, shift_mm, centre):
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_euler("xyz", degrees, degrees=True).as_matrix()
    matrix[:3, 3] = centre - matrix[:3, :3] @ centre + shift_mm
    return matrix


def tube_scan(affine, fibre, gradients, motions, b=1000.0):
    """Scan of a straight fibre: the tube turns with the head, gradients stay with the scanner."""
    centre = (affine @ [*(np.array(SHAPE) - 1) / 2, 1])[:3]
    index = np.moveaxis(np.indices(SHAPE), 0, -1)
    world = index @ affine[:3, :3].T + affine[:3, 3]
    volumes = []
    for gradient, motion in zip(gradients, motions, strict=True):
        axis = motion[:3, :3] @ fibre
        middle = motion[:3, :3] @ centre + motion[:3, 3]
        offset = world - middle
        along = offset @ axis
        across2 = np.sum(offset**2, axis=-1) - along**2
        tube = np.exp(-across2 / (2 * 4.0**2) - along**2 / (2 * 10.0**2))
        volumes.append(tube * np.exp(-b * (3e-4 + 1.4e-3 * (gradient @ axis) ** 2 * (b > 0))))
    return np.stack(volumes, axis=-1)


def principal_axis(volume, affine):
    index = np.moveaxis(np.indices(volume.shape), 0, -1).reshape(-1, 3)
    world = index @ affine[:3, :3].T + affine[:3, 3]
    weight = volume.ravel() / volume.sum()
    offset = world - weight @ world
    return np.linalg.eigh((offset * weight[:, None]).T @ offset)[1][:, -1]


def run_chain(affine, *, flip_x=1.0, turn_with_motion=True):
    """Return the angle between where the fibre lies and where its tensor points, at the end."""
    rng = np.random.default_rng(5)
    fibre = np.array([0.3, 0.8, 0.52]) / np.linalg.norm([0.3, 0.8, 0.52])
    gradients = rng.normal(size=(13, 3))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    gradients[0] = 0
    bvals = np.array([0.0, *[1000.0] * 12])
    centre = (affine @ [*(np.array(SHAPE) - 1) / 2, 1])[:3]
    heads = np.stack(
        [rigid(rng.uniform(-8, 8, 3), rng.uniform(-2, 2, 3), centre) for _ in range(13)]
    )
    data = tube_scan(affine, fibre, gradients, heads)
    # What a scanner writes: components along the voxel axes, x backwards when det > 0.
    bvec_file = gradients @ (affine[:3, :3] / SIZES)
    bvec_file[:, 0] *= -np.sign(np.linalg.det(affine[:3, :3])) * flip_x

    conformed = conform(data, affine, bvecs_fsl_to_ras(bvec_file, affine))
    there = conformed.old_to_new
    to_reference = there @ np.linalg.inv(heads) @ np.linalg.inv(there)
    to_mni = rigid((20.0, -10.0, 15.0), (3.0, -4.0, 5.0), np.zeros(3))
    to_mni[:3, :3] *= 1.1
    bvecs = conformed.bvecs_ras
    if turn_with_motion:
        bvecs = rotate_bvecs(bvecs, to_reference)
    bvecs = rotate_bvecs(bvecs, to_mni)
    grid = np.diag([2.2, 2.2, 2.2, 1.0])
    grid[:3, 3] = -2.2 * 17
    moved = resample_series(
        conformed.data, conformed.affine, to_mni @ to_reference, (35,) * 3, grid
    )
    lies = principal_axis(moved[..., 0], grid)
    middle = moved[17, 17, 17][None]
    peak = np.unravel_index(np.argmax(moved[..., 0]), (35,) * 3)
    points = fit_tensor(np.concatenate([middle, moved[peak][None]]), bvals, bvecs).direction[1]
    return float(direction_angle_deg(lies, points))


@pytest.mark.parametrize(("order", "signs"), ORIENTATIONS)
def test_fibre_keeps_its_direction_in_all_48_orientations(order, signs):
    assert run_chain(make_affine(order, signs)) < 1


@pytest.mark.parametrize("oblique", [(25, 0, 0), (10, -15, 20), (0, 40, 0)])
@pytest.mark.parametrize("orientation", [ORIENTATIONS[0], ORIENTATIONS[3], ORIENTATIONS[29]])
def test_fibre_keeps_its_direction_in_oblique_scans(orientation, oblique):
    assert run_chain(make_affine(*orientation, oblique)) < 1


def test_a_wrong_flip_is_seen_by_this_test():
    assert run_chain(make_affine(*ORIENTATIONS[0]), flip_x=-1.0) > 10


def test_forgotten_motion_is_seen_by_this_test():
    assert run_chain(make_affine(*ORIENTATIONS[0]), turn_with_motion=False) > 0.5


def test_both_signs_of_the_determinant_are_among_the_48():
    determinants = {np.sign(np.linalg.det(make_affine(*o)[:3, :3])) for o in ORIENTATIONS}
    assert determinants == {-1.0, 1.0}


class TestConversion:
    def test_fsl_axes_of_the_two_standard_headers(self):
        # The same world gradient towards the right, from FSL's documentation: with a
        # radiological header (det < 0) x runs as stored, with a neurological one it is negated.
        neurological, radiological = np.diag([2.0, 2, 2, 1]), np.diag([-2.0, 2, 2, 1])
        right = np.array([[1.0, 0, 0]])
        np.testing.assert_allclose(bvecs_fsl_to_ras([[-1, 0, 0]], neurological), right)
        np.testing.assert_allclose(bvecs_fsl_to_ras([[-1, 0, 0]], radiological), right)
        np.testing.assert_allclose(bvecs_fsl_to_ras([[0, 1, 0]], radiological), [[0, 1, 0]])

    @settings(deadline=None, max_examples=50)
    @given(st.integers(0, 47), st.tuples(*[st.floats(-40, 40)] * 3), st.integers(0, 2**31))
    def test_there_and_back(self, which, oblique, seed):
        affine = make_affine(*ORIENTATIONS[which], oblique)
        table = np.random.default_rng(seed).normal(size=(7, 3))
        there = bvecs_fsl_to_ras(table, affine)
        np.testing.assert_allclose(bvecs_ras_to_fsl(there, affine), table, atol=1e-12)
        np.testing.assert_allclose(
            np.linalg.norm(there, axis=1), np.linalg.norm(table, axis=1), rtol=1e-12
        )

    def test_sizes_and_axes(self):
        affine = make_affine(*ORIENTATIONS[17], (10, 20, 30))
        np.testing.assert_allclose(voxel_sizes(affine), SIZES)
        axes = axis_directions(affine)
        np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-12)
        np.testing.assert_allclose(axes * SIZES, affine[:3, :3], atol=1e-12)


class TestPolar:
    @settings(deadline=None, max_examples=50)
    @given(st.integers(0, 2**31))
    def test_takes_the_rotation_out_of_a_stretch(self, seed):
        rng = np.random.default_rng(seed)
        turn = Rotation.random(rng=rng).as_matrix()
        half = rng.normal(size=(3, 3))
        stretch = half @ half.T + 0.1 * np.eye(3)
        np.testing.assert_allclose(polar_rotation(turn @ stretch), turn, atol=1e-9)

    def test_singular(self):
        with pytest.raises(ParticipantError, match="inverted"):
            polar_rotation(np.diag([1.0, 1, 0]))

    def test_broken_header(self):
        with pytest.raises(ParticipantError, match="header"):
            bvecs_fsl_to_ras([[1, 0, 0]], np.diag([0.0, 1, 1, 1]))

    def test_one_transform_per_volume(self):
        turns = np.stack([np.eye(4), rigid((0, 0, 90), np.zeros(3), np.zeros(3))])
        found = rotate_bvecs([[1, 0, 0], [1, 0, 0]], turns)
        np.testing.assert_allclose(found, [[1, 0, 0], [0, 1, 0]], atol=1e-12)


def test_angles_of_axes():
    np.testing.assert_allclose(
        direction_angle_deg(
            np.array([[1.0, 0, 0]] * 3), np.array([[1, 0, 0], [-1, 0, 0], [1, 1, 0]])
        ),
        [0, 0, 45],
        atol=1e-9,
    )
