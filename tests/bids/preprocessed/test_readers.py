"""Phantom scans named as each pipeline names them are found, and what is missing is said."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from phantom_scan import still_scan
from preprocessed_layouts import (
    describe,
    write_fsl_eddy,
    write_hcp,
    write_qsiprep,
    write_ukb,
)

from bids_gevnet.bids.preprocessed.query import find_preprocessed
from bids_gevnet.bids.preprocessed.sources import find_sources
from bids_gevnet.bids.query import find_participants
from bids_gevnet.errors import InputError
from bids_gevnet.settings import SelectionSettings


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return still_scan(tmp_path_factory.mktemp("raw") / "raw")


def participants(folder, *options, **selection):
    chosen = SelectionSettings(derivatives=options, **selection)
    sources = find_sources(folder, options)
    return find_preprocessed(folder, sources, chosen, b0_threshold=50)


def only_run(folder, *options, **selection):
    (participant,) = participants(folder, *options, **selection)
    assert participant.usable, participant.problems
    (run,) = participant.runs
    return run


def only_problem(folder, *options, **selection):
    (participant,) = participants(folder, *options, **selection)
    (problem,) = participant.problems
    return str(problem)


def test_a_qsiprep_dataset_is_known_by_its_description(tmp_path, scan):
    series = write_qsiprep(tmp_path / "out", scan)
    run = only_run(tmp_path / "out")
    taken = run.preprocessed
    assert run.image == series
    assert run.name == "sub-001"
    assert run.uri == f"bids:qsiprep:sub-001/dwi/{series.name}"
    assert str(taken.dataset) == "QSIPrep 1.0.1"
    assert taken.bvec_axes == "voxel"
    assert run.mask.name == "sub-001_space-ACPC_desc-brain_mask.nii.gz"
    assert taken.template == "MNI152NLin2009cAsym"
    assert taken.transform_to("MNI152NLin2009aSym") == taken.transform
    assert taken.transform_to("MNI152NLin6Asym") is None
    assert taken.quality["t1_neighbor_corr"] == 0.79
    assert "file_name" not in taken.quality
    assert run.metadata == {"Manufacturer": "Siemens"}


def test_names_of_older_versions_of_qsiprep(tmp_path, scan):
    """As 0.21 wrote them: T1w for ACPC, confounds without desc, quality as CSV."""
    write_qsiprep(tmp_path / "out", scan)
    for path in sorted((tmp_path / "out").rglob("*ACPC*")):
        path.rename(path.with_name(path.name.replace("ACPC", "T1w")))
    folder = tmp_path / "out/sub-001/dwi"
    (folder / "sub-001_desc-confounds_timeseries.tsv").rename(folder / "sub-001_confounds.tsv")
    quality = folder / "sub-001_space-T1w_desc-image_qc.tsv"
    commas = quality.read_text().replace("\t", ",")
    (folder / "sub-001_desc-ImageQC_dwi.csv").write_text(commas)
    quality.unlink()
    t1w = tmp_path / "out/sub-001/anat/sub-001_desc-preproc_T1w.nii.gz"
    write_mask(t1w, scan.image)
    taken = only_run(tmp_path / "out").preprocessed
    assert taken.template == "MNI152NLin2009cAsym"
    assert taken.mask.name == "sub-001_space-T1w_desc-brain_mask.nii.gz"
    assert taken.confounds.name == "sub-001_confounds.tsv"
    assert taken.quality["t1_neighbor_corr"] == 0.79
    assert taken.t1w == t1w


def test_the_anatomy_in_acpc_is_taken_and_not_that_in_mni(tmp_path, scan):
    write_qsiprep(tmp_path / "out", scan)
    for space in ("ACPC", "MNI152NLin2009cAsym"):
        anatomy = f"sub-001/anat/sub-001_space-{space}_desc-preproc_T1w.nii.gz"
        write_mask(tmp_path / "out" / anatomy, scan.image)
    taken = only_run(tmp_path / "out").preprocessed
    assert taken.t1w.name == "sub-001_space-ACPC_desc-preproc_T1w.nii.gz"


@pytest.mark.parametrize("as_bids_dir", [True, False])
def test_a_qsiprep_dataset_without_a_description_is_known_by_its_names(
    tmp_path, scan, as_bids_dir
):
    write_qsiprep(tmp_path / "out", scan)
    (tmp_path / "out" / "dataset_description.json").unlink()
    taken = only_run(tmp_path / "out", *([] if as_bids_dir else [str(tmp_path / "out")]))
    assert str(taken.preprocessed.dataset) == "QSIPrep"


@pytest.mark.parametrize("named", ["", "hcp="])
def test_an_hcp_tree(tmp_path, scan, named):
    series = write_hcp(tmp_path / "hcp", scan, name="100307")
    run = only_run(tmp_path, f"{named}{tmp_path / 'hcp'}")
    assert (run.image, run.name) == (series, "sub-100307")
    assert (run.bval.name, run.bvec.name) == ("bvals", "bvecs")
    assert run.mask.name == "nodif_brain_mask.nii.gz"
    assert run.preprocessed.bvec_axes == "fsl"
    assert run.preprocessed.eddy_base.name == "eddy_unwarped_images"


def test_what_is_not_used_of_hcp_is_noted(tmp_path, scan):
    series = write_hcp(tmp_path, scan)
    assert only_run(tmp_path).notes == ()
    (series.parent / "grad_dev.nii.gz").touch()
    assert "gradient nonlinearity) is not used" in only_run(tmp_path).notes[0]


def test_an_hcp_lifespan_session(tmp_path, scan):
    write_hcp(tmp_path, scan, name="HCA6002236_V1_MR")
    assert only_run(tmp_path).name == "sub-HCA6002236_ses-V1"


def test_uk_biobank_takes_the_unwarped_series_and_the_rotated_directions(tmp_path, scan):
    series = write_ukb(tmp_path, scan, name="1234567_20250_2_0")
    run = only_run(tmp_path)
    assert (run.image, run.name) == (series, "sub-1234567_ses-2")
    assert run.bvec.name == "data.eddy_rotated_bvecs"
    assert run.notes == ()


def test_directions_without_the_rotation_of_the_head_are_noted(tmp_path, scan):
    write_ukb(tmp_path, scan, name="1234567", rotated=False)
    run = only_run(tmp_path)
    assert run.bvec.name == "bvecs"
    assert "without the rotation of the head" in run.notes[0]


def test_outputs_of_eddy_under_any_name(tmp_path, scan):
    series = write_fsl_eddy(tmp_path, scan, out="eddy_corrected_data", session="b")
    run = only_run(tmp_path)
    assert (run.image, run.name) == (series, "sub-001_ses-b")
    assert run.bvec.name == "eddy_corrected_data.eddy_rotated_bvecs"
    assert run.mask.name == "nodif_brain_mask.nii.gz"


def test_eddy_writes_no_b_values_so_they_are_asked_for(tmp_path, scan):
    series = write_fsl_eddy(tmp_path, scan)
    (series.parent / "bvals").unlink()
    assert "copy the b-values that eddy was given" in only_problem(tmp_path)


def test_eddy_without_rotated_directions_is_refused(tmp_path, scan):
    series = write_fsl_eddy(tmp_path, scan)
    (series.parent / "eddy_corrected.eddy_rotated_bvecs").unlink()
    assert "directions that eddy rotated" in only_problem(tmp_path)


def test_a_pipeline_nobody_knows_is_named(tmp_path, scan):
    write_qsiprep(tmp_path / "out", scan)
    describe(tmp_path / "out", "dmriprep", "0.5")
    with pytest.raises(InputError, match="generated by dmriprep"):
        find_sources(tmp_path / "out", ())
    assert only_run(tmp_path, f"qsiprep={tmp_path / 'out'}").preprocessed.dataset.version == ""


def test_a_folder_without_scans_is_refused(tmp_path):
    with pytest.raises(InputError, match="files of none of them"):
        find_sources(tmp_path, (str(tmp_path),))
    with pytest.raises(InputError, match="no folder"):
        find_sources(tmp_path, (f"qsiprep={tmp_path / 'nowhere'}",))


@pytest.mark.parametrize(("name", "is_derivative"), [("dcm2bids", False), ("QSIPrep", True)])
def test_without_a_type_the_name_of_the_pipeline_tells(tmp_path, scan, name, is_derivative):
    """As QSIPrep wrote before 0.19, and as converters write in raw datasets."""
    write_qsiprep(tmp_path, scan)
    description = {"Name": "x", "BIDSVersion": "1.1.1", "PipelineDescription": {"Name": name}}
    (tmp_path / "dataset_description.json").write_text(json.dumps(description))
    assert bool(find_sources(tmp_path, ())) == is_derivative


def test_a_raw_dataset_is_none_of_these(dataset):
    assert find_sources(dataset.root, ()) == ()


def test_what_is_missing_is_one_participants_problem(tmp_path, scan):
    for label in ("01", "02", "03", "04"):
        write_qsiprep(tmp_path, type(scan)(label, *list(vars(scan).values())[1:]))
    folder = tmp_path / "sub-01/dwi"
    (folder / "sub-01_space-ACPC_desc-preproc_dwi.bvec").unlink()
    bval = tmp_path / "sub-02/dwi/sub-02_space-ACPC_desc-preproc_dwi.bval"
    bval.write_text(" ".join(bval.read_text().split()[:-1]) + "\n")
    (tmp_path / "sub-03/anat/sub-03_from-ACPC_to-MNI152NLin2009cAsym_mode-image_xfm.h5").unlink()
    found = {p.label: p for p in participants(tmp_path)}
    assert "gradient directions" in str(found["01"].problems[0])
    assert "as many b-values and gradient vectors as volumes" in str(found["02"].problems[0])
    assert found["03"].usable
    assert found["03"].runs[0].notes == ("QSIPrep left no transform to an MNI template",)
    assert found["04"].usable
    assert found["04"].runs[0].notes == ()


def test_a_bvec_file_in_fsls_convention_contradicts_the_table_of_qsiprep(tmp_path, scan):
    series = write_qsiprep(tmp_path, scan)
    bvec = series.with_name("sub-001_space-ACPC_desc-preproc_dwi.bvec")
    np.savetxt(bvec, np.loadtxt(bvec) * [[-1], [1], [1]])
    assert "along the voxel axes" in only_problem(tmp_path)


@pytest.mark.parametrize("damage", ["text", "half", "empty"])
def test_a_broken_transform_is_found_before_anything_runs(tmp_path, scan, damage):
    """ANTs would not say so: it ends the process."""
    write_qsiprep(tmp_path, scan)
    transform = next(tmp_path.glob("sub-001/anat/*_xfm.h5"))
    whole = transform.read_bytes()
    damaged = {"text": b"nothing", "half": whole[: len(whole) // 2], "empty": b""}[damage]
    transform.write_bytes(damaged)
    assert "an ITK transform in" in only_problem(tmp_path)


def test_sessions_and_participants_are_chosen(tmp_path, scan):
    for session in ("1", "2"):
        write_qsiprep(tmp_path, scan, session=session)
    (both,) = participants(tmp_path)
    assert [run.session for run in both.runs] == ["1", "2"]
    assert only_run(tmp_path, session_label=("ses-2",)).session == "2"
    with pytest.raises(InputError, match="labels of sessions"):
        participants(tmp_path, session_label=("3",))
    with pytest.raises(InputError, match="labels of participants"):
        participants(tmp_path, exclude_participant_label=("999",))


def test_a_filter_file_chooses_by_names(tmp_path, scan):
    series = write_qsiprep(tmp_path, scan)
    for acquisition in ("a", "b"):
        for path in sorted(series.parent.glob("sub-001_[sd]*")):
            shutil.copy(path, path.with_name(path.name.replace("001_", f"001_acq-{acquisition}_")))
    filters = tmp_path / "filter.json"
    filters.write_text(json.dumps({"dwi": {"acquisition": "b"}}))
    assert only_run(tmp_path, bids_filter_file=filters).entities["acq"] == "b"
    filters.write_text(json.dumps({"dwi": {"subject": "x"}}))
    with pytest.raises(InputError, match="for preprocessed scans"):
        participants(tmp_path, bids_filter_file=filters)


def test_who_was_scanned_and_not_preprocessed_is_said(tmp_path, scan, dataset):
    write_qsiprep(tmp_path / "out", scan)
    found = {p.label: p for p in participants(dataset.root, str(tmp_path / "out"))}
    assert sorted(found) == ["001", "01", "02"]
    assert found["001"].usable
    assert "a preprocessed scan of participant 01" in str(found["01"].problems[0])


def test_the_first_of_several_datasets_counts(tmp_path, scan):
    write_qsiprep(tmp_path / "a", scan)
    write_hcp(tmp_path / "b", scan)
    write_hcp(tmp_path / "b", scan, name="other")
    found = participants(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    assert {p.label: p.runs[0].preprocessed.dataset.pipeline for p in found} == {
        "001": "qsiprep",
        "other": "hcp",
    }


def test_derivatives_in_a_raw_dataset_are_refused(dataset):
    """Without this they would be corrected twice, and written under doubled names."""
    folder = dataset.dwi("").parent
    for path in sorted(folder.glob("sub-01_dwi.*")):
        path.rename(path.with_name(path.name.replace("_dwi", "_space-ACPC_desc-preproc_dwi")))
    first, second = find_participants(dataset.root, SelectionSettings(), b0_threshold=50)
    assert "--derivatives" in str(first.problems[0])
    assert second.usable


def write_mask(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = image.shape[:3]
    nib.save(nib.Nifti1Image(np.ones(shape, np.uint8), image.affine), path)


def test_a_mask_beside_the_scan_is_used(dataset):
    mask = dataset.dwi("").with_name("sub-01_desc-brain_mask.nii.gz")
    write_mask(mask, nib.load(dataset.dwi(".nii.gz")))
    first, second = find_participants(dataset.root, SelectionSettings(), b0_threshold=50)
    assert first.runs[0].mask == mask
    assert second.runs[0].mask is None


def test_masks_of_a_folder_of_their_own(dataset, tmp_path):
    masks = tmp_path / "masks"
    image = nib.load(dataset.dwi(".nii.gz"))
    write_mask(masks / "sub-01/dwi/sub-01_desc-brain_mask.nii.gz", image)
    write_mask(masks / "sub-02/dwi/sub-02_space-MNI152NLin2009cAsym_desc-brain_mask.nii.gz", image)
    selection = SelectionSettings(mask_derivatives=masks)
    first, second = find_participants(dataset.root, selection, b0_threshold=50)
    assert first.runs[0].mask == masks / "sub-01/dwi/sub-01_desc-brain_mask.nii.gz"
    assert "none in the space of the scan" in str(second.problems[0])
    with pytest.raises(InputError, match="--mask-derivatives"):
        find_participants(
            dataset.root, SelectionSettings(mask_derivatives=tmp_path / "no"), b0_threshold=50
        )


def test_an_own_mask_wins_over_that_of_the_pipeline(tmp_path, scan):
    series = write_qsiprep(tmp_path / "out", scan)
    own = tmp_path / "masks/sub-001/dwi/sub-001_space-ACPC_desc-brain_mask.nii.gz"
    write_mask(own, nib.load(series))
    assert only_run(tmp_path / "out", mask_derivatives=tmp_path / "masks").mask == own
