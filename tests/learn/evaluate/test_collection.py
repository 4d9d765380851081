"""The whole group level on a small study."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.learn.evaluate.baselines import BASELINES
from bids_gevnet.learn.evaluate.collection import remove_stale_models
from bids_gevnet.learn.evaluate.confound_warnings import confound_warnings
from bids_gevnet.learn.evaluate.scoring import evaluate_table, read_predictions
from bids_gevnet.learn.models.calibration import softmax
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.models.prediction import predict_scan
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.learn.train.trainer import fit_harmonisation
from bids_gevnet.settings import ExecutionSettings, LearningSettings

QUICK = {"folds": 2, "epochs": 1, "samples_per_class": 4, "network": "ckn2", "devices": "cpu:1"}
ALONE = ExecutionSettings(nprocs=1, random_seed=3)
EVIL = "<script>../PD"


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, study_class: Any, run_study: Any
) -> tuple[Any, Any]:
    study = study_class(tmp_path_factory.mktemp("group"), per_class=4, classes=("AD", EVIL))
    return study, run_study(study, LearningSettings(**QUICK), ALONE)


def test_everybody_is_predicted_once(done: tuple[Any, Any]) -> None:
    _, result = done
    table = pd.read_csv(
        result.output.predictions_table, sep="\t", na_values=["n/a"], dtype={"fold": int}
    )
    for _, own in table.groupby(["kind", "model", "scheme"]):
        assert len(own) == 8
        assert not own["scan"].duplicated().any()
    table = table[(table["kind"] == "network") & (table["scheme"] == "folds")]
    assert not table["scan"].duplicated().any()
    chances = table[["prob_AD", f"prob_{EVIL}"]]
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    assert set(table["label"]) == {"AD", EVIL}
    assert set(table["site"]) == {"A", "B"}
    assert table["motion"].between(0.05, 0.3).all()


def test_every_pair_of_labels_is_a_task(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=2, classes=("AD", "DLB", "PD"))
    planned = plan_jobs(study, LearningSettings(**QUICK), ALONE)
    assert [task.title for task in planned.plan.tasks] == ["AD v. DLB", "AD v. PD", "DLB v. PD"]
    for job in planned.jobs:
        people = {scan.participant for scan in (*job.training, *job.testing)}
        assert len(people) == 4
        assert {job.labels[scan.label] for scan in job.training} == set(job.labels)


def test_every_figure_follows_from_the_table(done: tuple[Any, Any]) -> None:
    """What the file says is what `evaluate_table` finds in the table, to the last digit."""
    _, result = done
    content = json.loads(result.output.metrics_file.read_text())
    again = evaluate_table(result.output.predictions_table, seed=ALONE.random_seed)
    facts = {"target", "unit", "remarks", "left_out", "training", "leave_site_out", "warnings"}
    assert set(content) - set(again) == facts
    for name, value in again.items():
        assert content[name] == json.loads(json.dumps(value))
    found = [text for text in content["warnings"] if "alone" in text or "Cramér" in text]
    assert found == confound_warnings(again)


def test_seed_decides_the_figures(done: tuple[Any, Any]) -> None:
    _, result = done
    other = evaluate_table(result.output.predictions_table, seed=ALONE.random_seed + 1)
    assert other["tasks"] != result.metrics["tasks"]


def test_accuracy_by_hand(done: tuple[Any, Any]) -> None:
    _, result = done
    table = read_predictions(result.output.predictions_table)
    for task in result.metrics["tasks"]:
        for model in task["models"]:
            for scheme, found in model["schemes"].items():
                own = table[(table["model"] == model["model"]) & (table["scheme"] == scheme)]
                right = float((own["label"] == own["predicted"]).mean())
                assert found["pooled"]["accuracy"]["value"] == pytest.approx(right)


def test_nobody_is_tested_by_a_model_that_knows_them(done: tuple[Any, Any]) -> None:
    study, result = done
    table = read_predictions(result.output.predictions_table)
    for _, row in table[table["kind"] == "network"].iterrows():
        folder = study.output_dir / "models" / row["task"]
        name = {"folds": f"fold-{row['fold']}", "leave-site-out": f"leave-site-{row['site']}"}
        card = json.loads((folder / name[row["scheme"]] / "model.json").read_text())
        assert row["participant_id"].removeprefix("sub-") not in card["participants"]
        assert row["scheme"] == "folds" or row["site"] not in card["sites"]


def test_baselines_are_beside_the_network(done: tuple[Any, Any]) -> None:
    _, result = done
    table = read_predictions(result.output.predictions_table)
    scans = {
        key: sorted(zip(own["scan"], own["fold"], strict=True))
        for key, own in table.groupby(["scheme", "model"])
    }
    alone = {"age", "sex"}  # beside a target that is the other of the two
    wanted = {n for n, baseline in BASELINES.items() if not baseline.needs_several} - alone
    assert {model for _, model in scans} == {"ckn2"} | wanted
    assert len(scans) == 2 * (1 + len(wanted))
    for (scheme, _), own in scans.items():
        assert own == scans[scheme, "ckn2"]


def test_labels_never_become_paths(done: tuple[Any, Any]) -> None:
    study, _ = done
    names = [path.name for path in (study.output_dir / "models").iterdir()]
    assert len(names) == 1
    assert all(name.replace("-", "").isalnum() for name in names)


def test_final_models_are_calibrated_and_know_everybody(done: tuple[Any, Any]) -> None:
    _, result = done
    assert len(result.collected.models) == 1
    calibrated = [
        own for own in result.collected.results if (own.kind, own.scheme) == ("network", "folds")
    ]
    for folder, own in zip(result.collected.models, calibrated, strict=True):
        _, card, _ = load_model(folder)
        assert card.temperature == pytest.approx(own.temperature)
        assert set(card.participants) == {row.participant for row in own.rows}


def test_new_scan_is_predicted_from_its_files(done: tuple[Any, Any]) -> None:
    """The files of a fold's test person give the probabilities of that fold's scores."""
    study, result = done
    row = result.collected.results[0].rows[0]
    fold = int(result.collected.results[0].folds[0])
    folder = study.output_dir / "models" / result.collected.results[0].task / f"fold-{fold}"
    prediction = predict_scan(folder, row.image, row.mask, bids_dir=study.bids_dir)
    chances = softmax(np.array(read_held_out(folder)[row.scan]))
    np.testing.assert_allclose(list(prediction.probabilities.values()), chances, atol=1e-4)
    assert not any("site" in text for text in prediction.warnings)
    with pytest.raises(ParticipantError, match="in its training data"):
        predict_scan(result.collected.models[0], row.image, row.mask, bids_dir=study.bids_dir)


def test_cohort_table_has_the_folds(done: tuple[Any, Any]) -> None:
    _, result = done
    cohort = pd.read_csv(result.output.cohort_table, sep="\t", na_values=["n/a"])
    table = read_predictions(result.output.predictions_table)
    for _, row in table[table["scheme"] == "folds"].iterrows():
        own = cohort[cohort["scan"] == row["scan"]]
        assert int(own[f"fold_{row['task']}"].iloc[0]) == row["fold"]


def test_what_is_trained_is_not_trained_again(done: tuple[Any, Any], run_study: Any) -> None:
    study, result = done
    weights = [p / "model.safetensors" for p in result.collected.models]
    before = [path.stat().st_mtime_ns for path in weights]
    text = result.output.predictions_table.read_bytes()
    run_study(study, LearningSettings(**QUICK), ALONE)
    assert [path.stat().st_mtime_ns for path in weights] == before
    assert result.output.predictions_table.read_bytes() == text


def test_inseparable_sites_are_said(make_study: Any, person_class: Any, run_study: Any) -> None:
    people = [
        person_class(f"{g}{i}", g, site, 65.0 + i, "F")
        for g, site in (("AD", "A"), ("PD", "B"))
        for i in range(3)
    ]
    result = run_study(make_study(people=people), LearningSettings(**QUICK), ALONE)
    assert any("cannot be separated" in text for text in result.metrics["warnings"])
    assert "cannot be separated" in result.output.metrics_file.read_text()


def test_sessions_of_a_person_share_a_fold(
    make_study: Any, plan_jobs: Any, person_class: Any
) -> None:
    people = [
        person_class(f"{g}{i}", g, "AB"[i % 2], 65.0 + i, "F", ("1", "2"))
        for g in ("AD", "PD")
        for i in range(3)
    ]
    study = make_study(people=people)
    planned = plan_jobs(study, LearningSettings(**QUICK), ALONE)
    for job in planned.jobs:
        trained = {scan.participant for scan in job.training}
        assert not trained & {scan.participant for scan in job.testing}
    assert len(planned.jobs[-1].training) == 12


def test_all_networks_are_planned(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=2)
    settings = LearningSettings(**(QUICK | {"network": "all"}))
    planned = plan_jobs(study, settings, ALONE)
    sites = sum(split.reason is None for split in planned.plan.sites["AD-v-PD"])
    assert len(planned.jobs) == 6 * (3 + sites)
    assert len({job.model_dir for job in planned.jobs}) == len(planned.jobs)


def test_wrong_network_ends_before_any_work(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=2)
    with pytest.raises(InputError, match="'resnet'"):
        plan_jobs(study, LearningSettings(**(QUICK | {"network": "resnet"})), ALONE)
    assert not (study.output_dir / "work").exists()


def test_options_reach_every_job(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=2)
    chosen = {"batch_size": 3, "learning_rate": 2e-4, "reference_site": "B"}
    chosen["strides"] = (1, 1, 2, 1)
    settings = LearningSettings(**(QUICK | chosen))
    planned = plan_jobs(study, settings, ALONE)
    for job in planned.jobs:
        trained_at = {scan.site for scan in job.training}
        assert (job.options.batch_size, job.options.learning_rate) == (3, 2e-4)
        assert job.options.strides == (1, 1, 2, 1)
        assert job.options.reference_site == ("B" if "B" in trained_at else None)


def test_reference_site_is_left_as_it_is(make_study: Any, plan_jobs: Any) -> None:
    """The others are brought to it; without it in training they are brought to their mean."""
    study = make_study(per_class=6)
    settings = LearningSettings(**(QUICK | {"reference_site": "B"}))
    planned = plan_jobs(study, settings, ALONE)
    final = fit_harmonisation(planned.jobs[-1], Processes())
    assert final is not None
    assert final.reference == "B"
    assert final.corrects("A")
    assert not final.corrects("B")
    (left,) = [job for job in planned.jobs if job.held_out_site == "B"]
    alone = fit_harmonisation(left, Processes())
    assert alone is not None
    assert alone.reference is None


def test_unknown_reference_site_names_the_known(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=2)
    settings = LearningSettings(**(QUICK | {"reference_site": "C"}))
    with pytest.raises(InputError, match="give one of 'A', 'B'"):
        plan_jobs(study, settings, ALONE)


def test_models_of_another_split_do_not_stay(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=4)
    settings = LearningSettings(**(QUICK | {"leave_site_out": False}))
    folder = study.output_dir / "models" / "AD-v-PD"
    kept, stale = ("fold-1", "final", "mine"), ("fold-3", "leave-site-A")
    for name in (*kept, *stale):
        (folder / name).mkdir(parents=True)
    remove_stale_models(plan_jobs(study, settings, ALONE).jobs)
    assert {path.name for path in folder.iterdir()} == set(kept)


def test_all_classes_at_once(make_study: Any, plan_jobs: Any) -> None:
    study = make_study(per_class=2, classes=("AD", "DLB", "PD"))
    settings = LearningSettings(**(QUICK | {"classes": "all"}))
    planned = plan_jobs(study, settings, ALONE)
    assert [task.title for task in planned.plan.tasks] == ["AD v. DLB v. PD"]


def test_hostile_site_is_left_out_and_never_a_path(
    make_study: Any, plan_jobs: Any, person_class: Any
) -> None:
    people = [
        person_class(f"{g}{i}", g, ("A", "../../<b>")[i % 2], 65.0 + i, "F")
        for g in ("AD", "PD")
        for i in range(4)
    ]
    study = make_study(people=people)
    planned = plan_jobs(study, LearningSettings(**QUICK), ALONE)
    left = {job.held_out_site: Path(job.model_dir) for job in planned.jobs if job.held_out_site}
    assert set(left) == {"A", "../../<b>"}
    for folder in left.values():
        assert folder.parent == study.output_dir / "models" / "AD-v-PD"
        assert folder.name.replace("-", "").isalnum()
