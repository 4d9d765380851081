"""Every way a dataset is broken: exit code and message, through the command line itself."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.cli.run import main


def plan(dataset, capsys, *options, level="participant"):
    """Exit code and all that was printed by a dry run, which does all checks of a real one."""
    out = dataset.root.parent / "out"
    code = main([str(dataset.root), str(out), level, "--dry-run", *options])
    assert not out.exists()
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def set_bvec(dataset, column, vector):
    table = np.loadtxt(dataset.dwi(".bvec"))
    table[:, column] = vector
    np.savetxt(dataset.dwi(".bvec"), table, fmt="%.6f")


def no_description(dataset):
    (dataset.root / "dataset_description.json").unlink()


def description_is_not_json(dataset):
    (dataset.root / "dataset_description.json").write_text("{")


def description_without_name(dataset):
    (dataset.root / "dataset_description.json").write_text('{"BIDSVersion": "1.10.0"}')


def no_dwi(dataset):
    for subject in ("01", "02"):
        shutil.rmtree(dataset.dwi("", subject=subject).parent)
    (dataset.root / "sub-01" / "anat").mkdir()
    image = nib.Nifti1Image(np.ones((4, 4, 4), np.int16), np.eye(4))
    nib.save(image, dataset.root / "sub-01" / "anat" / "sub-01_T1w.nii.gz")


def no_dataset(dataset):
    shutil.rmtree(dataset.root)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_dataset, "the folder of a BIDS dataset"),
        (no_description, "none in {root}. What to do: point BIDS_DIR at"),
        (description_is_not_json, "dataset_description.json; found"),
        (description_without_name, "no Name"),
        (no_dwi, "diffusion series"),
    ],
)
def test_unusable_dataset(dataset, capsys, damage, message):
    damage(dataset)
    code, printed = plan(dataset, capsys, "--skip-bids-validation")
    assert code == 2
    assert message.format(root=dataset.root) in printed


def remove(extension):
    return lambda dataset: dataset.dwi(extension).unlink()


def write(extension, content):
    return lambda dataset: dataset.dwi(extension).write_text(content)


def drop_one_bval(dataset):
    words = dataset.dwi(".bval").read_text().split()
    dataset.dwi(".bval").write_text(" ".join(words[:-1]))


def drop_one_number(dataset):
    lines = dataset.dwi(".bvec").read_text().splitlines()
    lines[1] = " ".join(lines[1].split()[:-1])
    dataset.dwi(".bvec").write_text("\n".join(lines))


def truncate(dataset):
    content = dataset.dwi(".nii.gz").read_bytes()
    dataset.dwi(".nii.gz").write_bytes(content[: len(content) // 2])


def truncate_uncompressed(dataset):
    image = nib.load(dataset.dwi(".nii.gz"))
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj), image.affine), dataset.dwi(".nii"))
    dataset.dwi(".nii.gz").unlink()
    content = dataset.dwi(".nii").read_bytes()
    dataset.dwi(".nii").write_bytes(content[:-10])


def corrupt_middle(dataset):
    content = bytearray(dataset.dwi(".nii.gz").read_bytes())
    del content[len(content) // 2 : len(content) // 2 + 5]
    content[-4:] = b"\0\0\0\0"
    dataset.dwi(".nii.gz").write_bytes(bytes(content))


def reshape(*shape):
    def damage(dataset):
        image = nib.Nifti1Image(np.ones(shape, np.int16), np.eye(4))
        nib.save(image, dataset.dwi(".nii.gz"))

    return damage


def five_directions(dataset):
    table = np.loadtxt(dataset.dwi(".bvec"))
    # The other three repeat an axis, twice with the opposite sign: still five axes.
    table[:, 7:] = -table[:, 2:3] * [1, -1, 1]
    np.savetxt(dataset.dwi(".bvec"), table, fmt="%.6f")


def two_volumes(dataset):
    reshape(6, 7, 5, 2)(dataset)
    dataset.dwi(".bval").write_text("0 1000")
    dataset.dwi(".bvec").write_text("0 1\n0 0\n0 0\n")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (remove(".bval"), ["a .bval file for", "sub-01_dwi.nii.gz", "dcm2niix"]),
        (remove(".bvec"), ["a .bvec file for", "sub-01_dwi.nii.gz", "dcm2niix"]),
        (drop_one_bval, ["10 volumes", "9 b-values", "10 vectors"]),
        (drop_one_number, ["rows of 10, 9, 10 numbers", "sub-01_dwi.bvec"]),
        (write(".bvec", "1 2\n" * 10), ["10 rows of 2", "three rows (x, y, z)"]),
        (write(".bval", "0 0 a"), ["'0 0 a' in line 1", "sub-01_dwi.bval"]),
        (write(".bval", ""), ["the empty file", "sub-01_dwi.bval"]),
        (write(".bval", "0 0\n1 1\n"), ["one row of b-values", "2 rows"]),
        (write(".bval", "0 0 -5 1 1 1 1 1 1 1"), ["not negative", "-5.0 for volume 2"]),
        (lambda d: set_bvec(d, 4, [2, 0, 0]), ["length 1", "(2 0 0) for volume 4"]),
        (lambda d: set_bvec(d, 4, np.nan), ["length 1", "(nan nan nan) for volume 4"]),
        (lambda d: set_bvec(d, slice(4, 6), 0), ["(0 0 0) for volume 4", "and 1 more"]),
        (write(".nii.gz", "no image"), ["a NIfTI image", "sub-01_dwi.nii.gz"]),
        (write(".nii.gz", ""), ["a NIfTI image", "sub-01_dwi.nii.gz"]),
        (truncate, ["sub-01_dwi.nii.gz", "truncated", "copy or convert"]),
        (truncate_uncompressed, ["sub-01_dwi.nii", "truncated"]),
        (corrupt_middle, ["sub-01_dwi.nii.gz", "copy or convert"]),
        (reshape(6, 7, 5), ["four axes", "6x7x5 in"]),
        (reshape(6, 7, 1, 10), ["several slices", "6x7x1x10"]),
        (write(".bval", " ".join(["1000"] * 10)), ["b0", "1000", "--b0-threshold"]),
        (five_directions, ["at least 6", "5 in"]),
        (two_volumes, ["at least 6", "1 in"]),
        (write(".json", "{"), ["JSON in", "sub-01_dwi.json"]),
        (write(".json", "[]"), ["a JSON object", "a list"]),
    ],
)
def test_broken_participant_is_named_and_the_other_goes_on(dataset, capsys, damage, expected):
    damage(dataset)
    code, printed = plan(dataset, capsys, "--skip-bids-validation")
    assert code == 1
    for text in expected:
        assert text in printed
    assert "1 of 2 participants would be processed" in printed
    assert "sub-01  [cannot be processed]" in printed


def test_whole_dataset_passes_with_validation(dataset, capsys):
    code, printed = plan(dataset, capsys)
    assert code == 0
    assert "2 of 2 participants would be processed" in printed


def test_b0_vectors_are_not_looked_at(dataset, capsys):
    set_bvec(dataset, 0, np.nan)
    assert plan(dataset, capsys)[0] == 0


def test_validator_error_of_the_dataset_stops_and_can_be_skipped(dataset, capsys):
    path = dataset.root / "dataset_description.json"
    description = json.loads(path.read_text()) | {"DatasetType": "nonsense"}
    path.write_text(json.dumps(description))
    code, printed = plan(dataset, capsys)
    assert code == 2
    assert "a valid BIDS dataset" in printed
    assert "--skip-bids-validation" in printed
    assert plan(dataset, capsys, "--skip-bids-validation")[0] == 0


def test_unknown_participant(dataset, capsys):
    code, printed = plan(dataset, capsys, "--participant-label", "01", "07")
    assert code == 2
    assert "found 07, which the dataset does not have" in printed
    assert "01, 02" in printed


def test_unknown_session(dataset, capsys):
    code, printed = plan(dataset, capsys, "--session-label", "x")
    assert code == 2
    assert "the dataset has no sessions" in printed


def test_participant_without_dwi_is_named_only_when_asked_for(dataset, capsys):
    shutil.rmtree(dataset.dwi("").parent)
    (dataset.root / "sub-01" / "anat").mkdir()
    assert plan(dataset, capsys, "--skip-bids-validation")[0] == 0
    label = ("--participant-label", "01", "02")
    code, printed = plan(dataset, capsys, "--skip-bids-validation", *label)
    assert code == 1
    assert "diffusion series of participant 01" in printed


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (None, (), "participants.tsv at the top"),
        ("participant_id\tage\nsub-01\t70\n", (), "a column diagnosis or group"),
        ("participant_id\tgroup\nsub-01\tAD\n", ("--target", "dx"), "a column dx"),
        ("name,group\nsub-01,AD\n", (), "a column participant_id"),
        ("", (), "a tab-separated table"),
        ("participant_id\tgroup\nsub-01\tAD\nsub-02\n", (), "found 1 in row 3"),
    ],
)
def test_participants_table_without_labels(dataset, capsys, table, options, message):
    path = dataset.root / "participants.tsv"
    path.unlink()
    if table is not None:
        path.write_text(table)
    code, printed = plan(dataset, capsys, *options, level="group")
    assert code == 2
    assert message in printed


def test_group_level_before_the_participant_level(dataset, capsys):
    code, printed = plan(dataset, capsys, level="group")
    assert code == 2
    assert "participant first" in printed


@pytest.mark.parametrize(
    ("option", "choice", "instead"), [("correction", "eddy", "model"), ("masking", "bet", "otsu")]
)
def test_a_program_that_is_not_installed_is_said_before_the_run(
    dataset, capsys, monkeypatch, option, choice, instead
):
    monkeypatch.setenv("PATH", "")
    options = ["--skip-bids-validation", f"--{option}"]
    code, printed = plan(dataset, capsys, *options, choice)
    assert code == 2
    assert f"use --{option} {instead}" in printed
    assert plan(dataset, capsys, *options, instead)[0] == 0


def test_a_participant_without_a_row_stops_nobody(dataset, capsys):
    table = dataset.root / "participants.tsv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    code, printed = plan(dataset, capsys)
    assert code == 0
    assert "2 of 2 participants would be processed" in printed
