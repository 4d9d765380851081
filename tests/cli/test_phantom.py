import json
import subprocess
import sys

import pytest

from bids_gevnet.cli.phantom import build_parser, main, settings_from_options
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.versions import __version__

TINY = ["--groups", "A,B", "--per-group", "1", "--voxel-mm", "10", "--directions", "6"]


def parse(*arguments):
    return settings_from_options(build_parser().parse_args(["out", *arguments]))


def test_defaults_are_those_of_the_settings():
    assert parse() == PhantomSettings()


@pytest.mark.parametrize(
    ("choice", "micro", "macro"),
    [("both", 0.5, 1.5), ("micro", 0.5, 0), ("macro", 0, 1.5), ("none", 0, 0)],
)
def test_effects_switch_strengths(choice, micro, macro):
    settings = parse("--effects", choice, "--micro-effect", "0.5", "--macro-effect", "1.5")
    assert (settings.micro_effect, settings.macro_effect) == (micro, macro)


def test_switches_reach_the_settings():
    settings = parse(
        *("--groups", "X,Y", "--per-group", "3", "--sites", "3", "--voxel-mm", "5", "--seed", "7"),
        *("--no-site-effect", "--no-motion", "--no-eddy", "--snr", "inf", "--directions", "12"),
        *("--b-values", "1000,2000", "--outliers", "0.1", "--reverse-b0", "--t1w"),
    )
    assert settings == PhantomSettings(
        groups=("X", "Y"),
        per_group=3,
        sites=3,
        voxel_mm=5,
        seed=7,
        site_effect=False,
        motion_mm=0,
        motion_deg=0,
        eddy=0,
        snr=float("inf"),
        directions=12,
        b_values=(1000, 2000),
        outliers=0.1,
        reverse_b0=True,
        t1w=True,
    )


def test_writes_a_cohort_and_says_where(tmp_path, capsys):
    out = tmp_path / "cohort"
    assert main([str(out), *TINY]) == 0
    printed = capsys.readouterr().out
    assert "[2/2] sub-002 B" in printed
    assert str(out) in printed
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["GeneratedBy"] == [{"Name": "bids_gevnet_phantom", "Version": __version__}]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--groups", "AD,AD"],
        ["--groups", ""],
        ["--per-group", "0"],
        ["--voxel-mm", "100"],
        ["--snr", "nan"],
        ["--directions", "3"],
        ["--outliers", "2"],
    ],
)
def test_impossible_values_end_with_code_2_and_a_sentence(tmp_path, capsys, arguments):
    assert main([str(tmp_path / "out"), *arguments]) == 2
    message = capsys.readouterr().err
    assert "Expected" in message
    assert "What to do" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--per-group", "many"],
        ["x", "--nprocs", "0"],
        ["x", "--b-values", "1000,x"],
        ["x", "--unknown"],
    ],
)
def test_wrong_usage_ends_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_existing_folder_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    assert main([str(tmp_path), *TINY]) == 2
    assert "mine.txt" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert __version__ in capsys.readouterr().out


def test_help_loads_no_heavy_library():
    """What makes --help slow are imports; none of them may happen for it."""
    code = (
        "import sys\n"
        "from bids_gevnet.cli.phantom import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'numpy', 'scipy', 'nibabel', 'dipy', 'nilearn', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--reverse-b0" in done.stdout


def test_a_full_disk_ends_with_code_1_and_a_sentence(tmp_path):
    """A limit on the size of files fails as a full disk does: while writing."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from bids_gevnet.cli.phantom import main\n"
        f"sys.exit(main([{str(tmp_path / 'out')!r}, *{TINY!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "writing failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "dataset_description.json").exists()
