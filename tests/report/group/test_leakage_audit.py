"""The leakage audit: passes on an honest run, and every kind of leak makes it fail."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from report.group_study import GroupStudy, edit_json

from bids_gevnet.report.group.leakage_audit import FAILED, OPEN, PASSED, audit_group
from bids_gevnet.report.group.study_files import read_study

QUESTIONS = {
    "disjoint": "Nobody is in training and test of a fold",
    "once": "Everybody is tested exactly once",
    "table": "The table of predictions has the folds of the models",
    "content": "No test scan has the same content as a training scan",
    "harmonisation": "Harmonisation was fitted anew in every fold",
    "refit": "A refit on the training scans alone gives the same harmonisation",
    "weights": "Every fold has a network of its own",
    "calibration": "Calibration of a fold comes from the other folds",
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "out"
    GroupStudy(folder, people=12, folds=3, pictures=False).write()
    facts = {"digest": "ckn2+gevnet 1", "fold": 1, "scans": 8, "largest_difference": 0.0}
    (folder / "models/first-v-second/harmonisation_check.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture
def study(honest, tmp_path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "out"))


def fold(study: Path, name: str = "fold-1") -> Path:
    return study / "models/first-v-second" / name


def answers(study: Path) -> dict[str, str]:
    (audit,) = audit_group(read_study(study))
    found = {check.question: check.status for check in audit.checks}
    assert list(found) == list(QUESTIONS.values())
    return {key: found[question] for key, question in QUESTIONS.items()}


def test_an_honest_run_passes(honest):
    assert set(answers(honest).values()) == {PASSED}


def test_who_was_where_is_listed(honest):
    (audit,) = audit_group(read_study(honest))
    tested = sorted(name for row in audit.folds for name in row.testing)
    assert tested == [f"{number:03d}" for number in range(1, 13)]
    for row in audit.folds:
        assert not set(row.training) & set(row.testing)
        assert len(row.training) + len(row.testing) == 12


def read(path: Path) -> dict:
    return dict(json.loads(path.read_text()))


def train_on_test(study: Path) -> None:
    held_out = read(fold(study) / "held_out.json")["scans"][0]["scan"].removeprefix("sub-")
    card = read(fold(study) / "model.json")
    edit_json(fold(study) / "model.json", participants=[*card["participants"], held_out])


def score_twice(study: Path) -> None:
    extra = read(fold(study, "fold-2") / "held_out.json")["scans"]
    edit_json(
        fold(study) / "held_out.json", scans=read(fold(study) / "held_out.json")["scans"] + extra
    )


def leave_somebody_out(study: Path) -> None:
    scans = read(fold(study) / "held_out.json")["scans"]
    edit_json(fold(study) / "held_out.json", scans=scans[1:])


def move_in_the_table(study: Path) -> None:
    path = study / "group_predictions.tsv"
    path.write_text(path.read_text().replace("folds\t1\t", "folds\t2\t", 1))


def hide_a_copy(study: Path) -> None:
    """Give a test scan the content of a training scan: one hash fewer than scans."""
    card = read(fold(study, "final") / "model.json")
    names = card["fingerprints"]
    edit_json(fold(study, "final") / "model.json", fingerprints=[*names[1:], names[-1]])


def share_harmonisation(study: Path) -> None:
    shutil.copy(fold(study, "final") / "harmonisation.npz", fold(study) / "harmonisation.npz")


def know_a_foreign_site(study: Path) -> None:
    edit_json(fold(study) / "model.json", sites=["A"])


def refit_differs(study: Path) -> None:
    edit_json(fold(study).parent / "harmonisation_check.json", largest_difference=0.01)


def share_weights(study: Path) -> None:
    shutil.copy(fold(study, "fold-2") / "model.safetensors", fold(study) / "model.safetensors")


def calibrate_on_all(study: Path) -> None:
    """Probabilities with a temperature of their own, as from a fit that saw the test fold."""
    path = study / "group_predictions.tsv"
    lines = path.read_text().splitlines()
    changed = []
    for line in lines:
        cells = line.split("\t")
        if cells[4] == "network" and cells[6] == "folds":
            chances = np.array(cells[-2:], float) ** 1.3
            cells[-2:] = [repr(float(p)) for p in chances / chances.sum()]
        changed.append("\t".join(cells))
    path.write_text("\n".join(changed) + "\n")


@pytest.mark.parametrize(
    ("leak", "question"),
    [
        (train_on_test, "disjoint"),
        (score_twice, "once"),
        (leave_somebody_out, "once"),
        (move_in_the_table, "table"),
        (hide_a_copy, "content"),
        (share_harmonisation, "harmonisation"),
        (know_a_foreign_site, "harmonisation"),
        (refit_differs, "refit"),
        (share_weights, "weights"),
        (calibrate_on_all, "calibration"),
    ],
)
def test_every_leak_is_found(study, leak: Callable[[Path], None], question: str):
    leak(study)
    assert answers(study)[question] == FAILED


@pytest.mark.parametrize(
    ("file", "question"),
    [
        ("held_out.json", "disjoint"),
        ("harmonisation.npz", "harmonisation"),
        ("model.safetensors", "weights"),
        ("held_out.json", "calibration"),
        ("../harmonisation_check.json", "refit"),
    ],
)
def test_what_cannot_be_checked_is_not_said_to_pass(study, file, question):
    (fold(study) / file).unlink()
    assert answers(study)[question] == OPEN


def test_a_refit_of_other_models_does_not_count(study):
    edit_json(fold(study) / "model.json", digest="another training")
    assert answers(study)["refit"] == OPEN


def test_gains_that_change_nothing_may_be_alike(study):
    for folder in fold(study).parent.iterdir():
        path = folder / "harmonisation.npz"
        if path.exists():
            from bids_gevnet.harmonisation.gains import RishGains

            RishGains(np.ones((2, 4, 4, 4, 1), np.float32), ("A", "B"), (0,)).save(path)
    assert answers(study)["harmonisation"] == PASSED
