"""What happens when the input is broken: exit code, sentence and what is left on disk.

Every case damages sub-01 of a dataset of two and goes through the command line; sub-02 must be
processed whatever happened to sub-01.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import nibabel as nib
import numpy as np
import pytest
from integration.broken import (
    ACCEPTED,
    MISLABELLED,
    REFUSED,
    copy_as,
    copy_series,
    no_phase_encoding,
)

from bids_gevnet.cli.run import main
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort


def content_of(folder: Path) -> dict[str, str]:
    """Hash of every regular file; links are compared by where they point."""
    return {
        str(path): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for top, _, names in os.walk(folder)
        for path in (Path(top) / name for name in names)
        if path.is_symlink() or path.is_file()
    }


def dry_run(dataset, capsys, *options):
    """Exit code and all that was printed; nothing may be written anywhere."""
    out = dataset.root.parent / "out"
    before = content_of(dataset.root.parent)
    code = main([str(dataset.root), str(out), "participant", "--dry-run", *options])
    assert content_of(dataset.root.parent) == before
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "Traceback" not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    return code, text


@pytest.mark.parametrize("case", REFUSED)
def test_the_broken_one_is_named_and_the_other_goes_on(dataset, capsys, case):
    damage, sentence = REFUSED[case]
    damage(dataset)
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 1
    assert "1 of 2 participants would be processed" in printed
    assert "sub-01  [cannot be processed]" in printed
    assert "What to do:" in printed
    for text in sentence:
        assert text in printed


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_can_be_put_right_is_noted_and_nothing_counts_twice(dataset, capsys, case):
    damage, notes = ACCEPTED[case]
    damage(dataset)
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 0, printed
    assert "2 of 2 participants would be processed" in printed
    assert printed.count("dwi.nii.gz, phase encoding") == 2
    for text in notes:
        assert text in printed


def test_all_at_once_and_with_the_validator(dataset, capsys):
    """One participant per case; the validator complains, and the whole ones still go on."""
    left_alone = {"another's series", "endless sidecar", "endless gradients", "pipe for a table",
                  "pipe for an image"}  # fmt: skip
    cases = {name: case for name, case in REFUSED.items() if name not in left_alone}
    template = dataset.root / "sub-01"
    shutil.move(template, dataset.root.parent / "kept")
    for number, (damage, _) in enumerate(cases.values(), start=10):
        shutil.copytree(dataset.root.parent / "kept", template)
        damage(dataset)
        label = f"sub-{number}"
        shutil.move(template, dataset.root / label)
        for path in list((dataset.root / label).rglob("sub-01*")):
            path.rename(path.with_name(path.name.replace("sub-01", label)))
        for path in (dataset.root / label).rglob("*_epi.json"):
            path.write_text(path.read_text().replace("sub-01", label))
        for path in (dataset.root / label).rglob("*"):
            if path.is_symlink() and str(path.readlink()).startswith("sub-01"):
                target = str(path.readlink()).replace("sub-01", label)
                path.unlink()
                path.symlink_to(target)
    labels = "".join(f"sub-{n}\tAD\n" for n in ["02", *range(10, 10 + len(cases))])
    (dataset.root / "participants.tsv").write_text("participant_id\tdiagnosis\n" + labels)
    code, printed = dry_run(dataset, capsys)
    assert code == 1
    assert f"1 of {len(cases) + 1} participants would be processed" in printed
    blocks = printed.split("\n  sub-")
    for number, (name, (_, sentence)) in enumerate(cases.items(), start=10):
        (block,) = [block for block in blocks if block.startswith(f"{number}  [cannot be")]
        for text in sentence:
            assert text.replace("sub-01", f"sub-{number}") in block, name


def test_a_copy_of_a_participant_does_not_join_the_original(dataset, capsys):
    shutil.copytree(dataset.root / "sub-01", dataset.root / "sub-01_old")
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 1
    assert "2 of 3 participants would be processed" in printed
    assert "sub-01_old  [cannot be processed]" in printed
    assert printed.count("sub-01_dwi.nii.gz, phase encoding") == 1
    chosen = ("--participant-label", "01", "--skip-bids-validation")
    code, printed = dry_run(dataset, capsys, *chosen)
    assert code == 0
    assert printed.count("sub-01_dwi.nii.gz, phase encoding") == 1


@pytest.mark.parametrize("case", MISLABELLED)
def test_labels_that_bids_does_not_know_are_named(dataset, capsys, case):
    damage, sentence = MISLABELLED[case]
    damage(dataset)
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 1
    assert "2 of 3 participants would be processed" in printed
    for text in sentence:
        assert text in printed


def test_a_label_that_is_no_text_cannot_be_named_and_stops_nobody(dataset, capsys):
    copy_as("\udcff")(dataset)
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 0
    assert "2 of 2 participants would be processed" in printed


def test_runs_of_unknown_sign_are_not_joined_and_that_is_said(dataset, capsys):
    no_phase_encoding(dataset, PhaseEncodingAxis="j")
    copy_series(dataset, "_dwi", "_run-2_dwi")
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 0
    assert printed.count("note: not joined with the other runs of the session") == 2


# Real runs, on a tiny phantom


class Study(NamedTuple):
    """How a run ended, what it said, where it wrote, and how many volumes were measured."""

    code: int
    said: str
    out: Path
    n_volumes: int


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Run two participants: one unusual in every way that is accepted, one damaged inside."""
    folder = tmp_path_factory.mktemp("study")
    data, out = folder / "data", folder / "out"
    write_cohort(data, tiny_settings(groups=("AD", "PD"), sites=1))
    shutil.rmtree(data / "sourcedata")
    (data / "sub-001").rename(data / "sub-a+b")
    series = data / "sub-a+b" / "dwi"
    for path in list(series.iterdir()):
        path.rename(path.with_name(path.name.replace("sub-001", "sub-a+b")))
    stem = series / "sub-a+b_dwi"
    image = nib.load(f"{stem}.nii.gz")
    voxel_data = np.asarray(image.dataobj)
    with_trace = np.concatenate([voxel_data, voxel_data[..., -1:]], axis=3)[..., np.newaxis]
    nib.save(nib.Nifti1Image(with_trace, image.affine), f"{stem}.nii.gz")
    bvals, bvecs = np.loadtxt(f"{stem}.bval"), np.loadtxt(f"{stem}.bvec")
    np.savetxt(f"{stem}.bval", [[*bvals, 1000]], fmt="%g")
    np.savetxt(f"{stem}.bvec", np.vstack([bvecs.T, np.zeros(3)]), fmt="%.3f")
    (data / "sub-a+b" / "anat").mkdir()
    (data / "sub-a+b" / "anat" / "sub-a+b_T1w.nii.gz").symlink_to("gone.nii.gz")
    damaged = data / "sub-002" / "dwi" / "sub-002_dwi.nii.gz"
    content = bytearray(damaged.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    damaged.write_bytes(content)
    before = content_of(data)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main([
            *(str(data), str(out), "participant", "--skip-bids-validation"),
            *("--output-resolution", "9", "--correction", "none", "--nprocs", "2"),
        ])  # fmt: skip
    assert content_of(data) == before
    return Study(code, said.getvalue(), out, len(bvals))


def test_a_damaged_gzip_fails_its_participant_with_a_sentence(study):
    assert study.code == 1
    assert not (study.out / "sub-002").exists()
    (line,) = [line for line in study.said.splitlines() if "sub-002" in line]
    assert "Expected an image that can be read to its end" in line
    assert "sub-002_dwi.nii.gz, whose content is damaged" in line
    assert "What to do: copy or convert the file again" in line


def test_the_unusual_one_is_processed_and_the_notes_reach_the_facts(study):
    out, n_volumes = study.out, study.n_volumes
    folder = out / "sub-a+b" / "dwi"
    assert nib.load(folder / "sub-a+b_desc-preproc_dwi.nii.gz").shape[3] == n_volumes
    assert len(np.loadtxt(folder / "sub-a+b_desc-preproc_dwi.bval")) == n_volumes
    facts = json.loads((folder / "sub-a+b_desc-report_facts.json").read_text())
    notes = " ".join(facts["acquisition"][0]["notes"])
    for text in ("T1w.nii.gz is not used", "one row per volume", "x1;", "trace, ADC"):
        assert text in notes
    assert "one row per volume" in (out / "sub-a+b.html").read_text()


def test_every_image_says_how_its_numbers_are_scaled(study):
    """Read by a reader that does not forgive: FSL multiplies integers by what is there."""
    images = [path for path in study.out.rglob("*.nii*") if path.is_file()]
    names = {path.name for path in images}
    assert {"dwi.nii", "native.nii", "mask.nii", "b0.nii"} <= names  # intermediates
    assert any(name.endswith("desc-brain_mask.nii.gz") for name in names)  # derivatives
    scaled = set()
    for path in images:
        content = path.read_bytes()
        head = gzip.decompress(content) if path.suffix == ".gz" else content
        slope, intercept = struct.unpack_from("<ff", head, 112)
        assert intercept == 0.0, path
        if slope != 1.0:
            assert 0 < slope < 1, path
            assert struct.unpack_from("<h", head, 70) == (4,), path
            scaled.add(path.name.removesuffix(".gz").removesuffix(".nii"))
    assert any(name.endswith("desc-healpix_dwi") for name in scaled)
    assert not any(name.endswith("mask") for name in scaled)


def test_nothing_half_written_is_left(study):
    assert not list(study.out.rglob("*.part"))
