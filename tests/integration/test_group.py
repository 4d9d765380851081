"""Both levels and a prediction as a user runs them, on a tiny phantom cohort."""

import json
import shutil

import pandas as pd
import pytest
from documented import undocumented

from bids_gevnet.cli.run import main
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

FAST = ("--output-resolution", "12", "--correction", "none", "--skip-bids-validation")
SMALL = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--devices", "cpu:1")
TRAINED = ("001", "002", "003", "004")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Six participants, all of them processed, four of them trained on."""
    folder = tmp_path_factory.mktemp("study")
    cohort, out = folder / "cohort", folder / "out"
    write_cohort(cohort, tiny_settings(groups=("AD", "PD"), per_group=3, sites=1))
    assert main([str(cohort), str(out), "participant", *FAST]) == 0
    label = ("--participant-label", *TRAINED)
    assert main([str(cohort), str(out), "group", *SMALL, *label]) == 0
    return folder


def test_every_held_out_prediction_is_in_the_table(study):
    table = pd.read_csv(study / "out/group_predictions.tsv", sep="\t")
    models = ["ckn2+gevnet", "site", "motion", "age_sex", "rish", "voxels_fa", "voxels_md"]
    assert list(dict.fromkeys(table["model"]))[: len(models)] == models
    headline = pd.read_csv(study / "out/group_headline.tsv", sep="\t")
    assert headline["sentence"].str.contains("AD and PD").all()
    table = table[table["kind"] == "network"]
    assert sorted(table["participant_id"]) == [f"sub-{label}" for label in TRAINED]
    assert set(table["fold"]) == {1, 2}
    metrics = json.loads((study / "out/group_metrics.json").read_text())
    correct = (table["label"] == table["predicted"]).mean()
    network = metrics["tasks"][0]["models"][0]["schemes"]["folds"]
    assert network["pooled"]["accuracy"]["value"] == pytest.approx(correct)
    assert "not for diagnosis" in (study / "out/group_report.html").read_text()


def test_the_reference_pages_explain_every_column_and_key_of_a_run(study):
    assert undocumented(study / "out", study / "cohort") == []
    stray = study / "out" / "stray.json"
    stray.write_text('{"headline": [{"nobody_explained_me": 1}]}')
    found = undocumented(study / "out", study / "cohort")
    stray.unlink()
    assert found == ["nobody_explained_me in stray.json"]


def test_a_new_scan_is_predicted_with_caution(study):
    model = study / "out/models/AD-v-PD/final"
    out = study / "new"
    label = ("--participant-label", "006", "--model", str(model))
    clean = own_work_directory(study / "new-work")
    assert main([str(study / "cohort"), str(out), "participant", *FAST, *label, *clean]) == 0
    assert [path.name for path in (study / "new-work").rglob("*")] == ["notes.txt"]
    table = pd.read_csv(out / "sub-006/dwi/sub-006_model-ckn2gevnet_prediction.tsv", sep="\t")
    assert set(table["label"]) == {"AD", "PD"}
    assert table["probability"].sum() == pytest.approx(1, abs=1e-4)
    assert "not for diagnosis" in (out / "sub-006.html").read_text()


def test_who_was_trained_on_is_not_predicted(study, capsys):
    model = study / "out/models/AD-v-PD/final"
    label = ("--participant-label", "001", "--model", str(model))
    assert main([str(study / "cohort"), str(study / "old"), "participant", *FAST, *label]) == 1
    assert "sub-001: harmonisation with the model's gains:" in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused_at_once(study, capsys):
    options = ("--model", str(study), "--participant-label", "006", *FAST)
    assert main([str(study / "cohort"), str(study / "none"), "participant", *options]) == 2
    assert "model.json" in capsys.readouterr().err


def test_more_folds_than_people_is_said_before_training(study, capsys):
    assert main([str(study / "cohort"), str(study / "out"), "group", "--folds", "9"]) == 2
    assert "--folds" in capsys.readouterr().err


def test_group_level_before_participant_level(study, capsys):
    assert main([str(study / "cohort"), str(study / "nowhere"), "group"]) == 2
    assert "participant first" in capsys.readouterr().err


@pytest.fixture(scope="module")
def ages(study):
    """The same people with their age to predict."""
    out = study / "ages"
    for label in TRAINED:
        shutil.copytree(study / "out" / f"sub-{label}", out / f"sub-{label}")
    label = ("--participant-label", *TRAINED, "--network", "ckn2", "--task", "regression")
    command = [str(study / "cohort"), str(out), "group", *SMALL, *label, "--target", "age"]
    assert main([*command, *own_work_directory(study / "ages-work")]) == 0
    return out


def own_work_directory(folder):
    """Give the app a work directory that somebody keeps files in, and ask it to clean up."""
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    return "--work-dir", str(folder), "--clean-workdir"


def test_cleaning_up_removes_what_the_app_made_and_nothing_else(study, ages):
    assert ages.exists()
    assert [path.name for path in (study / "ages-work").rglob("*")] == ["notes.txt"]


def test_the_reference_pages_explain_what_a_regression_writes(study, ages):
    assert undocumented(ages, study / "cohort") == []


def test_a_number_has_a_table_a_report_and_a_card(ages):
    table = pd.read_csv(ages / "group_predictions.tsv", sep="\t")
    assert table["value_age"].notna().all()
    assert not [name for name in table.columns if name.startswith("prob_")]
    assert list(dict.fromkeys(table["model"]))[:5] == ["ckn2", "site", "motion", "sex", "rish"]
    report = (ages / "group_report.html").read_text()
    assert "Age could not be predicted from the scans" in report
    assert "Predicted against true age of every held-out scan" in report
    assert "The number age (year) of 4 participants" in report
    assert "Cross entropy" not in report
    assert "Failed" not in report.split('id="audit"')[1].split('id="methods"')[0]
    card = (ages / "models/age/final/MODEL_CARD.md").read_text()
    assert "Predicts age, in year, from a diffusion MRI scan (regression)." in card
    assert "Mean absolute error" in card
    model = json.loads((ages / "models/age/final/model.json").read_text())
    network = table[(table["model"] == "ckn2") & (table["scheme"] == "folds")]
    errors = (network["value_age"] - network["label"]).abs()
    assert model["kind"] == "regression"
    assert model["typical_error"] == pytest.approx(errors.mean())


def test_a_new_scan_has_its_number_predicted(study, ages):
    out = study / "new-age"
    label = ("--participant-label", "006", "--model", str(ages / "models/age/final"))
    assert main([str(study / "cohort"), str(out), "participant", *FAST, *label]) == 0
    table = pd.read_csv(out / "sub-006/dwi/sub-006_model-ckn2_prediction.tsv", sep="\t")
    (row,) = table.to_dict("records")
    assert (row["target"], row["unit"]) == ("age", "year")
    assert f"Predicted age: <strong>{row['value']:.4g} year" in (out / "sub-006.html").read_text()
