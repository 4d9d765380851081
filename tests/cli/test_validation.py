"""A finished model at the group level: validated (`--model`), or the start (`--init-model`)."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from learn.conftest import AFFINE, NSIDE, SHAPE, Study, make_people

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.cli.run import main
from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.harmonisation.glm import fit_rish_glm
from bids_gevnet.learn.cohort.members import read_cohort
from bids_gevnet.learn.cohort.store import store_scan
from bids_gevnet.learn.evaluate.scoring import read_predictions
from bids_gevnet.learn.models.files import (
    ModelCard,
    build_network,
    load_model,
    read_card,
    write_card,
    write_model,
)
from bids_gevnet.learn.models.newcomers import refuse_trained_on
from bids_gevnet.learn.models.prediction import predict_scan

DEGREES = fit_limits(NSIDE)[1]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run set what libraries read, and forget it afterwards."""
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three classes at two sites, and a model of two of them that knows one site."""
    root = tmp_path_factory.mktemp("validation")
    study = Study(root, make_people(3, ("AD", "DLB", "PD"), ("A", "B")), effect=0.8, seed=0)
    cohort = read_cohort(study.output_dir, study.bids_dir, folds=1)
    first = store_scan(
        root / "store",
        cohort.rows[0].image,
        cohort.rows[0].mask,
        nside=NSIDE,
        voxel_mm=cohort.voxel_mm,
    )
    card = ModelCard(
        network="ckn2",
        labels=("AD", "PD"),
        task="AD-v-PD",
        fold=None,
        nside=NSIDE,
        shape=SHAPE,
        affine=tuple(map(tuple, AFFINE.tolist())),
        temperature=1.7,
        options={},
        participants=("x01", "x02"),
        fingerprints=(first.fingerprint,),
        dataset="Another study",
        sites=("A",),
        max_motion=5.0,
        rish_low=(-99.0,) * len(DEGREES),
        rish_high=(99.0,) * len(DEGREES),
        harmonised=True,
        warnings=(),
        digest="made for the tests",
    )
    gains = np.full((1, *SHAPE, len(DEGREES)), 1.1, np.float32)
    torch.manual_seed(0)
    write_model(
        root / "model",
        build_network("ckn2", 2, NSIDE),
        card,
        RishGains(gains, ("A",), DEGREES, NSIDE),
    )
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "study"))


def run(
    root: Path, capsys: pytest.CaptureFixture[str], *options: str, model: str = "model"
) -> tuple[int, str]:
    command = [str(root / "raw"), str(root / "derivatives"), "group", "--model"]
    code = main([*command, str(root / model), "--nprocs", "1", "--devices", "cpu:1", *options])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_people_are_scored_as_the_participant_level_would(root, capsys):
    """The same probabilities as `participant --model`, nothing fitted, everybody accounted for."""
    before = (root / "model" / "model.json").read_bytes()
    code, printed = run(root, capsys)
    assert code == 0, printed
    output = root / "derivatives"
    table = read_predictions(output / "group_predictions.tsv")
    assert set(table["scheme"]) == {"external"}
    # sub-000 is in the training data by its content; the three with DLB are not of the model.
    assert table["scan"].tolist() == ["sub-001", "sub-002", "sub-200", "sub-201", "sub-202"]
    cohort = read_cohort(output, root / "raw", folds=1)
    rows = {row.scan: row for row in cohort.rows}
    model = load_model(root / "model")
    for scan, p in zip(table["scan"], table["prob_PD"], strict=True):
        row = rows[scan]
        alone = predict_scan(root / "model", row.image, row.mask, bids_dir=root / "raw")
        assert p == pytest.approx(alone.probabilities["PD"], abs=1e-5)
        assert model.gains.corrects(row.site) == (row.site == "A")
    metrics = json.loads((output / "group_metrics.json").read_text())
    reasons = {entry["scan"]: entry["reason"] for entry in metrics["left_out"]}
    assert set(reasons) == {"sub-000", "sub-100", "sub-101", "sub-102"}
    assert "training data" in reasons["sub-000"]
    assert "DLB" in reasons["sub-100"]
    assert "no harmonisation for B" in " ".join(metrics["warnings"])
    (task,) = metrics["tasks"]
    assert task["headline"]["sentence"].startswith("In 5 people it has never seen, the model")
    assert [model["kind"] for model in task["models"]] == ["network"]
    assert not (output / "models").exists()
    assert (root / "model" / "model.json").read_bytes() == before
    page = (output / "group_report.html").read_text()
    assert "In 5 people it has never seen" in page
    assert "nothing was fitted to this dataset" in page
    assert 'id="learning"' not in page
    assert "of folds" not in page
    assert "All folds" not in page
    assert "is missing or cannot be read" not in page
    assert task["headline"]["sentence"] in " ".join(printed.split())
    assert "A finished model" in (output / "CITATION.md").read_text()
    # A second validation is no training study, and may replace the first.
    assert run(root, capsys, "--dry-run")[0] == 0


def test_the_terminal_shows_stages_and_the_answer_and_nothing_of_nipype(root):
    command = [sys.executable, "-m", "bids_gevnet.cli.start", "raw", "derivatives", "group"]
    command += ["--model", "model", "--devices", "cpu:1", "--nprocs", "1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "predictions of the model" in said
    assert "Report: " in said
    assert not [line for line in said.splitlines() if "nipype" in line or "[Node]" in line]


def nothing(_root: Path) -> None:
    """Leave everything as it is."""


def change_card(**changes: object) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        card = read_card(root / "model")
        write_card(root / "model", dataclasses.replace(card, **changes))  # type: ignore[arg-type]

    return change


def trained(root: Path) -> None:
    write_json(root / "derivatives" / "group_metrics.json", {"tasks": []})


def of_two_shells(root: Path) -> None:
    card = read_card(root / "model")
    card = dataclasses.replace(card, b_values=(1000.0, 3000.0), harmonised=False)
    write_model(root / "model", build_network("ckn2", 2, NSIDE, shells=2), card, None)


def other_name_of_the_column(root: Path) -> None:
    path = root / "raw" / "participants.tsv"
    path.write_text(path.read_text().replace("diagnosis", "Dx", 1))


EVERYBODY = tuple(f"{k}{i:02d}" for k in range(3) for i in range(3))
CASES = {
    "who would be scored": (nothing, 0, "6 participants with 6 scans would be scored"),
    "who is left out": (nothing, 0, "3 (sub-100, sub-101, sub-102): diagnosis DLB"),
    "labels in a column of another name": (other_name_of_the_column, 0, "sub-102): Dx DLB"),
    "a site the model does not know": (nothing, 0, "does not know: B"),
    "a training study in the output": (trained, 2, "which a validation would overwrite"),
    "another grid": (
        change_card(shape=(8, 8, 8), harmonised=False),
        2,
        "on the grid of the model, 8x8x8",
    ),
    "other shells": (of_two_shells, 2, "shells of the model, b = 1000"),
    "other classes": (change_card(labels=("CN", "PD")), 2, "0 CN, 3 PD"),
    "the people it was trained on": (
        change_card(participants=EVERYBODY, dataset="Study of the tests"),
        2,
        "in the training data of the model",
    ),
}


@pytest.mark.parametrize(("change", "code", "said"), CASES.values(), ids=CASES)
def test_a_dry_run_says_who_would_be_scored_or_why_not(change, code, said, root, capsys):
    change(root)
    before = sorted(root.rglob("*"))
    got, printed = run(root, capsys, "--dry-run")
    assert (got, "Traceback" in printed) == (code, False), printed
    assert said in printed
    assert sorted(root.rglob("*")) == before


def test_a_card_that_somebody_changed_is_said(root, capsys, caplog):
    assert run(root, capsys, "--dry-run")[0] == 0
    assert "MODEL_CARD.md" not in caplog.text
    change_card(files={"MODEL_CARD.md": "another hash"})(root)
    assert run(root, capsys, "--dry-run")[0] == 0
    assert "MODEL_CARD.md of the model is missing or was changed" in caplog.text


STARTS = {
    "other classes": (
        nothing,
        (),
        0,
        "were not used for AD v. DLB; DLB v. PD: there they started",
    ),
    "somebody it was trained on": (
        change_card(participants=("000",), dataset="Study of the tests"),
        (),
        0,
        "sub-000: in the training data of the model",
    ),
    "everybody it was trained on": (
        change_card(participants=EVERYBODY, dataset="Study of the tests"),
        (),
        2,
        "a model that was trained on another dataset",
    ),
    "another network": (nothing, ("--network", "gevnet"), 2, "give --network ckn2"),
    "other strides": (nothing, ("--strides", "1", "1", "2", "1"), 2, "--strides 2 1 2 1"),
    "another grid": (
        change_card(shape=(8, 8, 8), harmonised=False),
        (),
        2,
        "on the grid of the model, 8x8x8",
    ),
    "a model to validate, too": (nothing, ("--model", "x"), 2, "no --model"),
}


@pytest.mark.parametrize(("change", "options", "code", "said"), STARTS.values(), ids=STARTS)
def test_a_dry_run_says_from_what_training_would_start(change, options, code, said, root, capsys):
    change(root)
    command = [str(root / "raw"), str(root / "derivatives"), "group", "--dry-run", "--folds", "2"]
    start = ["--init-model", str(root / "model"), "--network", "ckn2"]
    got = main([*command, *start, *options])
    printed = capsys.readouterr()
    assert (got, "Traceback" in printed.err) == (code, False), printed
    assert said in " ".join((printed.out + printed.err).split())


def test_scans_it_was_trained_on_are_recognised_by_their_content(root):
    """The name and the dataset are others, the scan is the same: its fold would leak."""
    cohort = read_cohort(root / "derivatives", root / "raw", folds=1)
    folders = [
        store_scan(root / "store", r.image, r.mask, nside=NSIDE, voxel_mm=cohort.voxel_mm).folder
        for r in cohort.rows
    ]
    with pytest.raises(InputError, match="--exclude-participant-label 000:"):
        refuse_trained_on(cohort.rows, folders, root / "model")
    refuse_trained_on(cohort.rows[1:], folders[1:], root / "model")


def test_a_b0_beside_the_samples_changes_no_prediction(root):
    """The participant level puts a b0 of 1 before the samples, for other programs."""
    row = read_cohort(root / "derivatives", root / "raw", folds=1).rows[-1]
    before = predict_scan(root / "model", row.image, row.mask, bids_dir=root / "raw")
    loaded = nib.load(row.image)
    samples = loaded.get_fdata(dtype=np.float32)
    with_b0 = np.concatenate([np.ones((*SHAPE, 1), np.float32), samples], axis=-1)
    write_image(row.image, with_b0, loaded.affine, scale=1 / 16384)
    b_values = " ".join(["0", *["1000"] * samples.shape[-1]])
    row.image.with_name(row.image.name.replace(".nii.gz", ".bval")).write_text(b_values)
    after = predict_scan(root / "model", row.image, row.mask, bids_dir=root / "raw")
    assert after.probabilities == pytest.approx(before.probabilities, abs=1e-5)


def give_reference(root: Path) -> None:
    """Let the model have been trained at other sites, on scans with more energy."""
    cohort = read_cohort(root / "derivatives", root / "raw", folds=1)
    maps = [
        store_scan(
            root / "store", row.image, row.mask, nside=NSIDE, voxel_mm=cohort.voxel_mm
        ).log_rish
        + np.float32(0.5)
        for row in cohort.rows
    ]
    gains = fit_rish_glm(
        maps,
        participants=[row.participant for row in cohort.rows],
        sites=["X" if row.site == "A" else "Y" for row in cohort.rows],
        nside=NSIDE,
        degrees=DEGREES,
    )
    model = load_model(root / "model")
    with torch.no_grad():  # untrained, its hidden units may all be silent for all scans
        first = model.network.head[0]
        first.weight.mul_(20)
        first.bias.fill_(5.0)
    write_model(root / "model", model.network, model.card, gains)


def test_new_sites_are_adapted_to_without_labels_and_small_ones_named(root, capsys):
    give_reference(root)
    code, printed = run(root, capsys)
    assert code == 0, printed
    plain = read_predictions(root / "derivatives" / "group_predictions.tsv")
    code, printed = run(root, capsys, "--adapt")
    assert code == 0, printed
    adapted = read_predictions(root / "derivatives" / "group_predictions.tsv")
    changed = (plain["prob_PD"] - adapted["prob_PD"]).abs() > 1e-7
    # Three people were scanned at A, two at B.
    assert set(plain["site"][changed]) == {"A"}
    metrics = json.loads((root / "derivatives" / "group_metrics.json").read_text())
    warnings = " ".join(metrics["warnings"])
    assert "Site A, which the model was not trained on, was harmonised from the" in warnings
    assert "unlabelled scans of 3 people" in warnings
    assert "mix of diagnoses" in warnings
    assert "Site B" in warnings
    assert "there are 2" in warnings
    assert metrics["external"]["harmonised_sites"] == ["A"]
    page = (root / "derivatives" / "group_report.html").read_text()
    assert "removes a part of the difference between diagnoses" in page


def test_a_model_that_cannot_adapt_is_refused_before_anything_runs(root, capsys):
    code, printed = run(root, capsys, "--adapt")
    assert code == 2, printed
    assert "keeps no such reference" in printed
    assert not (root / "derivatives" / "group_predictions.tsv").exists()
