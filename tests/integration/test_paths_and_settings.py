"""Every path option, relative and from another folder; settings that a run leaves for the next."""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from learn.conftest import Study, make_people

from bids_gevnet.cli.parser import parse_request
from bids_gevnet.cli.progress import RESOURCE_COLUMNS
from bids_gevnet.cli.run import main
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

FAST = ("--output-resolution", "12", "--correction", "none", "--skip-bids-validation")
SMALL = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--network", "ckn2")
HERE = ("--devices", "cpu:1", "--nprocs", "1", "--no-leave-site-out")


def contents(folder: Path) -> dict[str, str]:
    """Hash of every file but those that say when and where it was made."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not {"logs", "work"} & set(path.relative_to(folder).parts)
        and path.suffix not in {".html", ".md"}
        and path.name != "dataset_description.json"
    }


def write_template(path: Path) -> None:
    from nilearn.datasets import load_mni152_template

    load_mni152_template(resolution=6).to_filename(path)


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A participant processed with absolute paths, in the folder `given`."""
    folder = tmp_path_factory.mktemp("paths")
    write_cohort(folder / "cohort", tiny_settings(groups=("AD",), per_group=2, sites=1))
    files = folder / "files"
    files.mkdir()
    write_template(files / "template.nii.gz")
    (files / "filter.json").write_text('{"dwi": {"suffix": "dwi"}}')
    (files / "plugin.toml").write_text('plugin = "Linear"\n')
    assert main(arguments(folder, folder / "absolute", folder)) == 0
    return folder


def arguments(start: Path, out: Path, folder: Path) -> list[str]:
    """Command line of one participant; `start` comes before every path of the folder."""
    inside = start if start == folder else Path()
    return [
        str(inside / "cohort"), str(out), "participant", "--participant-label", "001", *FAST,
        "--work-dir", f"{out}-work",
        "--template", str(inside / "files/template.nii.gz"),
        "--bids-filter-file", str(inside / "files/filter.json"),
        "--bids-database-dir", f"{out}-index",
        "--use-plugin", str(inside / "files/plugin.toml"),
    ]  # fmt: skip


def test_relative_paths_give_what_absolute_ones_give(
    scanned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scanned)
    assert main(arguments(Path(), Path("relative"), scanned)) == 0
    assert contents(scanned / "relative") == contents(scanned / "absolute")
    assert (scanned / "relative-work").is_dir()
    assert (scanned / "relative-index").is_dir()
    assert not (scanned / "relative" / "work").exists()
    settings = parse_request(arguments(Path(), Path("relative"), scanned)).settings
    for section in settings.to_tables().values():
        for name in ("work_dir", "template", "bids_filter_file", "bids_database_dir"):
            assert Path(section.get(name, "/")).is_absolute()


def test_records_of_time_and_memory_stay_in_the_output(scanned: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bids_gevnet.cli.start", scanned / "cohort", "out"]
    command += ["participant", "--participant-label", "001", *FAST, "--resource-monitor"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    table = (tmp_path / "out/logs/resources/sub-001.tsv").read_text().splitlines()
    assert table[0].split("\t") == list(RESOURCE_COLUMNS)
    assert any("spherical sampling" in line for line in table)


def test_settings_of_a_participant_run_start_the_next(
    scanned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    left = scanned / "absolute/logs/settings.toml"
    first = parse_request(arguments(scanned, scanned / "absolute", scanned)).settings
    again = [str(scanned / "cohort"), str(scanned / "absolute"), "participant"]
    assert parse_request([*again, "--config-file", str(left)]).settings == first
    before = left.read_bytes()
    assert main([*again, "--config-file", str(left)]) == 0
    assert "1 of 1 participants done" in capsys.readouterr().out
    assert left.read_bytes() == before


def test_paths_in_a_settings_file_count_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    file.write_text('[execution]\nwork_dir = "../scratch"\n[learning]\nmodel = "~/model"\n')
    settings = parse_request(["/data", "/out", "participant", "--config-file", str(file)]).settings
    assert settings.execution.work_dir == tmp_path.parent / "scratch"
    assert settings.learning.model == Path.home() / "model"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    made = Study(tmp_path, make_people(2, ("AD", "PD"), ("A", "B")), effect=0.8, seed=0)
    description = {"Name": "Study of the tests", "BIDSVersion": "1.10.0"}
    (made.bids_dir / "dataset_description.json").write_text(json.dumps(description))
    return made


def test_a_relative_work_directory_loses_nothing_at_group_level(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    level = ("../raw", "../derivatives", "group", *SMALL, *HERE)
    assert main([*level, "-w", "wk"]) == 0
    assert (elsewhere / "wk/group/jobs.json").is_file()
    assert not list((elsewhere / "wk/group").rglob("wk"))
    assert not (study.output_dir / "work").exists()
    models = study.output_dir / "models/AD-v-PD"
    assert (models / "saliency.json").is_file()
    assert "largest_difference" in json.loads((models / "harmonisation_check.json").read_text())
    first = contents(study.output_dir)
    stored = {p: p.stat().st_mtime_ns for p in (elsewhere / "wk/group/store").rglob("*.npy")}

    # The settings it left, from yet another folder: nothing is trained or stored again.
    monkeypatch.chdir(tmp_path)
    left = study.output_dir / "logs/settings-group.toml"
    again = [
        "raw",
        "derivatives",
        "group",
        "--config-file",
        "derivatives/logs/settings-group.toml",
    ]
    given: Any = parse_request([str(study.bids_dir), *level[1:], "-w", str(elsewhere / "wk")])
    assert parse_request(again).settings == given.settings
    before = left.read_bytes()
    assert main(again) == 0
    assert left.read_bytes() == before
    assert contents(study.output_dir) == first
    assert {p: p.stat().st_mtime_ns for p in stored} == stored
