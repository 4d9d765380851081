import json
import os
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.query import find_participants
from bids_gevnet.bids.sidecars import Sidecars
from bids_gevnet.errors import InputError
from bids_gevnet.settings import SelectionSettings


def find(dataset, **selection):
    return find_participants(dataset.root, SelectionSettings(**selection), b0_threshold=50)


def edit_bvec(dataset, change):
    path = dataset.dwi(".bvec")
    table = np.loadtxt(path)
    change(table)
    np.savetxt(path, table, fmt="%.6f")


def save_series(path: Path, shape: tuple[int, ...]) -> None:
    nib.save(nib.Nifti1Image(np.ones(shape, np.int16), np.eye(4)), path)


def test_finds_every_run_with_its_files(dataset):
    participants = find(dataset)
    assert [participant.label for participant in participants] == ["01", "02"]
    (run,) = participants[0].runs
    assert participants[0].usable
    assert run.name == "sub-01"
    assert (run.image, run.bval, run.bvec) == tuple(
        dataset.dwi(extension) for extension in (".nii.gz", ".bval", ".bvec")
    )
    assert run.metadata["TotalReadoutTime"] == 0.05
    assert run.encoding.direction == "j"
    assert run.t1w is None


@pytest.mark.parametrize("label", ["02", "sub-02"])
def test_labels_come_with_and_without_prefix(dataset, label):
    assert [p.label for p in find(dataset, participant_label=(label,))] == ["02"]


def test_label_is_not_a_pattern(dataset):
    with pytest.raises(InputError, match=r"0\., which the dataset does not have"):
        find(dataset, participant_label=("0.",))


def test_label_that_begins_like_another_does_not_bring_it(dataset):
    dataset.add_participant("011")
    assert [p.label for p in find(dataset, participant_label=("01",))] == ["01"]


def test_sessions_are_selected_and_grouped(dataset):
    for session in ("a", "b"):
        folder = dataset.root / "sub-03" / f"ses-{session}" / "dwi"
        folder.mkdir(parents=True)
        for source in dataset.dwi("").parent.iterdir():
            shutil.copy(source, folder / source.name.replace("sub-01", f"sub-03_ses-{session}"))
    (both,) = find(dataset, participant_label=("03",))
    assert list(both.sessions()) == ["a", "b"]
    (one,) = find(dataset, participant_label=("03",), session_label=("ses-b",))
    assert [run.session for run in one.runs] == ["b"]


def test_metadata_and_gradients_are_inherited_and_overridden(dataset):
    for extension in (".bval", ".bvec"):
        content = dataset.dwi(extension).read_text()
        (dataset.root / f"dwi{extension}").write_text(content)
        dataset.dwi(extension).unlink()
    (dataset.root / "dwi.json").write_text('{"EchoTime": 0.08, "TotalReadoutTime": 0.9}')
    run = find(dataset)[0].runs[0]
    assert run.bval == dataset.root / "dwi.bval"
    assert run.metadata["EchoTime"] == 0.08
    assert run.metadata["TotalReadoutTime"] == 0.05


def test_a_sidecar_of_another_direction_does_not_apply(dataset):
    (dataset.root / "dir-PA_dwi.json").write_text('{"EchoTime": 1.0}')
    assert "EchoTime" not in find(dataset)[0].runs[0].metadata


def test_filter_file_narrows_the_query(dataset, tmp_path):
    for source in list(dataset.dwi("").parent.iterdir()):
        shutil.copy(source, source.with_name(source.name.replace("_dwi", "_acq-b2_dwi")))
    filters = tmp_path / "filters.json"
    filters.write_text('{"dwi": {"acquisition": "b2"}}')
    (participant,) = find(dataset, bids_filter_file=filters)
    assert [run.name for run in participant.runs] == ["sub-01_acq-b2"]


@pytest.mark.parametrize("content", ["{", "[]", '{"bold": {}}', '{"dwi": 3}'])
def test_broken_filter_file_is_named(dataset, tmp_path, content):
    filters = tmp_path / "filters.json"
    filters.write_text(content)
    with pytest.raises(InputError, match=r"filters\.json"):
        find(dataset, bids_filter_file=filters)


