import math
from dataclasses import replace

import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst.dti import TensorModel
from scipy import ndimage

from bids_gevnet.phantom import signal, tiny_settings
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.simulation import simulate_participant

STILL = {"snr": math.inf, "motion_mm": 0, "motion_deg": 0, "eddy": 0}


def main_directions(data, bvals, bvecs, mask):
    """Principal direction of DIPY's tensor fit, in the frame of `bvecs`, and its FA."""
    bvals = np.where(bvals < 50, 0, bvals)
    bvecs = np.where(bvals[:, None] == 0, 0, bvecs)
    fit = TensorModel(gradient_table(bvals, bvecs=bvecs, b0_threshold=50)).fit(data[mask])
    return fit.evecs[..., 0], fit.fa


def angles_deg(first, second):
    """Angle between lines."""
    cosine = np.abs(np.sum(first * second, axis=-1))
    return np.rad2deg(np.arccos(np.clip(cosine, 0, 1)))


def single_fibre(truth, least=0.6):
    """Voxels that are mostly one fibre, and which one."""
    dominant = truth.fractions.argmax(axis=-1)
    mask = (truth.fractions.max(axis=-1) > least) & (truth.fractions.min(axis=-1) < 0.02)
    direction = np.take_along_axis(truth.fibres, dominant[..., None, None], axis=3)[..., 0, :]
    return mask, direction


def world_from_fsl(bvecs, affine):
    """BIDS gradients to world RAS, written out independently of the package."""
    linear = affine[:3, :3]
    axes = np.stack([linear[:, a] / np.sqrt(linear[:, a] @ linear[:, a]) for a in range(3)], 1)
    flip = np.diag([-1.0 if np.linalg.det(linear) > 0 else 1.0, 1.0, 1.0])
    return (axes @ flip @ bvecs.T).T


@pytest.mark.parametrize("site", range(4))
def test_tensor_fit_with_stored_gradients_finds_the_fibres(clean_scans, site):
    scan = clean_scans[site]
    mask, direction = single_fibre(scan.truth)
    assert mask.sum() > 150
    bvecs = world_from_fsl(scan.bvecs_fsl, scan.affine)
    found, fa = main_directions(scan.data, scan.bvals, bvecs, mask)
    angles = angles_deg(found, direction[mask])
    assert np.median(angles) < 1.0
    assert np.percentile(angles, 95) < 5.0
    assert np.median(fa) > 0.4


@pytest.mark.slow
def test_fine_voxels_find_the_fibres_too():
    """Below 4 mm the head is made from the 1 mm template."""
    plan = tiny_settings(voxel_mm=2.5, directions=12, **STILL)
    scan = simulate_participant(plan, plan_cohort(plan)[1])
    mask, direction = single_fibre(scan.truth, least=0.9)
    bvecs = world_from_fsl(scan.bvecs_fsl, scan.affine)
    found, fa = main_directions(scan.data, scan.bvals, bvecs, mask)
    assert np.median(angles_deg(found, direction[mask])) < 1.0
    assert np.median(fa) > 0.5


@pytest.mark.parametrize("site", range(4))
@pytest.mark.parametrize("axis", range(3))
def test_a_wrong_flip_does_not_find_the_fibres(clean_scans, site, axis):
    scan = clean_scans[site]
    mask, direction = single_fibre(scan.truth)
    flipped = scan.bvecs_fsl.copy()
    flipped[:, axis] *= -1
    found, _ = main_directions(scan.data, scan.bvals, world_from_fsl(flipped, scan.affine), mask)
    assert np.percentile(angles_deg(found, direction[mask]), 75) > 15


def test_noise_motion_and_distortion_are_separate_from_everything_else():
    plan = tiny_settings(outliers=0.3)
    spec = plan_cohort(plan)[1]
    full, clean = (
        simulate_participant(p, spec) for p in (plan, replace(plan, **STILL, outliers=0.0))
    )
    np.testing.assert_array_equal(full.truth.pose, clean.truth.pose)
    np.testing.assert_array_equal(full.truth.fibres, clean.truth.fibres)
    np.testing.assert_array_equal(full.bvecs_fsl, clean.bvecs_fsl)
    assert full.truth.state == clean.truth.state
    assert not clean.truth.motion.any()
    assert not clean.truth.eddy.any()
    assert full.truth.motion.any()
    # Volume 0 is the reference: still and hardly distorted, so only noise separates the two.
    noise = full.data[..., 0] - clean.data[..., 0]
    brain = full.truth.mask
    assert noise[brain].std() == pytest.approx(full.truth.noise_sigma, rel=0.15)


def undo_motion(scan):
    """Read each volume where the truth says the reference went, in one interpolation."""
    index = np.stack(np.meshgrid(*map(np.arange, scan.data.shape[:3]), indexing="ij"), axis=-1)
    corrected = np.empty_like(scan.data)
    for k, motion in enumerate(scan.truth.motion_matrices):
        voxel = np.linalg.inv(scan.affine) @ motion @ scan.affine
        where = index @ voxel[:3, :3].T + voxel[:3, 3]
        corrected[..., k] = ndimage.map_coordinates(
            scan.data[..., k], np.moveaxis(where, -1, 0), order=3, mode="nearest"
        )
    rotations = scan.truth.motion_matrices[:, :3, :3]
    return corrected, np.einsum("kji,kj->ki", rotations, scan.bvecs_ras)


