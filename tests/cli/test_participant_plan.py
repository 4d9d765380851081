"""What the participant level says before hours of work, through the command line."""

import subprocess
import sys

import numpy as np
import pytest

from bids_gevnet.cli.run import main


def plan(dataset, capsys, *options):
    out = dataset.root.parent / "out"
    command = [str(dataset.root), str(out), "participant", "--skip-bids-validation", *options]
    code = main([*command, "--dry-run"])
    assert not out.exists()
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def run(dataset, capsys, *options):
    out = dataset.root.parent / "out"
    code = main([str(dataset.root), str(out), "participant", "--skip-bids-validation", *options])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_excluded_participants_are_not_processed(dataset, capsys):
    code, printed = plan(dataset, capsys, "--exclude-participant-label", "sub-01")
    assert code == 0
    assert "1 of 1 participants" in printed
    assert "sub-02\n" in printed
    assert "sub-01\n" not in printed


def test_an_output_much_finer_than_the_scans_is_said(dataset, capsys, caplog):
    plan(dataset, capsys)  # voxels of 2 mm, and the default of 2 mm
    assert "--output-resolution" not in caplog.text
    plan(dataset, capsys, "--output-resolution", "1")
    assert "voxels of 2 mm were measured, and --output-resolution 1 makes 8 of each" in caplog.text


def test_one_broken_participant_can_be_excluded(dataset, capsys):
    dataset.dwi(".bval").unlink()
    assert plan(dataset, capsys)[0] == 1
    assert plan(dataset, capsys, "--exclude-participant-label", "01")[0] == 0


@pytest.mark.parametrize(
    ("content", "processed"),
    [
        ("02\n", ["02"]),
        ("participant_id\tinclude\nsub-01\tyes\nsub-02\tno\n", ["01"]),
        ("participant_id\texclude\nsub-01\t1\n", ["02"]),
    ],
)
def test_participants_file(dataset, capsys, content, processed, tmp_path, monkeypatch):
    (tmp_path / "who.tsv").write_text(content)
    monkeypatch.chdir(tmp_path)
    code, printed = plan(dataset, capsys, "--participants-file", "who.tsv")
    assert code == 0
    assert [label for label in ("01", "02") if f"  sub-{label}\n" in printed] == processed


REFUSED = {
    "an unknown label": (("--participant-label", "077"), "for --participant-label; found 077"),
    "a pattern for a label": (("--participant-label", "sub-*"), "found *, which the dataset"),
    "an unknown label to exclude": (
        ("--exclude-participant-label", "77"),
        "for --exclude-participant-label; found 77",
    ),
    "an unknown session": (("--session-label", "pre"), "for --session-label; found pre"),
    "everybody excluded": (
        ("--exclude-participant-label", "01", "02"),
        "at least one participant",
    ),
    "no such participants file": (("--participants-file", "nowhere.tsv"), "a readable text file"),
    "no such model": (("--model", "nowhere"), "nowhere; found no model.json there"),
    "no such template": (("--template", "nowhere.nii.gz"), "a NIfTI image for --template"),
    "an unknown network": (("--network", "ckn9"), "ckn9"),
    "no such dataset": (("{top}/nowhere", "{top}/out"), "check that it is mounted"),
    "a participant's folder for the dataset": (
        ("{top}/data/sub-01", "{top}/out"),
        "point BIDS_DIR at the folder that holds the sub-* folders",
    ),
    "OUTPUT_DIR is the dataset": (("{top}/data", "{top}/data/."), "which is never written to"),
    "OUTPUT_DIR inside the dataset": (
        ("{top}/data", "{top}/data/out"),
        "would be taken for raw data",
    ),
    "the work directory inside the dataset": (
        ("--work-dir", "{top}/data/work"),
        "a --work-dir outside of BIDS_DIR",
    ),
    "another program for correction that is not there": (("--correction", "eddy"), "install FSL"),
}


