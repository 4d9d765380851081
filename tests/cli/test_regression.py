"""A number as the target, through the command line: planted effects, none, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learn.conftest import Person, Study

from bids_gevnet.cli.group_jobs import main as write_jobs
from bids_gevnet.cli.run import main
from bids_gevnet.learn.evaluate.scoring import read_predictions
from bids_gevnet.learn.models.files import read_card
from bids_gevnet.learn.train.jobs import read_jobs

AGE = ("--target", "age", "--nprocs", "1", "--devices", "cpu:1")
SMALL = ("--network", "ckn2", "--folds", "3", "--epochs", "2", "--samples-per-class", "6")
FAST = (*AGE, *SMALL, "--learning-rate", "1e-2")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run set what libraries read, and forget it afterwards."""
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def write_study(root: Path, *, age_effect: float, name: str = "Ages", seed: int = 0) -> Path:
    """Eighteen people of 50 to 85 years at two sites whose anisotropy falls with age, or not."""
    rng = np.random.default_rng(seed)
    people = [
        Person(f"{i:02d}", "HC", "AB"[i % 2], float(age), "FM"[int(rng.integers(2))])
        for i, age in enumerate(rng.permutation(np.linspace(50, 85, 18)))
    ]
    study = Study(root, people, effect=0.2, seed=seed, age_effect=age_effect)
    text = json.dumps({"Name": name, "BIDSVersion": "1.10.0"})
    (study.bids_dir / "dataset_description.json").write_text(text)
    (study.bids_dir / "participants.json").write_text('{"age": {"Units": "year"}}')
    return root


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("aged"), age_effect=1.0)


def run(root: Path, capsys: Any, *options: str) -> tuple[int, str]:
    code = main([str(root / "raw"), str(root / "derivatives"), "group", *options])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return code, printed.out + printed.err


@pytest.fixture(scope="module")
def trained(aged: Path) -> Path:
    """The study with its models, sites left out in turn as well."""
    assert main([str(aged / "raw"), str(aged / "derivatives"), "group", *FAST]) == 0
    return aged


def metrics_of(root: Path) -> Any:
    return json.loads((root / "derivatives/group_metrics.json").read_text())


def test_a_known_age_effect_is_found(trained: Path) -> None:
    metrics = metrics_of(trained)
    (task,) = metrics["tasks"]
    assert (task["kind"], task["unit"], task["title"]) == ("regression", "year", "age")
    assert task["headline"]["sentence"].startswith("Age can be predicted from the scans, best by")
    assert "years on average" in task["headline"]["sentence"]
    by_name = {model["model"]: model["schemes"] for model in task["models"]}
    assert by_name["rish"]["folds"]["pooled"]["r2"]["low"] > 0.5
    assert by_name["voxels_rish"]["folds"]["pooled"]["correlation"]["low"] > 0.5
    for confound in ("site", "motion", "sex"):
        assert by_name[confound]["folds"]["pooled"]["correlation"]["low"] < 0
    assert "leave-site-out" in by_name["ckn2"]
    assert any("predicted as a number" in text for text in metrics["remarks"])
    table = read_predictions(trained / "derivatives/group_predictions.tsv")
    folds = table[(table["model"] == "ckn2") & (table["scheme"] == "folds")]
    assert len(folds) == folds["participant_id"].nunique() == 18


def test_the_same_without_an_effect_is_not(tmp_path: Path, capsys: Any) -> None:
    root = write_study(tmp_path, age_effect=0.0, seed=3)
    code, printed = run(root, capsys, *FAST, "--no-leave-site-out", "--epochs", "1")
    assert code == 0, printed
    found = metrics_of(root)["tasks"][0]["headline"]
    assert not found["told_apart"]
    assert found["sentence"].startswith("Age could not be predicted from the scans")
    assert "Age could not be predicted from the scans" in " ".join(printed.split())
    assert "mean absolute error (year)" in printed


