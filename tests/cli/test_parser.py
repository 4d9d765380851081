import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from bids_gevnet.cli.parser import build_parser, parse_request
from bids_gevnet.cli.run import main
from bids_gevnet.settings import Settings, to_toml

HEAVY = {
    "torch",
    "nipype",
    "bids",
    "nibabel",
    "dipy",
    "healpy",
    "pandas",
    "ants",
    "nilearn",
    "numpy",
}


def parse(*options, level="participant"):
    return parse_request(["/data", "/out", level, *options])


def test_every_setting_has_an_option():
    options = {action.dest for action in build_parser()._actions}
    names = {name for table in Settings.names().values() for name in table}
    assert names <= options


def test_no_options_give_the_defaults():
    request = parse()
    assert request.settings == Settings()
    assert (request.bids_dir, request.output_dir) == (Path("/data"), Path("/out"))
    assert (request.level, request.action) == ("participant", "run")


def test_spellings_of_other_apps_are_understood():
    request = parse("--participant_label", "01", "sub-02", "-w", "/w", "-vv")
    assert request.settings.selection.participant_label == ("01", "sub-02")
    assert request.settings.execution.work_dir == Path("/w")
    assert request.settings.execution.verbose == 2


def test_command_line_wins_over_file_and_file_over_defaults(tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text("[preprocessing]\nnside = 8\noutput_resolution = 3\n")
    request = parse("--config-file", str(config), "--nside", "2")
    assert request.settings.preprocessing.nside == 2
    assert request.settings.preprocessing.output_resolution == 3.0


def test_a_file_of_an_earlier_run_that_chooses_participants_says_so(tmp_path):
    """Somebody tried one participant first, and takes the settings of that run for everybody."""
    kept = tmp_path / "settings.toml"
    kept.write_text(to_toml(parse("--participant-label", "01", "02").settings))
    (remark,) = parse("--config-file", str(kept)).remarks
    assert remark == f"{kept} chooses who takes part: --participant-label 01 02"
    assert parse("--config-file", str(kept), "--participant-label", "03").remarks == ()
    kept.write_text(to_toml(parse("--nside", "2").settings))
    assert parse("--config-file", str(kept)).remarks == ()


def test_the_protocol_of_the_paper_gives_what_its_appendix_states(tmp_path):
    """15 epochs from 1e-5, five folds, 400 samples per class; the rest is not changed."""
    learning = parse("--protocol", "paper", level="group").settings.learning
    stated = {"epochs": 15, "learning_rate": 1e-5, "folds": 5, "samples_per_class": 400}
    stated |= {"voxels_per_step": "all"}
    assert learning == dataclasses.replace(Settings().learning, protocol="paper", **stated)
    own = parse("--protocol", "paper", "--epochs", "3", level="group").settings
    assert (own.learning.epochs, own.learning.learning_rate) == (3, 1e-5)
    kept = tmp_path / "settings.toml"
    kept.write_text(to_toml(own))
    again = parse("--config-file", str(kept), level="group").settings
    assert again == own


@pytest.mark.parametrize("before", ["default", "paper"])
@pytest.mark.parametrize("now", ["default", "paper"])
def test_a_protocol_on_the_command_line_wins_over_the_file_of_an_earlier_run(
    before, now, tmp_path
):
    kept = tmp_path / "settings.toml"
    kept.write_text(to_toml(parse("--protocol", before, "--batch-size", "3").settings))
    settings = parse("--config-file", str(kept), "--protocol", now).settings
    assert settings == parse("--protocol", now, "--batch-size", "3").settings


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--leave-site-out"], True),
        (["--no-leave-site-out"], False),
    ],
)
def test_leaving_sites_out_is_on_off_or_as_it_fits(options, expected):
    assert parse(*options, level="group").settings.learning.leave_site_out is expected


def test_options_of_training_reach_the_settings():
    options = ["--batch-size", "3", "--learning-rate", "1e-4", "--classes", "all"]
    learning = parse(*options, "--reference-site", "A", level="group").settings.learning
    assert (learning.batch_size, learning.learning_rate) == (3, 1e-4)
    assert (learning.classes, learning.reference_site) == ("all", "A")
    strides = parse("--strides", "1", "1", "2", "1", level="group").settings.learning.strides
    assert strides == (1, 1, 2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nside", "5"], "a power of two"),
        (["--config-file", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_wrong_usage_gets_a_sentence_and_code_2(capsys, options, message):
    assert main(["/data", "/out", "participant", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [[], ["/data"], ["/data", "/out", "all"], ["/data", "/out", "group", "--nsid", "4"]],
)
def test_argparse_errors_exit_with_2(argv):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


MISTYPED = {
    "--participant-lable": (
        "participant --participant-lable 01",
        "did you mean --participant-label?",
    ),
    "--skip-bids-validaton": (
        "participant --skip-bids-validaton",
        "did you mean --skip-bids-validation?",
    ),
    "--nproc=2": ("participant --nproc=2", "did you mean --nprocs?"),
    "--corection none": ("participant --corection none", "did you mean --correction?"),
    "--correction ant": ("participant --correction ant", "did you mean ants?"),
    "--folds many": ("participant --folds many", "invalid int value: 'many'"),
    "a level that does not exist": ("partcipant", "did you mean participant?"),
}
"""Command lines that a hand wrote in a hurry, and what is said of them."""

SPELLINGS = {
    "--n-cpus 3": ("nprocs", 3),
    "--n_cpus 3": ("nprocs", 3),
    "--nthreads 3": ("nprocs", 3),
    "--omp_nthreads 2": ("omp_nthreads", 2),
    "--mem 4000": ("mem_mb", 4000),
    "--mem_mb 4000": ("mem_mb", 4000),
    "--output-resolution 2.5": ("output_resolution", 2.5),
    "--skip_bids_validation": ("skip_bids_validation", True),
}
"""Options as users of fMRIPrep and QSIPrep know them, and the setting that each one is."""


@pytest.mark.parametrize("case", MISTYPED)
def test_a_slip_is_answered_with_what_was_probably_meant(capsys, case):
    words, sentence = MISTYPED[case]
    with pytest.raises(SystemExit) as caught:
        main(["/data", "/out", *words.split()])
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", SPELLINGS)
def test_spellings_of_others_are_known(words):
    name, value = SPELLINGS[words]
    tables = parse(*words.split()).settings.to_tables()
    (found,) = [table[name] for table in tables.values() if name in table]
    assert found == value


def test_what_others_call_notrack_changes_nothing():
    assert parse("--notrack").settings == Settings()


def test_the_value_of_an_option_is_not_taken_for_a_slip_of_the_option(capsys):
    with pytest.raises(SystemExit):
        main(["/data", "/out", "participant", "--folds", "many"])
    assert "did you mean" not in capsys.readouterr().err


def test_output_never_goes_into_the_input(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path / "."), "participant"]) == 2
    assert "never written to" in capsys.readouterr().err


def test_output_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "data"), str(tmp_path / "file"), "participant"]) == 2
    assert "the file" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from bids_gevnet.cli.run import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exit codes: 0 all done" in done.stdout
    assert not HEAVY & set(done.stderr.split())


def test_an_option_without_its_value_is_not_taken_for_a_mistyped_one(capsys):
    with pytest.raises(SystemExit):
        parse_request(["data", "out", "participant", "--model"])
    said = capsys.readouterr().err
    assert "argument --model: expected one argument" in said
    assert "did you mean" not in said