def fill(options, top):
    """Options of a case, with its own folders where it names some."""
    filled = [option.format(top=top) for option in options]
    names_folders = filled and filled[0].startswith(str(top))
    return filled if names_folders else [f"{top}/data", f"{top}/out", *filled]


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_the_dry_run_as_by_the_run(dataset, capsys, case, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    options, sentence = REFUSED[case]
    top = dataset.root.parent
    data, out, *further = fill(options, top)
    said = []
    for action in ([], ["--dry-run"]):
        code = main([data, out, "participant", "--skip-bids-validation", *further, *action])
        printed = capsys.readouterr()
        said.append((code, printed.out + printed.err))
    assert said[0] == said[1]
    assert code == 2
    assert sentence in said[0][1]
    assert "What to do" in said[0][1]
    assert [path.name for path in top.iterdir()] == ["data"]


def test_labels_may_be_joined_by_commas(dataset, capsys):
    code, printed = plan(dataset, capsys, "--participant-label", "sub-01,02")
    assert code == 0
    assert "2 of 2 participants" in printed
    code, printed = plan(dataset, capsys, "--exclude-participant-label", "01,")
    assert "1 of 1 participants" in printed


def test_a_model_without_its_weights(dataset, capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    code, printed = plan(dataset, capsys, "--model", str(tmp_path / "model"))
    assert code == 2
    assert "a model written by bids_gevnet" in printed


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--output-resolution", "5"), "voxels of 5 mm at nside"),
        (("--nside", "2"), "at nside 2"),
        (("--crop-margin", "20"), "settings that give"),
    ],
)
def test_a_model_of_another_grid_is_refused_before_anything_runs(
    dataset, capsys, trained_model, options, found
):
    model = ("--model", str(trained_model))
    assert plan(dataset, capsys, *model)[0] == 0
    code, printed = plan(dataset, capsys, *model, *options)
    assert code == 2
    assert "scans on the grid of the model" in printed
    assert found in printed
    assert "What to do" in printed
    assert run(dataset, capsys, *model, *options) == (code, printed)
    assert not (dataset.root.parent / "out").exists()


@pytest.mark.parametrize("with_syn_sdc", [False, True])
def test_a_plan_does_without_nipype(dataset, trained_model, with_syn_sdc):
    """Which reads its settings when it is imported, and these are written when a run begins."""
    program = (
        "import sys\nfrom bids_gevnet.cli.run import main\ncode = main(sys.argv[1:])\n"
        "sys.exit(99 if 'nipype' in sys.modules else code)"
    )
    command = [str(dataset.root), str(dataset.root.parent / "out"), "participant", "--dry-run"]
    options = ["--skip-bids-validation", "--model", str(trained_model)]
    if with_syn_sdc:
        options += ["--use-syn-sdc", "--correction", "model"]
    done = subprocess.run(
        [sys.executable, "-c", program, *command, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Those without a T1w cannot be processed with --use-syn-sdc, which is another matter.
    assert done.returncode == int(with_syn_sdc), done.stderr


def test_a_shell_that_is_not_there(dataset, capsys):
    code, printed = plan(dataset, capsys, "--shell", "3000")
    assert code == 1
    assert "0 of 2 participants" in printed
    assert "a shell near b = 3000" in printed
    assert "b = 1000" in printed
    # Where one has it, that one is processed.
    bvals = np.loadtxt(dataset.dwi(".bval"))
    np.savetxt(dataset.dwi(".bval"), [np.where(bvals > 0, 3000, 0)], fmt="%g")
    code, printed = plan(dataset, capsys, "--shell", "3000")
    assert code == 1
    assert "1 of 2 participants" in printed
    assert plan(dataset, capsys, "--shell", "3000", "--participant-label", "01")[0] == 0


def test_all_shells_must_be_the_same_in_everybody(dataset, capsys):
    code, printed = plan(dataset, capsys, "--shell", "all")
    assert code == 0
    assert 'shell = "all"' in printed
    bvals = np.loadtxt(dataset.dwi(".bval"))
    np.savetxt(dataset.dwi(".bval"), [3 * bvals], fmt="%g")
    code, printed = plan(dataset, capsys, "--shell", "all")
    assert code == 2
    assert "b = 1000, 3000 s/mm²" in printed
    assert "no single shell near b = 1000 in sub-01" in printed
    assert "no single shell near b = 3000 in sub-02" in printed
    # A list of shells is each participant's own matter.
    code, printed = plan(dataset, capsys, "--shell", "1000,3000")
    assert code == 1
    assert "0 of 2 participants" in printed
    assert printed.count("near b = 3000") == printed.count("near b = 1000") == 1


@pytest.mark.parametrize("words", [("many",), ("1000", "all"), ("0",), ("1000", "1000")])
def test_a_choice_of_shells_that_is_none(dataset, capsys, words):
    try:
        code, printed = plan(dataset, capsys, "--shell", *words)
    except SystemExit as stop:  # argparse's own way out
        code, printed = stop.code, capsys.readouterr().err
    assert code == 2
    assert "--shell" in printed