def test_a_dry_run_says_what_the_column_is(aged: Path, capsys: Any) -> None:
    code, printed = run(aged, capsys, *FAST, "--dry-run")
    assert code == 0
    assert "age (year): 50 to 85, median 67.5" in printed
    assert "note: age has 18 different numbers" in printed
    assert "age: predict the number, 3 folds, of 6, 6, 6 participants" in printed
    code, printed = run(aged, capsys, *FAST, "--dry-run", "--task", "classification")
    assert code == 2
    assert "at least 3 participants of every class" in printed


def test_methods_are_those_of_a_regression(aged: Path, tmp_path: Path, capsys: Any) -> None:
    root = Path(shutil.copytree(aged / "raw", tmp_path / "study/raw")).parent
    (root / "derivatives").mkdir()
    code, _ = run(root, capsys, *FAST, "--boilerplate-only")
    assert code == 0
    text = (root / "derivatives/CITATION.md").read_text()
    assert "The number age (year) of 18 participants was predicted" in text
    assert "taken for a number because it has many different values" in text
    assert "mean squared error of age" in text
    assert "ridge regressions" in text


def test_another_study_is_validated_and_started_from(
    trained: Path, tmp_path: Path, capsys: Any
) -> None:
    """Nothing but --model: the model knows its column. Then training starts from its weights."""
    model = str(trained / "derivatives/models/age/final")
    root = write_study(tmp_path, age_effect=1.0, name="Elsewhere", seed=5)
    few = ("--nprocs", "1", "--devices", "cpu:1", "--model", model)
    code, printed = run(root, capsys, *few, "--task", "classification")
    assert (code, "--task regression" in printed) == (2, True)
    code, printed = run(root, capsys, *few)
    assert code == 0, printed
    (task,) = metrics_of(root)["tasks"]
    assert task["headline"]["sentence"].startswith("In 18 people it has never seen, the model")
    table = read_predictions(root / "derivatives/group_predictions.tsv")
    assert set(table["scheme"]) == {"external"}
    report = (root / "derivatives/group_report.html").read_text()
    assert "Predicted against true age of every held-out scan" in report
    for path in (root / "derivatives").glob("group_*"):
        path.unlink()
    start = ("--init-model", model, "--no-leave-site-out", "--epochs", "1")
    code, printed = run(root, capsys, *FAST, *start)
    assert code == 0, printed
    card = read_card(root / "derivatives/models/age/final")
    assert "init_model" in card.options


def test_people_of_the_training_data_are_not_scored(trained: Path, tmp_path: Path, capsys: Any):
    root = Path(shutil.copytree(trained / "raw", tmp_path / "study/raw")).parent
    folders = [p for p in (trained / "derivatives").glob("sub-*") if p.is_dir()]
    for folder in folders:
        shutil.copytree(folder, root / "derivatives" / folder.name)
    model = str(trained / "derivatives/models/age/final")
    code, printed = run(root, capsys, "--model", model, "--dry-run")
    assert code == 2
    assert "people whom the model has not seen" in printed


def test_jobs_of_a_cluster_are_those_of_the_run(aged: Path, tmp_path: Path, capsys: Any) -> None:
    root = Path(shutil.copytree(aged / "raw", tmp_path / "study/raw")).parent
    for folder in (aged / "derivatives").glob("sub-*"):
        if folder.is_dir():
            shutil.copytree(folder, root / "derivatives" / folder.name)
    work = tmp_path / "work"
    command = [str(root / "raw"), str(root / "derivatives"), "group", "-w", str(work), *FAST]
    assert write_jobs(command) == 0
    path = next(iter(work.rglob("jobs.json")))
    jobs = read_jobs(path)
    assert {job.kind for job in jobs} == {"regression"}
    assert len(jobs) == 3 + 2 + 1
    assert all(scan.value is not None for job in jobs for scan in (*job.training, *job.testing))
    capsys.readouterr()
