"""Jobs written for a cluster are those of the group level, which then need not train."""

from pathlib import Path
from typing import Any

import pytest

from bids_gevnet.cli.group import run_group_level
from bids_gevnet.cli.group_jobs import main
from bids_gevnet.cli.parser import parse_request
from bids_gevnet.learn.train.jobs import read_jobs
from bids_gevnet.learn.train.process import main as train_jobs

OPTIONS = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--network", "ckn2")
HERE = ("--devices", "cpu:1", "--nprocs", "1", "--resume")


def learning_and_execution(arguments: list[str]) -> tuple[Any, Any]:
    settings = parse_request(arguments).settings
    return settings.learning, settings.execution


def test_jobs_are_those_of_the_group_level(
    make_study: Any,
    plan_jobs: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    study = make_study(per_class=2)
    arguments = [str(study.bids_dir), str(study.output_dir), "group", *OPTIONS, *HERE]
    assert main(arguments) == 0
    printed = Path(capsys.readouterr().out.splitlines()[-1])
    assert printed == study.output_dir / "work/group/jobs.json"
    jobs = read_jobs(printed)
    assert not any(Path(job.model_dir).exists() for job in jobs)
    again = plan_jobs(study, *learning_and_execution(arguments))
    assert [job.digest for job in jobs] == [job.digest for job in again.jobs]


def test_the_group_level_takes_what_a_cluster_trained(
    make_study: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepare, train by the module that srun starts, then run the level: nothing is trained."""
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    study = make_study(per_class=2)
    arguments = [str(study.bids_dir), str(study.output_dir), "group", *OPTIONS, *HERE]
    assert main(arguments) == 0
    assert train_jobs([str(study.output_dir / "work/group/jobs.json"), "--threads", "1"]) == 0
    files = sorted((study.output_dir / "models").rglob("model.safetensors"))
    before = [path.stat().st_mtime_ns for path in files]
    assert run_group_level(parse_request(arguments)) == 0
    assert [path.stat().st_mtime_ns for path in files] == before
    assert (study.output_dir / "group_report.html").is_file()


def test_only_the_group_level_has_jobs(make_study: Any, capsys: Any, tmp_path: Path) -> None:
    study = make_study(per_class=2)
    assert main([str(study.bids_dir), str(study.output_dir), "participant"]) == 2
    assert "found participant" in capsys.readouterr().err
    assert main([str(study.bids_dir), str(tmp_path / "nowhere"), "group"]) == 2
    assert "participant first" in capsys.readouterr().err