@pytest.mark.parametrize("group", [0, 1])
def test_undoing_the_true_motion_restores_directions_only_with_turned_gradients(group):
    plan = tiny_settings(voxel_mm=6, **(STILL | {"motion_mm": 5, "motion_deg": 15}))
    scan = simulate_participant(plan, plan_cohort(plan)[group])
    mask, direction = single_fibre(scan.truth)
    corrected, turned = undo_motion(scan)
    medians = [
        np.median(angles_deg(main_directions(data, scan.bvals, bvecs, mask)[0], direction[mask]))
        for data, bvecs in (
            (corrected, turned),
            (corrected, scan.bvecs_ras),
            (scan.data, scan.bvecs_ras),
        )
    ]
    right, unturned, raw = medians
    assert right < 2.0
    assert unturned > right + 1.0
    assert raw > right + 1.0


def test_still_and_moved_scans_agree_after_undoing_motion():
    moved_plan = tiny_settings(
        voxel_mm=6, directions=6, **(STILL | {"motion_mm": 4, "motion_deg": 0})
    )
    spec = plan_cohort(moved_plan)[0]
    moved = simulate_participant(moved_plan, spec)
    still = simulate_participant(replace(moved_plan, motion_mm=0), spec)
    corrected, _ = undo_motion(moved)
    brain = ndimage.binary_erosion(still.truth.mask, iterations=1)
    before, after = (
        np.abs(data[brain] - still.data[brain]).mean() for data in (moved.data, corrected)
    )
    assert after < 0.35 * before


@pytest.fixture(scope="module")
def one_person_in_each_group():
    plan = tiny_settings(voxel_mm=6, macro_effect=0, sites=1, directions=32, **STILL)
    spec = plan_cohort(plan)[0]
    return [simulate_participant(plan, replace(spec, group=g)) for g in range(3)]


@pytest.mark.parametrize(("group", "region"), [(1, 0), (2, 1)])
def test_micro_effect_shows_on_the_sphere_and_not_in_its_mean(
    one_person_in_each_group, group, region
):
    control, patient = one_person_in_each_group[0], one_person_in_each_group[group]
    weighted = control.bvals > 50
    inside = (control.truth.regions[..., region] > 0.5) & (control.truth.tissue[..., 0] > 0.5)
    assert inside.sum() > 100
    one, two = (s.data[inside][:, weighted] for s in (control, patient))
    mean_change = np.abs(two.mean(axis=1) / one.mean(axis=1) - 1)
    assert mean_change.max() < 5e-4  # 32 directions are not quite the sphere
    assert np.abs(two - one).mean() / one.mean() > 0.05
    elsewhere = control.truth.regions.max(axis=-1) < 1e-9
    np.testing.assert_allclose(patient.data[elsewhere], control.data[elsewhere], atol=2.0)
    np.testing.assert_array_equal(patient.data[..., ~weighted], control.data[..., ~weighted])


def test_macro_effect_shows_without_diffusion_weighting():
    plan = tiny_settings(micro_effect=0, directions=6, **STILL)
    spec = plan_cohort(plan)[0]
    fluid = [
        simulate_participant(plan, replace(spec, group=g)).truth.tissue[..., 2].sum()
        for g in (0, 1, 2)
    ]
    assert fluid[1] > 1.03 * fluid[0]
    assert fluid[2] > 1.03 * fluid[1]


def test_a_travelling_subject_is_the_same_person_with_another_gain():
    plan = tiny_settings(voxel_mm=6, directions=6, sites=2, **STILL)
    spec = plan_cohort(plan)[0]
    here, there = (simulate_participant(plan, replace(spec, site=s)) for s in (0, 1))
    assert here.truth.state == there.truth.state
    assert there.truth.gains != here.truth.gains
    for scan in (here, there):
        # Grey matter and fluid are isotropic: they show the gain of degree 0 alone.
        white, grey, fluid = np.moveaxis(scan.truth.tissue, -1, 0)
        isotropic = (white < 0.02) & (grey + fluid > 0.97)
        assert isotropic.sum() > 20
        volume = int(np.argmax(scan.bvals))
        expected = sum(
            fraction * signal.isotropic_signal(compartment, scan.bvals[volume])
            for fraction, compartment in ((grey, signal.GREY), (fluid, signal.FLUID))
        )
        gain = scan.data[..., volume][isotropic] / expected[isotropic] / 1000
        assert np.median(gain) == pytest.approx(scan.truth.gains[0], rel=0.02)


