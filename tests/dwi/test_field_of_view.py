"""What left the field of view is no signal: in masks, means, fits and on the sphere."""

import numpy as np
import pytest

from bids_gevnet.dwi.field_of_view import (
    complete_part,
    coverage,
    see_brain,
    usable_volumes,
    volumes_without_data,
)
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.quality import assess_quality, tensor_misfit
from bids_gevnet.dwi.run_agreement import angle_between, main_directions
from bids_gevnet.dwi.sampling import sample_shell
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.phantom import simulate


@pytest.fixture(scope="module")
def cut():
    """A phantom whose highest slice of the brain is zero in every other volume."""
    scan = simulate(voxel_mm=6, directions=12, seed=4)
    top = int(np.argwhere(scan.truth.mask)[:, 2].max())
    data = np.array(scan.data[:, :, : top + 1])
    mask = scan.truth.mask[:, :, : top + 1]
    data[:, :, top, 1::2] = 0
    return data, mask, scan.bvals, scan.bvecs_ras


@pytest.fixture(scope="module")
def lost(cut):
    """The same phantom with a volume that was not measured at all."""
    data, mask, bvals, bvecs = cut
    data = data.copy()
    data[..., 5] = 0
    return data, mask, bvals, bvecs


def test_what_left_the_field_of_view_is_counted_and_a_dark_voxel_is_not():
    data = np.ones((8, 8, 8, 3), np.float32)
    data[4, 4, 4] = 0  # an overshoot that was cut off, in every volume
    shift = np.tile(np.eye(4), (3, 1, 1))
    shift[1, 2, 3], shift[2, 2, 3] = -1, -2  # the head moved down: the top was not seen
    moved = resample_series(data, np.eye(4), shift, (8, 8, 8), np.eye(4), order=1)
    count = volumes_without_data(moved)
    np.testing.assert_array_equal(count[:, :, 7], 2)
    np.testing.assert_array_equal(count[:, :, 6], 1)
    assert not count[:, :, :6].any()


@pytest.mark.parametrize(("slices", "share"), [(40, 1.0), (20, 1.0), (10, 0.5), (5, 0.25)])
def test_coverage_of_a_slab(slices, share):
    brain = np.zeros((30, 30, 30), bool)
    brain[5:25, 5:25, 5:25] = True
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    scan = np.eye(4)
    scan[:3, 3] = [0, 0, 10 / 2]  # in units of a world that is half as large
    to_template = np.diag([2.0, 2.0, 2.0, 1.0])
    found = coverage((30, 30, slices), scan, to_template, brain, affine)
    assert found == pytest.approx(share)
    far = np.eye(4)
    far[0, 3] = 1000
    assert coverage((30, 30, slices), scan, far, brain, affine) == 0


def test_a_slice_missing_in_half_of_the_volumes_leaves_the_mask(cut):
    data, mask, _, _ = cut
    seen = see_brain(mask, data)
    expected = mask.copy()
    expected[:, :, -1] = False
    np.testing.assert_array_equal(seen.mask, expected)
    assert seen.volumes.all()
    assert mask.sum() > expected.sum()


def test_an_empty_volume_is_lost_and_takes_no_voxel_along():
    brain = np.zeros((10, 10, 10), bool)
    brain[2:8, 2:8, 2:8] = True
    data = np.ones((10, 10, 10, 3), np.float32)
    data[..., 1] = 0
    seen = see_brain(brain, data)
    np.testing.assert_array_equal(seen.mask, brain)
    np.testing.assert_array_equal(seen.volumes, [True, False, True])


def test_a_dark_voxel_within_the_brain_stays():
    brain = np.zeros((10, 10, 10), bool)
    brain[2:8, 2:8, 2:10] = True
    data = np.ones((10, 10, 10, 4), np.float32)
    data[:, :, 9, 2] = 0
    data[5, 5, 5, 1] = 0
    np.testing.assert_array_equal(see_brain(brain, data).mask, brain & (np.arange(10) < 9))


def test_quality_is_that_of_the_voxels_that_every_volume_saw(cut):
    data, mask, bvals, bvecs = cut
    shells = find_shells(bvals)
    shell = choose_shell(shells)
    found = assess_quality(data, mask, bvals, bvecs, shells, shell)
    alone = assess_quality(data, see_brain(mask, data).mask, bvals, bvecs, shells, shell)
    assert found.tensor_residual == alone.tensor_residual
    assert found.mean_fa_white_matter == alone.mean_fa_white_matter
    assert found.neighbour_correlation == alone.neighbour_correlation


def test_a_fit_without_a_lost_volume_is_the_fit_of_the_others(lost):
    data, mask, bvals, bvecs = lost
    keep = usable_volumes(mask, data)
    np.testing.assert_array_equal(np.flatnonzero(~keep), [5])
    inside = see_brain(mask, data).mask
    signal = data[inside]
    assert tensor_misfit(signal, bvals, bvecs, b0_threshold=50) == tensor_misfit(
        signal[:, keep], bvals[keep], bvecs[keep], b0_threshold=50
    )
    shells, others = find_shells(bvals), find_shells(bvals[keep])
    found = assess_quality(data, mask, bvals, bvecs, shells, choose_shell(shells))
    alone = assess_quality(
        data[..., keep], mask, bvals[keep], bvecs[keep], others, choose_shell(others)
    )
    assert found.tensor_residual == pytest.approx(alone.tensor_residual)
    assert found.cnr == pytest.approx(alone.cnr)


def test_samples_without_a_lost_volume_are_those_of_the_others(lost):
    data, mask, bvals, bvecs = lost
    keep = usable_volumes(mask, data)
    inside = see_brain(mask, data).mask
    found = sample_shell(data, bvals, bvecs, inside, nside=2)
    alone = sample_shell(data[..., keep], bvals[keep], bvecs[keep], inside, nside=2)
    np.testing.assert_allclose(found.samples, alone.samples, atol=1e-6)
    assert found.shell.n_volumes == alone.shell.n_volumes == 11


def test_main_directions_are_compared_where_both_runs_have_data(cut):
    data, mask, bvals, bvecs = cut
    signal = data[mask]
    found = main_directions(signal, bvals, bvecs, b0_threshold=50)
    complete, _ = complete_part(signal)
    assert not found.white[~complete].any()
    assert angle_between(found, found) == pytest.approx(0, abs=1e-3)


def test_a_mean_counts_the_volumes_that_have_data():
    data = np.array([[2.0, 4.0, 6.0], [0.0, 4.0, 6.0], [0.0, 0.0, 6.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(mean_volume(data, np.arange(3)), [4, 5, 6, 0])
