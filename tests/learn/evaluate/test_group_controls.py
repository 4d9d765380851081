"""Negative controls through the whole group level: no effect at all, and a pure site effect."""

from typing import Any

import pytest

from bids_gevnet.learn.evaluate.scoring import evaluate_table
from bids_gevnet.nn.registry import scan_networks
from bids_gevnet.settings import ExecutionSettings, LearningSettings

pytestmark = pytest.mark.slow


SETTINGS = LearningSettings(
    folds=3,
    epochs=6,
    samples_per_class=12,
    network="ckn2",
    devices="cpu:1",
    learning_rate=1e-2,
)
ALONE = ExecutionSettings(nprocs=1)


def figures(result: Any, model: str) -> dict[str, Any]:
    (task,) = result.metrics["tasks"]
    (own,) = [entry for entry in task["models"] if entry["model"] == model]
    found: dict[str, Any] = own["schemes"]["folds"]
    return found


def test_without_an_effect_everything_is_at_chance(make_study: Any, run_study: Any) -> None:
    result = run_study(make_study(per_class=9, effect=0.0), SETTINGS, ALONE)
    for model in result.metrics["tasks"][0]["models"]:
        if model["model"].startswith("voxels"):
            continue  # of six models one interval may miss chance; the headline allows for that
        for scheme in model["schemes"].values():
            for name in ("balanced_accuracy", "roc_auc"):
                own = scheme["pooled"][name]
                assert own["low"] <= 0.5, (model["model"], name)
                # Baselines may fall below chance: who is held out is missing from training.
                assert own["high"] >= 0.5 or model["kind"] == "baseline"
    assert figures(result, "ckn2")["permutation"]["balanced_accuracy"]["p"] > 0.05
    found = result.metrics["tasks"][0]["headline"]
    assert not found["told_apart"]
    assert found["sentence"].startswith("AD and PD could not be told apart")


def test_a_pure_site_effect_is_found_out(
    make_study: Any, run_study: Any, person_class: Any
) -> None:
    """One scanner per group and brains that do not differ: the site explains all there is."""
    people = [
        person_class(f"{g}{i}", g, site, 60.0 + i, "FM"[i % 2])
        for g, site in (("AD", "A"), ("PD", "B"))
        for i in range(6)
    ]
    result = run_study(make_study(people=people, effect=0.0), SETTINGS, ALONE)
    network, site = (figures(result, name)["pooled"] for name in ("ckn2", "site"))
    assert network["balanced_accuracy"]["low"] > 0.5
    assert site["balanced_accuracy"]["value"] >= network["balanced_accuracy"]["low"]
    texts = "\n".join(result.metrics["warnings"])
    assert "cannot be separated" in texts
    assert "The site alone tells the groups apart" in texts
    sentence = result.metrics["tasks"][0]["headline"]["sentence"]
    assert "every site has only one of the groups" in sentence
    assert "the scanner instead of the groups" in texts
    assert not figures(result, "ckn2")["permutation"]["possible"]
    assert not any(entry["run"] for entry in result.metrics["leave_site_out"])


def test_a_real_effect_is_found_and_not_blamed_on_the_site(
    make_study: Any, run_study: Any
) -> None:
    result = run_study(make_study(per_class=8, effect=0.8), SETTINGS, ALONE)
    network = figures(result, "ckn2")
    assert network["pooled"]["balanced_accuracy"]["low"] > 0.5
    assert network["permutation"]["balanced_accuracy"]["p"] < 0.01
    assert not any("alone" in text or "chance" in text for text in result.metrics["warnings"])
    found = result.metrics["tasks"][0]["headline"]
    assert found["told_apart"]
    assert found["confound"] is None


def test_all_six_networks_stand_beside_the_papers(make_study: Any, run_study: Any) -> None:
    study = make_study(per_class=3)
    settings = LearningSettings(
        folds=2,
        epochs=1,
        samples_per_class=3,
        network="all",
        devices="cpu:1",
        leave_site_out=False,
    )
    result = run_study(study, settings, ALONE)
    table = result.metrics["ablation"]
    assert [row["network"] for row in table["rows"]] == list(scan_networks())
    for row in table["rows"]:
        own = figures(result, row["network"])["fold_summary"]["accuracy"]
        assert row["ours"] == {"AD v. PD": own | {"task": "AD-v-PD"}}
        assert row["paper"]["AD v. PD"] > 0.7
    assert {path.parent.name for path in result.collected.models} == set(scan_networks())
    again = evaluate_table(result.output.predictions_table, seed=0)
    assert again["ablation"] == table
