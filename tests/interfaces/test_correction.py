"""The model-based corrector from files to files: an opposite pair, a lost slice, two runs."""

from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.model_corrector.warp import still_warp
from bids_gevnet.facts import CorrectionFacts
from bids_gevnet.interfaces.confounds import read_confounds
from bids_gevnet.interfaces.correction import CorrectSeries, eddy_displacement_mm
from bids_gevnet.interfaces.resampling import ResampleToTemplate
from bids_gevnet.interfaces.runs import JoinRuns
from bids_gevnet.interfaces.series import Series, read_facts, write_series
from bids_gevnet.interfaces.warps import (
    is_still,
    link_run,
    load_placements,
    save_placements,
    save_warps,
)
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant


@pytest.fixture(scope="module")
def scan():
    settings = PhantomSettings(
        groups=("AD",), per_group=1, sites=1, voxel_mm=8.0, directions=8, seed=4,
        outliers=0.5, reverse_b0=True,
    )  # fmt: skip
    return simulate_participant(settings, plan_cohort(settings)[0])


def correction_node(folder, site, image, gradients):
    return CorrectSeries(
        image=str(image),
        gradients=str(gradients),
        raw_image=str(folder / "raw.nii.gz"),
        opposite_images=[str(folder / "again.nii.gz"), str(folder / "reverse.nii.gz")],
        opposite_bvals=["", ""],
        opposite_certain=[False, False],
        opposite_readout_s=[site.readout_s] * 2,
        direction=site.phase_encoding,
        readout_s=site.readout_s,
    )


