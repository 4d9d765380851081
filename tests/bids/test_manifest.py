"""What a finished participant owns: found whole, missing, changed, copied and written anew."""

import os
import shutil
from pathlib import Path

import pytest

from bids_gevnet.bids.manifest import read_manifest, record_again, write_manifest


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "sub-01/dwi").mkdir(parents=True)
    (folder / "sub-01/dwi/scan.nii.gz").write_bytes(b"scan")
    (folder / "sub-01/dwi/scan.json").write_text("{}")
    (folder / "sub-01.html").write_text("report")
    (folder / "sub-02.html").write_text("of somebody else")
    write_manifest(folder / "logs/sub-01.json", folder, "01", made_from="this")
    return folder


def damaged(out: Path) -> list[str]:
    manifest = read_manifest(out / "logs/sub-01.json")
    assert manifest is not None
    assert manifest.made_from == "this"
    return manifest.damaged(out)


def test_it_lists_what_the_participant_owns_and_nothing_else(out: Path) -> None:
    manifest = read_manifest(out / "logs/sub-01.json")
    assert manifest is not None
    assert set(manifest.files) == {
        "sub-01/dwi/scan.nii.gz", "sub-01/dwi/scan.json", "sub-01.html",
    }  # fmt: skip
    assert damaged(out) == []


def test_missing_truncated_and_changed_files_are_named(out: Path) -> None:
    (out / "sub-01.html").unlink()
    (out / "sub-01/dwi/scan.nii.gz").write_bytes(b"sca")
    (out / "sub-01/dwi/scan.json").write_text("[]")
    assert damaged(out) == ["sub-01.html", "sub-01/dwi/scan.json", "sub-01/dwi/scan.nii.gz"]
    shutil.rmtree(out / "sub-01")
    assert len(damaged(out)) == 3


def test_a_copy_without_its_times_is_whole(out: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    assert damaged(copy) == []


def test_a_report_written_anew_is_not_damage(out: Path) -> None:
    (out / "sub-01.html").write_text("a newer report")
    record_again(out / "logs/sub-01.json", out, [out / "sub-01.html", out / "sub-02.html"])
    assert damaged(out) == []
    manifest = read_manifest(out / "logs/sub-01.json")
    assert manifest is not None
    assert "sub-02.html" not in manifest.files


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "bids_gevnet manifest 1"}'])
def test_what_is_no_manifest_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    assert read_manifest(path) is None
    record_again(path, tmp_path, [])
    assert path.read_text() == text


def test_images_that_changed_are_named_wherever_the_dataset_is(out: Path, tmp_path: Path) -> None:
    image, moved = tmp_path / "raw/dwi.nii", tmp_path / "moved/dwi.nii"
    for path in (image, moved):
        path.parent.mkdir()
        path.write_bytes(b"scan")
    written = out / "logs/sub-01.json"
    write_manifest(written, out, "01", made_from="this", inputs=[image])
    record_again(written, out, [out / "sub-01.html"])
    manifest = read_manifest(written)
    assert manifest is not None
    assert manifest.changed_inputs([image, moved, tmp_path / "raw/other.nii"]) == []
    moved.write_bytes(b"Scan")
    assert manifest.changed_inputs([moved]) == ["dwi.nii"]
    image.unlink()
    assert manifest.changed_inputs([image]) == ["dwi.nii"]