def test_dropped_slices_are_where_the_truth_says():
    plan = tiny_settings(outliers=0.5, **STILL)
    spec = plan_cohort(plan)[0]
    dropped = simulate_participant(plan, spec)
    whole = simulate_participant(replace(plan, outliers=0.0), spec)
    assert len(dropped.truth.dropped) > 3
    expected = whole.data.copy()
    for volume, k, factor in dropped.truth.dropped:
        expected[:, :, k, volume] *= factor
    np.testing.assert_allclose(dropped.data, expected, rtol=1e-5)
    assert not whole.truth.dropped


@pytest.mark.parametrize("group", [0, 1])
def test_true_field_explains_the_opposite_b0s(group):
    """Undo the displacement of both b0s with the stored field: they must then agree."""
    plan = tiny_settings(voxel_mm=6, directions=6, reverse_b0=True, **STILL)
    scan = simulate_participant(plan, plan_cohort(plan)[group])
    assert scan.reverse_b0 is not None
    assert scan.truth.field_hz is not None
    shift = scan.truth.field_hz * scan.site.readout_s  # voxels along +j for polarity +1
    stretch = np.gradient(shift, axis=1)
    grid = np.meshgrid(*map(np.arange, shift.shape), indexing="ij")
    corrected = []
    for image, polarity in (
        (scan.data[..., 0], scan.site.polarity),
        (scan.reverse_b0, -scan.site.polarity),
    ):
        where = [grid[0], grid[1] + polarity * shift, grid[2]]
        corrected.append(ndimage.map_coordinates(image, where, order=3) * (1 + polarity * stretch))
    brain = scan.truth.mask
    raw = np.corrcoef(scan.data[..., 0][brain], scan.reverse_b0[brain])[0, 1]
    after = np.corrcoef(*(c[brain] for c in corrected))[0, 1]
    wrong = np.corrcoef(
        *(
            ndimage.map_coordinates(image, [grid[0], grid[1] - p * shift, grid[2]], order=3)[brain]
            for image, p in (
                (scan.data[..., 0], scan.site.polarity),
                (scan.reverse_b0, -scan.site.polarity),
            )
        )
    )[0, 1]
    assert after > 0.97
    assert raw < after - 0.02
    assert wrong < raw


def test_eddy_displaces_as_the_truth_says():
    plan = tiny_settings(voxel_mm=6, directions=12, **(STILL | {"eddy": 2.0}))
    spec = plan_cohort(plan)[1]
    distorted = simulate_participant(plan, spec)
    straight = simulate_participant(replace(plan, eddy=0.0), spec)
    size, shape = distorted.site.voxel_mm, distorted.data.shape[:3]
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    along = (grid - (np.array(shape) - 1) / 2) * size
    brain = ndimage.binary_erosion(straight.truth.mask, iterations=1)
    ratios = []
    for k in np.flatnonzero(np.abs(distorted.truth.eddy[:, 0]) > 1):
        const, *slopes = distorted.truth.eddy[k]
        where = grid.astype(float)
        where[..., 1] += (const + along @ slopes) / size[1]
        restored = (1 + slopes[1]) * ndimage.map_coordinates(
            distorted.data[..., k], np.moveaxis(where, -1, 0), order=3
        )
        target = straight.data[..., k][brain]
        ratios.append(
            np.abs(restored[brain] - target).mean()
            / np.abs(distorted.data[..., k][brain] - target).mean()
        )
    assert len(ratios) > 3
    assert max(ratios) < 0.5


def test_mask_is_the_brain_without_its_rim(clean_scans):
    scan = clean_scans[0]
    b0 = scan.data[..., 0]
    voxel_ml = abs(np.linalg.det(scan.affine)) / 1000
    assert 1200 < scan.truth.mask.sum() * voxel_ml < 2500
    rim = (b0 > 150) & ~ndimage.binary_dilation(scan.truth.mask, iterations=1)
    assert rim.sum() > 0.05 * scan.truth.mask.sum()  # scalp that a mask must leave out
    assert np.median(b0[rim]) < 0.5 * np.median(b0[scan.truth.mask])
    assert not scan.truth.mask[[0, -1]].any()


def test_signal_is_positive_under_every_gain(clean_scans):
    for scan in clean_scans:
        core = ndimage.binary_erosion(scan.truth.mask)
        assert scan.data[core].min() > 0


def test_t1w_shows_white_above_grey_above_fluid():
    plan = tiny_settings(voxel_mm=6, t1w=True, directions=6, **STILL)
    scan = simulate_participant(plan, plan_cohort(plan)[1])
    assert scan.t1w is not None
    assert scan.t1w_affine is not None
    to_t1w = np.linalg.inv(scan.t1w_affine) @ scan.affine
    levels = []
    for tissue in range(3):
        index = np.argwhere(scan.truth.tissue[..., tissue] > 0.7)
        where = index @ to_t1w[:3, :3].T + to_t1w[:3, 3]
        levels.append(np.median(ndimage.map_coordinates(scan.t1w, where.T, order=1)))
    assert levels[0] > 1.2 * levels[1] > 1.2 * 1.2 * levels[2]


def test_without_options_there_is_no_pair_and_no_t1w(clean_scans):
    scan = clean_scans[0]
    assert scan.reverse_b0 is None
    assert scan.t1w is None
    assert scan.truth.field_hz is None