@pytest.fixture(scope="module")
def corrected(scan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corrected")
    nib.save(nib.Nifti1Image(scan.data, scan.affine), folder / "raw.nii.gz")
    nib.save(nib.Nifti1Image(scan.reverse_b0, scan.affine), folder / "reverse.nii.gz")
    # A b0 of the same encoding, with other noise.
    noise = np.random.default_rng(0).normal(0, 0.02 * scan.data.max(), scan.data.shape[:3])
    again = np.abs(scan.data[..., 0] + noise)
    nib.save(nib.Nifti1Image(again, scan.affine), folder / "again.nii.gz")
    image = conform(scan.data, scan.affine, scan.bvecs_ras)
    (folder / "conformed").mkdir()
    path, gradients = write_series(
        folder / "conformed", Series(image.data, image.affine, scan.bvals, image.bvecs_ras)
    )
    (folder / "work").mkdir()
    node = correction_node(folder, scan.site, path, gradients)
    return folder, path, node.run(cwd=str(folder / "work")).outputs


def test_facts_tell_what_was_done(corrected, scan):
    facts = read_facts(corrected[2].facts, CorrectionFacts)
    assert facts.method == "model"
    assert facts.eddy_currents is True
    assert facts.susceptibility == "corrected"
    assert facts.field.correlation_after > facts.field.correlation_before
    assert facts.outlier_slices == len(facts.outliers) >= 1
    assert np.shape(facts.eddy_terms_mm) == (len(scan.bvals), 10)
    assert [np.ndim(plane) for plane in (*facts.field.planes_mm, *facts.field.head)] == [2] * 6


def test_b0s_of_unknown_encoding_are_tried_both_ways(corrected):
    facts = read_facts(corrected[2].facts, CorrectionFacts)
    assert [(trial.image, trial.opposite) for trial in facts.encoding_trials] == [
        ("again.nii.gz", False),
        ("reverse.nii.gz", True),
    ]


def test_the_field_is_that_of_b0s_as_acquired_whatever_cleaning_did(corrected, scan, tmp_path):
    """Opposite b0s cannot be denoised; here cleaning has blurred the run beyond recognition."""
    folder, path, outputs = corrected
    image = nib.load(path)
    blurred = gaussian_filter(np.asarray(image.dataobj, dtype=np.float32), (2, 2, 2, 0))
    nib.save(nib.Nifti1Image(blurred, image.affine), tmp_path / "cleaned.nii")
    facts = read_facts(outputs.facts, CorrectionFacts)
    node = correction_node(
        folder, scan.site, tmp_path / "cleaned.nii", path.parent / "gradients.tsv"
    )
    found = read_facts(node.run(cwd=str(tmp_path)).outputs.facts, CorrectionFacts)
    assert found.field.correlation_before == facts.field.correlation_before
    assert found.field.correlation_after == facts.field.correlation_after


def test_lost_slices_are_filled_and_nothing_else_changes(corrected):
    _, before, outputs = corrected
    facts = read_facts(outputs.facts, CorrectionFacts)
    raw = np.asarray(nib.load(before).dataobj)
    filled = np.asarray(nib.load(outputs.image).dataobj)
    changed = {tuple(i) for i in np.argwhere((raw != filled).any(axis=(0, 1)))}
    assert changed == {(outlier.slice, outlier.volume) for outlier in facts.outliers}


def test_confounds_have_every_kind_of_column(corrected, scan):
    table = read_confounds(corrected[2].confounds)
    assert len(table) == len(scan.bvals)
    assert {"trans_x", "rot_z", "outlier_slices", "eddy_displacement"} <= set(table)
    assert table["eddy_displacement"][0] == 0


def test_joined_and_resampled_once(corrected, scan, tmp_path):
    _, _, outputs = corrected
    joined = JoinRuns(
        images=[outputs.image] * 2,
        gradients=[outputs.gradients] * 2,
        confounds=[outputs.confounds] * 2,
        transforms=[outputs.transforms] * 2,
        names=["run-1", "run-2"],
    ).run(cwd=str(tmp_path)).outputs  # fmt: skip
    native = np.asarray(nib.load(joined.native).dataobj)
    count = len(scan.bvals)
    assert native.shape[3] == 2 * count
    confounds = read_confounds(joined.confounds)
    assert "eddy_displacement" in confounds
    # Motion is told against the first b0 of each run: a step from one run to the next is none.
    gaps = np.flatnonzero(confounds["framewise_displacement"].isna())
    np.testing.assert_array_equal(gaps, [0, count])
    first = nib.load(joined.native)
    mask = tmp_path / "mask.nii"
    write_image(mask, np.ones(native.shape[:3], bool), first.affine)
    (tmp_path / "standard").mkdir()
    same = ResampleToTemplate(
        image=joined.image,
        gradients=joined.gradients,
        transforms=joined.transforms,
        mask=str(mask),
        to_template=np.eye(4).tolist(),
        grid_shape=list(native.shape[:3]),
        grid_affine=first.affine.tolist(),
    ).run(cwd=str(tmp_path / "standard")).outputs  # fmt: skip
    again = np.asarray(nib.load(same.image).dataobj)
    np.testing.assert_allclose(again, native, atol=1e-2 * native.max())


def test_eddy_displacement_is_the_mean_over_the_ball():
    rng = np.random.default_rng(0)
    eddy = rng.normal(size=(1, 10))
    points = rng.normal(size=(400_000, 3))
    points *= (rng.uniform(size=400_000) ** (1 / 3) / np.linalg.norm(points, axis=1))[:, None]
    x, y, z = points.T
    basis = [np.ones_like(x), x, y, z, x * x, y * y, z * z, x * y, x * z, y * z]
    expected = np.sqrt(np.mean((eddy[0] @ np.stack(basis)) ** 2))
    np.testing.assert_allclose(eddy_displacement_mm(eddy), expected, rtol=0.01)


class TestWarpFiles:
    def test_warps_survive_the_disk(self, tmp_path):
        field = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
        warp = replace(still_warp(2, 2, field), link=np.diag([1.0, 1, 1, 1]) + 0.5)
        warp.eddy[:] = np.arange(20).reshape(2, 10)
        (back,) = load_placements(save_warps(tmp_path / "warps.npz", [warp]))
        for name in ("motion", "eddy", "field", "link"):
            np.testing.assert_array_equal(getattr(back, name), getattr(warp, name))
        assert back.axis == 2

    def test_rigid_runs_stay_a_stack(self, tmp_path):
        stack = np.tile(np.eye(4), (3, 1, 1))
        path = save_placements(tmp_path, [stack, stack])
        assert path.suffix == ".npy"
        (back,) = load_placements(path)
        assert back.shape == (6, 4, 4)
        assert is_still(back)

    def test_a_rigid_run_beside_a_warped_one(self, tmp_path):
        rigid = np.tile(np.eye(4), (2, 1, 1))
        rigid[:, 0, 3] = 5
        first, second = load_placements(save_placements(tmp_path, [still_warp(1, 1), rigid]))
        assert not is_still(first)
        np.testing.assert_allclose(second.transforms, rigid)

    def test_a_link_goes_behind_either(self):
        shift = np.eye(4)
        shift[2, 3] = 4
        rigid = link_run(np.tile(np.eye(4), (2, 1, 1)), shift)
        np.testing.assert_array_equal(rigid[1], shift)
        np.testing.assert_array_equal(link_run(still_warp(1, 1), shift).link, shift)
