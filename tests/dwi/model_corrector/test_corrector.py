"""The whole corrector on a coarse phantom with known motion, eddy currents and lost slices."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bids_gevnet.dwi.conform import conform, ras_order
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.model_corrector.corrector import DiffusionSeries, correct_series, fill_slices
from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import (
    Brain,
    Lattice,
    Level,
    gauss_newton_step,
    move,
)
from bids_gevnet.dwi.model_corrector.warp import (
    RADIUS_MM,
    Warp,
    displacement,
    grid_points,
    still_warp,
)
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.errors import ParticipantError
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant

QUICK = (Level(9.0, 12.0, 3), Level(6.0, 6.0, 4))


def simulate(**changes):
    standard = {
        "groups": ("AD",), "per_group": 1, "sites": 1, "voxel_mm": 6.0, "directions": 14,
        "snr": 20.0, "eddy": 1.5, "seed": 2,
    }  # fmt: skip
    settings = PhantomSettings(**(standard | changes))
    scan = simulate_participant(settings, plan_cohort(settings)[0])
    image = conform(scan.data, scan.affine, scan.bvecs_ras)
    axes, _ = ras_order(scan.affine)
    series = DiffusionSeries(
        image.data, image.affine, scan.bvals, image.bvecs_ras, find_shells(scan.bvals),
        axes.index(1), axes.index(2),
    )  # fmt: skip
    return scan, image, series


def true_warp(scan, image):
    axes, signs = ras_order(scan.affine)
    axis = axes.index(1)
    eddy = np.zeros((len(scan.bvals), 10))
    eddy[:, 0] = scan.truth.eddy[:, 0] * signs[axis]
    for raw in range(3):
        new = axes.index(raw)
        eddy[:, 1 + new] = scan.truth.eddy[:, 1 + raw] * signs[new] * signs[axis] * RADIUS_MM
    there = image.old_to_new
    return Warp(there @ scan.truth.motion_matrices @ np.linalg.inv(there), eddy, axis)


@pytest.fixture(scope="module")
def moved():
    return simulate(outliers=0.4)


@pytest.fixture(scope="module")
def found(moved):
    return correct_series(moved[2], levels=QUICK)


@pytest.fixture(scope="module")
def points(moved):
    scan, image, _ = moved
    mask = conform(scan.truth.mask, scan.affine).data
    return grid_points(mask.shape, image.affine)[np.flatnonzero(mask)][::7]


def rms(values):
    return np.sqrt(np.mean(np.sum(values**2, axis=-1)))


def test_motion_and_eddy_currents_are_found(moved, found, points):
    scan, image, _ = moved
    truth = true_warp(scan, image)
    sizes = voxel_sizes(image.affine)
    wanted = displacement(truth, points, sizes)
    left = displacement(found.warp, points, sizes) - wanted
    assert rms(left) < 0.6  # voxels of 6 mm
    assert rms(left) < 0.3 * rms(wanted)
    # Rigid motion alone, even the true one, leaves more than that.
    assert rms(left) < 0.6 * rms(displacement(replace(truth, eddy=0 * truth.eddy), points, sizes)
                                 - wanted)  # fmt: skip


def test_lost_slices_are_found_and_filled(moved, found):
    scan, _, series = moved
    _, signs = ras_order(scan.affine)
    last = found.outliers.shape[1] - 1
    truth = {
        (volume, k if signs[series.slice_axis] > 0 else last - k)
        for volume, k, _ in scan.truth.dropped
    }
    assert len(truth) >= 3
    assert set(map(tuple, np.argwhere(found.outliers).tolist())) == truth
    assert set(found.replacements) == truth
    volume, z = min(truth)
    raw = series.data[..., volume]
    filled = fill_slices(raw, volume, found.replacements, series.slice_axis)
    neighbours = np.take(raw, [z - 1, z + 1], axis=series.slice_axis).mean()
    assert np.take(raw, z, axis=series.slice_axis).mean() < 0.7 * neighbours
    assert np.take(filled, z, axis=series.slice_axis).mean() > 0.8 * neighbours


def test_first_b0_is_the_reference(found):
    np.testing.assert_allclose(found.warp.motion[0], np.eye(4), atol=1e-9)
    np.testing.assert_allclose(found.warp.eddy[0], 0, atol=1e-12)


def test_a_still_head_stays_still(points):
    _, image, series = simulate(motion_mm=0.0, motion_deg=0.0, eddy=0.0, directions=18)
    still = correct_series(series, levels=QUICK)
    assert rms(displacement(still.warp, points, voxel_sizes(image.affine))) < 0.25
    assert not still.outliers.any()


@pytest.mark.slow
def test_same_bytes_again_and_with_two_threads(moved, found):
    again = correct_series(moved[2], levels=QUICK, n_threads=2)
    np.testing.assert_array_equal(again.warp.motion, found.warp.motion)
    np.testing.assert_array_equal(again.warp.eddy, found.warp.eddy)


@pytest.mark.slow
def test_two_shells_six_directions(points):
    scan, image, series = simulate(directions=6, b_values=(1000.0, 2000.0))
    truth, sizes = true_warp(scan, image), voxel_sizes(image.affine)
    here = displacement(truth, points, sizes)
    left = displacement(correct_series(series, levels=QUICK).warp, points, sizes) - here
    assert rms(left) < 0.6 * rms(here)


def test_an_empty_volume_and_a_lone_shell_do_no_harm(moved):
    _, _, series = moved
    part = [0, 1, 2, 3]
    data = series.data[..., part].copy()
    data[..., 2] = 0
    bvals = series.bvals[part].copy()
    bvals[3] = 3000  # the only one of its shell
    broken = replace(
        series, data=data, bvals=bvals, bvecs_ras=series.bvecs_ras[part],
        shells=find_shells(bvals),
    )  # fmt: skip
    found = correct_series(broken, levels=QUICK[:1])
    assert np.isfinite(found.warp.motion).all()
    assert np.abs(found.warp.eddy).max() == 0  # too few volumes to tell


def test_a_single_slice_is_left_alone_and_says_so():
    flat = DiffusionSeries(
        np.ones((20, 20, 1, 3)), np.eye(4), np.array([0.0, 1000, 1000]), np.eye(3),
        find_shells([0, 1000, 1000]),
    )  # fmt: skip
    found = correct_series(flat)
    np.testing.assert_array_equal(found.warp.motion, [np.eye(4)] * 3)
    assert "nothing was estimated" in found.note


class TestGaussNewtonStep:
    """A smooth blob that is moved a little asks to be moved back."""

    def blob(self, points):
        scale = torch.tensor([22.0, 17.0, 26.0])
        return (
            100 * torch.exp(-0.5 * ((points / scale) ** 2).sum(dim=1)) * (1 + 0.01 * points[:, 0])
        )

    @pytest.mark.parametrize("terms", [None, slice(1, 4), slice(1, 10)])
    def test_known_motion(self, terms):
        lattice = Lattice((24, 24, 24), np.full(3, 4.0), Level(4.0, 4.0, 1))
        brain = Brain(lattice, np.ones(lattice.shape, bool))
        target = self.blob(brain.points)
        delta = np.array([0.3, -0.2, 0.25, 0.4, -0.3, 0.2])
        matrix = torch.as_tensor(np.linalg.inv(move(np.eye(4), delta)), dtype=torch.float32)
        seen = self.blob(brain.points @ matrix[:3, :3].T + matrix[:3, 3])
        valid = torch.ones(len(target), dtype=torch.bool)
        step = gauss_newton_step(seen, valid, target, brain, np.eye(4), 1, terms)
        found = move(np.eye(4), step.delta[:6])
        before = np.abs(move(np.eye(4), delta) - np.eye(4)).max()
        assert np.abs(found - move(np.eye(4), delta))[:3].max() < 0.35 * before
        assert np.all(step.variance > 0)

    def test_brightness_is_not_motion(self):
        lattice = Lattice((24, 24, 24), np.full(3, 4.0), Level(4.0, 4.0, 1))
        brain = Brain(lattice, np.ones(lattice.shape, bool))
        target = self.blob(brain.points)
        valid = torch.ones(len(target), dtype=torch.bool)
        step = gauss_newton_step(1.1 * target, valid, target, brain, np.eye(4), 1, slice(1, 4))
        np.testing.assert_allclose(step.delta, 0, atol=1e-3)

    def test_a_volume_out_of_sight_does_not_move(self):
        lattice = Lattice((24, 24, 24), np.full(3, 4.0), Level(4.0, 4.0, 1))
        brain = Brain(lattice, np.ones(lattice.shape, bool))
        target = self.blob(brain.points)
        valid = torch.zeros(len(target), dtype=torch.bool)
        step = gauss_newton_step(target, valid, target, brain, np.eye(4), 1, None)
        np.testing.assert_array_equal(step.delta, 0)


def test_still_warp_displaces_nothing(points):
    np.testing.assert_allclose(displacement(still_warp(2, 1), points, np.ones(3)), 0, atol=1e-5)


@pytest.mark.parametrize("value", [0, 7])
def test_a_scan_without_a_head_gets_a_sentence(value):
    series = simulate(voxel_mm=9.0, directions=6)[2]
    empty = replace(series, data=np.full(series.data.shape, value, np.int16))
    with pytest.raises(ParticipantError, match="same value everywhere"):
        correct_series(empty, levels=QUICK)


def test_shells_too_small_for_eddy_currents_are_named():
    _, _, series = simulate(voxel_mm=9.0, directions=6)
    weighted = series.shells.shells[0].volumes
    bvals = series.bvals.copy()
    bvals[weighted[:2]] = 500
    few = replace(series, bvals=bvals, shells=find_shells(bvals))
    correction = correct_series(few, levels=(Level(12.0, 12.0, 1),))
    assert "fewer than 6 volumes (2, 4)" in correction.note
    assert not correction.warp.eddy[:, 1:].any()