def test_database_serves_other_participants_later(dataset, tmp_path):
    database = tmp_path / "database"
    find(dataset, participant_label=("01",), bids_database_dir=database)
    assert any(database.iterdir())
    again = find(dataset, participant_label=("02",), bids_database_dir=database)
    assert [p.label for p in again] == ["02"]


def test_database_that_outlived_its_files_is_named(dataset, tmp_path):
    database = tmp_path / "database"
    find(dataset, bids_database_dir=database)
    dataset.dwi(".nii.gz").unlink()
    broken, whole = find(dataset, bids_database_dir=database)
    assert whole.usable
    assert "--bids-database-dir" in str(broken.problems[0])


def test_t1w_of_the_same_session_is_preferred(dataset):
    for session in ("", "_ses-a"):
        folder = dataset.root / "sub-01" / session.strip("_") / "anat"
        folder.mkdir(parents=True)
        save_series(folder / f"sub-01{session}_T1w.nii.gz", (4, 4, 4))
    assert find(dataset)[0].runs[0].t1w.name == "sub-01_T1w.nii.gz"


@pytest.mark.parametrize(
    "link",
    [
        {"IntendedFor": "dwi/sub-01_dwi.nii.gz"},
        {"IntendedFor": ["bids::sub-01/dwi/sub-01_dwi.nii.gz"]},
        {"B0FieldIdentifier": "pair"},
    ],
)
def test_fieldmaps_meant_for_a_run_are_found(dataset, link):
    sidecar = json.loads(dataset.dwi(".json").read_text()) | {"B0FieldSource": "pair"}
    dataset.dwi(".json").write_text(json.dumps(sidecar))
    folder = dataset.root / "sub-01" / "fmap"
    folder.mkdir()
    save_series(folder / "sub-01_dir-AP_epi.nii.gz", (6, 7, 5))
    save_series(folder / "sub-01_dir-LR_epi.nii.gz", (6, 7, 5))
    about = {"PhaseEncodingDirection": "j-", **link}
    (folder / "sub-01_dir-AP_epi.json").write_text(json.dumps(about))
    (fieldmap,) = find(dataset)[0].runs[0].fieldmaps
    assert fieldmap.image.name == "sub-01_dir-AP_epi.nii.gz"
    assert fieldmap.encoding.direction == "j-"


def test_series_of_b0s_alone_serves_as_fieldmap(dataset):
    stem = dataset.dwi("").parent / "sub-01_dir-AP_dwi"
    save_series(stem.with_suffix(".nii.gz"), (6, 7, 5, 1))
    stem.with_suffix(".bval").write_text("0\n")
    stem.with_suffix(".bvec").write_text("0\n0\n0\n")
    stem.with_suffix(".json").write_text('{"PhaseEncodingDirection": "j-"}')
    participant = find(dataset)[0]
    assert participant.usable
    (run,) = participant.runs
    assert [fieldmap.image for fieldmap in run.fieldmaps] == [stem.with_suffix(".nii.gz")]


def test_non_ascii_and_spaces_in_the_path(dataset, tmp_path):
    moved = tmp_path / "Köln data"
    dataset.root.rename(moved)
    assert len(find_participants(moved, SelectionSettings(), b0_threshold=50)) == 2


def test_the_top_folder_is_listed_once_however_many_participants(dataset, monkeypatch):
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(folder) or scandir(folder))
    sidecars = Sidecars(dataset.root)
    for subject in ("01", "02"):
        image = dataset.dwi(".nii.gz", subject=subject)
        assert next(sidecars.applicable(image, ".bval")) == dataset.dwi(".bval", subject=subject)
        assert len(list(sidecars.applicable(image, ".bvec"))) == 1
        assert sidecars.metadata(image)["TotalReadoutTime"] == 0.05
    assert listed.count(dataset.root) == 1
