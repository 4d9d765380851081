"""What is taken from another pipeline means the same as what raw data would give."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from phantom_scan import still_scan
from preprocessed_layouts import (
    read_raw,
    write_composite,
    write_fsl_eddy,
    write_hcp,
    write_qsiprep,
    write_ukb,
)

from bids_gevnet.bids.preprocessed.query import find_preprocessed
from bids_gevnet.bids.preprocessed.sources import find_sources
from bids_gevnet.dwi.ants_linear import apply_itk_transform
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.gradients import direction_angle_deg, rotate_bvecs
from bids_gevnet.dwi.registration import fit_affine
from bids_gevnet.errors import ParticipantError
from bids_gevnet.interfaces.preprocessed import TakeMask, TakeSeries, read_motion_table
from bids_gevnet.interfaces.series import read_series
from bids_gevnet.settings import SelectionSettings

WRITERS = {
    "qsiprep": write_qsiprep,
    "hcp": write_hcp,
    "ukb": lambda root, scan: write_ukb(root, scan, name=scan.label),
    "fsl_eddy": write_fsl_eddy,
}


@pytest.fixture(scope="module", params=["aligned", "oblique"])
def scan(request, tmp_path_factory):
    """A still head; the second site of the phantom tilts its slices."""
    folder = tmp_path_factory.mktemp("raw") / "raw"
    if request.param == "aligned":
        return still_scan(folder)
    still_scan(folder, groups=("AD", "PD"), sites=2)
    return read_raw(folder, "002")


@pytest.fixture(params=list(WRITERS))
def run(request, scan, tmp_path):
    """The same head as each pipeline would have left it."""
    root = tmp_path / "derivatives"
    WRITERS[request.param](root, scan)
    (participant,) = find_preprocessed(
        root, find_sources(root, ()), SelectionSettings(), b0_threshold=50
    )
    return participant.runs[0]


def take(run, monkeypatch, tmp_path, **changes):
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.chdir(folder)
    taken = run.preprocessed
    inputs = {
        "image": str(run.image),
        "bval": str(run.bval),
        "bvec": str(run.bvec),
        "bvec_axes": taken.bvec_axes,
        "program": str(taken.dataset),
    }
    return TakeSeries(**(inputs | changes)).run().outputs


def largest_angle(outputs, scan):
    """Between the directions taken and those of the raw scan, both relative to the head."""
    series = read_series(outputs.image, outputs.gradients)
    raw = conform(np.asarray(scan.image.dataobj), scan.image.affine, scan.bvecs_ras)
    weighted = scan.bvals > 50
    # An oblique scan has turned with its header in both; what is left is the same head.
    assert series.data.shape == raw.data.shape
    np.testing.assert_array_equal(series.data, raw.data)
    return direction_angle_deg(series.bvecs_ras[weighted], raw.bvecs_ras[weighted]).max()


def test_directions_and_voxels_are_those_of_the_raw_scan(run, scan, monkeypatch, tmp_path):
    assert largest_angle(take(run, monkeypatch, tmp_path), scan) < 0.01


def test_the_wrong_convention_would_show(run, scan, monkeypatch, tmp_path):
    wrong = {"fsl": "voxel", "voxel": "fsl"}[run.preprocessed.bvec_axes]
    outputs = take(run, monkeypatch, tmp_path, bvec_axes=wrong)
    positive = np.linalg.det(nib.load(run.image).affine[:3, :3]) > 0
    assert (largest_angle(outputs, scan) > 20) == positive


def test_axis_aligned_scans_keep_their_world(scan, monkeypatch, tmp_path):
    series = write_qsiprep(tmp_path / "out", scan)
    (participant,) = find_preprocessed(
        tmp_path / "out", find_sources(tmp_path / "out", ()), SelectionSettings(), b0_threshold=50
    )
    outputs = take(participant.runs[0], monkeypatch, tmp_path)
    np.testing.assert_array_equal(outputs.old_to_new, np.eye(4))
    taken, given = nib.load(outputs.image), nib.load(series)
    centre = np.append((np.array(given.shape[:3]) - 1) / 2, 1)
    np.testing.assert_allclose(taken.affine @ centre, given.affine @ centre, atol=1e-4)


def test_motion_of_eddy_becomes_framewise_displacement(scan, monkeypatch, tmp_path):
    write_fsl_eddy(tmp_path / "eddy", scan)
    (participant,) = find_preprocessed(
        tmp_path / "eddy", find_sources(tmp_path / "eddy", ()), SelectionSettings(),
        b0_threshold=50,
    )  # fmt: skip
    run = participant.runs[0]
    outputs = take(run, monkeypatch, tmp_path, eddy_base=str(run.preprocessed.eddy_base))
    table = pd.read_csv(outputs.confounds, sep="\t", na_values=["n/a"])
    np.testing.assert_allclose(table["framewise_displacement"][1:], 0.2, atol=1e-6)
    assert np.isnan(table["framewise_displacement"][0])
    assert table["outlier_slices"].sum() == 1
    facts = json.loads(Path(outputs.correction_facts).read_text())
    assert facts["method"] == "preprocessed"
    assert facts["program"] == "FSL eddy"
    assert facts["outlier_slices"] == 1


def test_confounds_of_qsiprep_are_read_as_they_are(tmp_path):
    path = tmp_path / "confounds.tsv"
    path.write_text("framewise_displacement\ttrans_x\toriginal_file\nn/a\t0\ta\n0.5\t1\ta\n")
    table = read_motion_table(path, 2)
    assert list(table.columns) == ["framewise_displacement", "trans_x"]
    assert table["framewise_displacement"][1] == 0.5
    assert read_motion_table(path, 3)["framewise_displacement"].isna().all()


def test_an_averaged_pair_counts_with_its_larger_motion(tmp_path):
    path = tmp_path / "confounds.tsv"
    path.write_text("framewise_displacement_1\tframewise_displacement_2\n0.5\t0.2\n0.1\t0.3\n")
    assert read_motion_table(path, 2)["framewise_displacement"].tolist() == [0.5, 0.3]


def test_a_composite_transform_is_read_from_the_template_to_the_scan(tmp_path):
    known = np.eye(4)
    known[:3, :3] = [[1.1, 0.1, 0], [-0.1, 0.9, 0.2], [0, -0.1, 1]]
    known[:3, 3] = (3, -7, 12)
    write_composite(tmp_path / "xfm.h5", known, bump_mm=0)
    points = np.random.default_rng(0).uniform(-60, 60, (500, 3))
    moved = apply_itk_transform(tmp_path / "xfm.h5", points)
    np.testing.assert_allclose(moved, points @ known[:3, :3].T + known[:3, 3], atol=1e-3)
    affine, residual = fit_affine(moved, points)
    np.testing.assert_allclose(affine, np.linalg.inv(known), atol=1e-3)
    assert residual < 1e-2


def test_what_an_affine_cannot_say_is_measured(tmp_path):
    write_composite(tmp_path / "xfm.h5", np.eye(4), bump_mm=4)
    points = np.random.default_rng(0).uniform(-60, 60, (5000, 3))
    affine, residual = fit_affine(apply_itk_transform(tmp_path / "xfm.h5", points), points)
    np.testing.assert_allclose(affine[:3, :3], np.eye(3), atol=0.02)
    # A wave of height 4 has a root mean square of 4/√2; joined by lines, a little less.
    assert 2.0 < residual < 4 / np.sqrt(2)


def test_a_given_mask_lands_on_the_scan(scan, monkeypatch, tmp_path):
    """In other axes and conformed with the scan, it covers the same voxels."""
    monkeypatch.chdir(tmp_path)
    raw = conform(np.asarray(scan.image.dataobj), scan.image.affine)
    nib.save(nib.Nifti1Image(raw.data, raw.affine), "series.nii")
    nib.save(scan.mask, "given.nii.gz")
    outputs = TakeMask(
        mask=str(tmp_path / "given.nii.gz"),
        image=str(tmp_path / "series.nii"),
        old_to_new=raw.old_to_new.tolist(),
    ).run().outputs  # fmt: skip
    expected = conform(np.asarray(scan.mask.dataobj), scan.mask.affine).data > 0
    np.testing.assert_array_equal(np.asarray(nib.load(outputs.mask).dataobj) > 0, expected)


def test_a_mask_of_another_place_is_refused(scan, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    nib.save(scan.image, "series.nii")
    far = scan.mask.affine.copy()
    far[0, 3] += 5000
    nib.save(nib.Nifti1Image(np.asarray(scan.mask.dataobj), far), "given.nii.gz")
    with pytest.raises(ParticipantError, match="in the field of view"):
        TakeMask(
            mask=str(tmp_path / "given.nii.gz"),
            image=str(tmp_path / "series.nii"),
            old_to_new=np.eye(4).tolist(),
        ).run()


def test_rotating_the_head_to_acpc_rotates_the_layout(scan):
    """The phantom's writer is checked, too: its ACPC directions are those of a turned head."""
    acpc = conform(np.asarray(scan.image.dataobj), scan.image.affine).old_to_new
    turned = rotate_bvecs(scan.bvecs_ras, acpc)
    assert np.allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(scan.bvecs_ras, axis=1))
