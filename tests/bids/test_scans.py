import json
import shutil

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.query import find_participants
from bids_gevnet.bids.scans import find_scans
from bids_gevnet.settings import SelectionSettings


def copy_run(dataset, entity):
    for source in list(dataset.dwi("").parent.glob("sub-01_dwi.*")):
        shutil.copy(source, source.with_name(source.name.replace("_dwi", f"_{entity}_dwi")))
    return dataset.dwi("").parent / f"sub-01_{entity}_dwi"


def scans_of(dataset):
    selection = SelectionSettings(participant_label=("01",))
    (participant,) = find_participants(dataset.root, selection, b0_threshold=50)
    return find_scans(participant, b0_threshold=50)


def drop_first_run(dataset):
    for path in list(dataset.dwi("").parent.glob("sub-01_dwi.*")):
        path.unlink()


def test_one_run_is_one_scan(dataset):
    (scan,) = scans_of(dataset)
    assert scan.name == "sub-01"
    assert len(scan.runs) == 1


def test_runs_that_fit_join_under_what_they_share(dataset):
    for entity in ("dir-AP", "dir-PA"):
        copy_run(dataset, entity)
    drop_first_run(dataset)
    (scan,) = scans_of(dataset)
    assert scan.name == "sub-01"
    assert [run.entities["dir"] for run in scan.runs] == ["AP", "PA"]


def test_rounding_of_the_header_does_not_part_runs(dataset):
    stem = copy_run(dataset, "run-2")
    image = nib.load(stem.with_suffix(".nii.gz"))
    affine = image.affine + 1e-4
    affine[3] = [0, 0, 0, 1]
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj), affine), stem.with_suffix(".nii.gz"))
    assert len(scans_of(dataset)) == 1


def test_another_grid_stays_apart(dataset):
    for entity in ("run-1", "run-2"):
        stem = copy_run(dataset, entity)
    image = nib.load(stem.with_suffix(".nii.gz"))
    moved = image.affine.copy()
    moved[0, 3] += 1
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj), moved), stem.with_suffix(".nii.gz"))
    drop_first_run(dataset)
    scans = scans_of(dataset)
    assert [scan.name for scan in scans] == ["sub-01_run-1", "sub-01_run-2"]


def test_other_shells_stay_apart(dataset):
    for entity in ("acq-low", "acq-high"):
        stem = copy_run(dataset, entity)
    bval = stem.with_suffix(".bval")
    bval.write_text(bval.read_text().replace("1000", "2000"))
    drop_first_run(dataset)
    assert len(scans_of(dataset)) == 2


@pytest.mark.parametrize(("first", "second"), [("echo-1", "echo-2"), ("rec-norm", "rec-raw")])
def test_other_images_of_one_measurement_stay_apart(dataset, first, second):
    for entity in (first, second):
        copy_run(dataset, entity)
    drop_first_run(dataset)
    assert [scan.name for scan in scans_of(dataset)] == [f"sub-01_{first}", f"sub-01_{second}"]


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ({"PhaseEncodingDirection": "j"}, {"PhaseEncodingDirection": "j"}, True),
        ({"PhaseEncodingDirection": "j"}, {"PhaseEncodingDirection": "j-"}, True),
        ({"PhaseEncodingDirection": "j"}, {"PhaseEncodingAxis": "j"}, False),
        ({"PhaseEncodingAxis": "j"}, {"PhaseEncodingAxis": "j"}, False),
        ({}, {}, False),
        (
            {"PhaseEncodingAxis": "j", "SeriesDescription": "dti_AP"},
            {"PhaseEncodingAxis": "j", "SeriesDescription": "dti_PA"},
            True,
        ),
    ],
)
def test_unknown_phase_encoding_is_never_equal(dataset, first, second, joined):
    for entity, sidecar in (("run-1", first), ("run-2", second)):
        copy_run(dataset, entity).with_suffix(".json").write_text(json.dumps(sidecar))
    drop_first_run(dataset)
    assert len(scans_of(dataset)) == (1 if joined else 2)


def test_node_names_are_plain(dataset):
    (scan,) = scans_of(dataset)
    assert scan.node_name == "sub_01"
