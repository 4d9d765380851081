"""Figures from a table of predictions: closed forms, negative controls, hostile text."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.learn.cohort.scan_rows import ScanRow
from bids_gevnet.learn.evaluate.confound_warnings import confound_warnings
from bids_gevnet.learn.evaluate.predictions_table import TaskResult, write_predictions
from bids_gevnet.learn.evaluate.scoring import evaluate_table, read_predictions
from bids_gevnet.nn.registry import networks, scan_networks

FEW = {"resamples": 200, "permutations": 99}


def rows_of(
    truth: Any, sites: Any, people: Any = None, labels: tuple[str, ...] = ("AD", "PD")
) -> tuple[ScanRow, ...]:
    names = people if people is not None else [f"{i:03d}" for i in range(len(truth))]
    return tuple(
        ScanRow(
            participant=name,
            session=str(i),
            scan=f"sub-{name}_ses-{i:03d}",
            label=labels[k],
            site=str(site),
            age=60.0 + i,
            sex="F",
            motion=None,
            covariates={},
            image=Path("image"),
            mask=Path("mask"),
        )
        for i, (k, site, name) in enumerate(zip(truth, sites, names, strict=True))
    )


def result(
    truth: Any,
    chances: Any,
    *,
    sites: Any = None,
    folds: Any = None,
    people: Any = None,
    labels: tuple[str, ...] = ("AD", "PD"),
    model: str = "ckn2+gevnet",
    scheme: str = "folds",
) -> TaskResult:
    """Held-out results; chances of two classes may be those of the second alone."""
    table = np.asarray(chances, dtype=float)
    if table.ndim == 1:
        table = np.column_stack([1 - table, table])
    n = len(table)
    return TaskResult(
        task="-v-".join("abcdef"[: len(labels)]),
        title=" v. ".join(labels),
        kind="network" if model in scan_networks() else "baseline",
        model=model,
        scheme=scheme,
        labels=labels,
        rows=rows_of(truth, sites if sites is not None else ["A"] * n, people, labels),
        folds=np.asarray(folds if folds is not None else np.ones(n), dtype=np.intp),
        outputs=table,
    )


@pytest.fixture
def evaluate(tmp_path: Path) -> Any:
    def run(*results: TaskResult, **options: Any) -> dict[str, Any]:
        path = tmp_path / "group_predictions.tsv"
        write_predictions(path, results)
        return evaluate_table(path, **(FEW | options))

    return run


def pooled(content: dict[str, Any], model: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = content["tasks"][0]["models"][model]["schemes"]["folds"]["pooled"]
    return found


def test_four_scans_by_hand(evaluate: Any) -> None:
    found = pooled(evaluate(result([0, 0, 0, 1], [0.1, 0.4, 0.7, 0.6])))
    assert found["confusion"] == [[2, 1], [0, 1]]
    assert found["accuracy"]["value"] == 0.75
    assert found["balanced_accuracy"]["value"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["roc_auc"]["value"] == pytest.approx(2 / 3)
    assert found["average_precision"]["value"] == pytest.approx(1 / 2)
    assert found["brier"]["value"] == pytest.approx((0.01 + 0.16 + 0.49 + 0.16) / 4)
    loss = -np.log([0.9, 0.6, 0.3, 0.6]).mean()
    assert found["log_loss"]["value"] == pytest.approx(loss)
    assert found["ece"]["value"] == pytest.approx((0.1 + 0.4 + 0.7 + 0.4) / 4)
    assert [entry["value"] for entry in found["recall"]] == pytest.approx([2 / 3, 1])


def test_reliability_bins_by_hand(evaluate: Any) -> None:
    content = evaluate(result([0, 1, 1, 1], [0.22, 0.28, 1.0, 0.95]))
    calibration = content["tasks"][0]["models"][0]["schemes"]["folds"]["calibration"]
    assert calibration["of"] == "PD"
    found = [
        (b["low"], b["n"], b["predicted"], b["observed"]["value"]) for b in calibration["bins"]
    ]
    assert found == [(0.2, 2, pytest.approx(0.25), 0.5), (0.9, 2, pytest.approx(0.975), 1.0)]
    assert calibration["ece"] == pytest.approx((2 * 0.25 + 2 * 0.025) / 4)


def test_curves_of_folds_their_mean_and_band(evaluate: Any) -> None:
    """A perfect and a reversed fold: their mean is the diagonal's area, the band is wide."""
    content = evaluate(
        result([0, 0, 1, 1] * 2, [0.1, 0.2, 0.8, 0.9, 0.9, 0.8, 0.2, 0.1], folds=[1] * 4 + [2] * 4)
    )
    (roc,) = content["tasks"][0]["models"][0]["schemes"]["folds"]["roc"]
    assert [fold["auc"] for fold in roc["folds"]] == [1.0, 0.0]
    assert len(roc["grid"]) == len(roc["mean"]) == len(roc["low"]) == len(roc["high"]) == 101
    assert roc["mean"][50] == pytest.approx(0.5)
    assert (roc["low"][50], roc["high"][50]) == pytest.approx((0, 1))
    assert (roc["mean"][0], roc["mean"][-1]) == (0, 1)
    (pr,) = content["tasks"][0]["models"][0]["schemes"]["folds"]["pr"]
    assert pr["prevalence"] == 0.5
    assert [fold["average_precision"] for fold in pr["folds"]] == pytest.approx([1, 5 / 12])


def test_predictions_without_effect_are_at_chance(evaluate: Any) -> None:
    """Intervals contain chance, about as often as they claim to."""
    rng = np.random.default_rng(0)
    outside = small = 0
    for run in range(40):
        found = evaluate(result(np.arange(40) % 2, rng.uniform(size=40)), seed=run)
        own = pooled(found)
        for name in ("balanced_accuracy", "roc_auc"):
            outside += not own[name]["low"] <= 0.5 <= own[name]["high"]
        test = found["tasks"][0]["models"][0]["schemes"]["folds"]["permutation"]
        small += test["balanced_accuracy"]["p"] <= 0.05
    assert outside <= 10  # of 80, 4 expected
    assert small <= 7  # of 40, 2 expected


def test_pure_site_effect_is_warned_about(evaluate: Any) -> None:
    """Groups live on different scanners; network and site baseline say the same."""
    rng = np.random.default_rng(1)
    sites = np.repeat(["A", "B"], 30)
    truth = np.r_[rng.permutation([0] * 26 + [1] * 4), rng.permutation([1] * 26 + [0] * 4)]
    chance = np.where(sites == "B", 0.8, 0.2)
    content = evaluate(
        result(truth, chance + rng.uniform(-0.1, 0.1, 60), sites=sites),
        result(truth, chance, sites=sites, model="site"),
        result(truth, rng.uniform(0.4, 0.6, 60), sites=sites, model="motion"),
    )
    texts = confound_warnings(content)
    assert len(texts) == 2
    assert "The site alone tells the groups apart" in texts[0]
    assert texts[1].startswith("Site alone does as well as CKN2 + GEVNet")
    assert "(0.87 against" in texts[1]
    assert "the scanner instead of the groups" in texts[1]
    test = content["tasks"][0]["models"][0]["schemes"]["folds"]["permutation"]
    assert test["balanced_accuracy"]["p"] > 0.9
    (compared,) = [c for c in content["tasks"][0]["comparisons"] if c["baseline"] == "site"]
    assert compared["confound"]
    difference = compared["balanced_accuracy_difference"]
    assert difference["low"] <= 0 <= difference["high"]


def test_real_effect_is_not_warned_about(evaluate: Any) -> None:
    truth, sites = np.arange(60) % 2, np.repeat(["A", "B"], 30)
    content = evaluate(
        result(truth, 0.2 + 0.6 * truth, sites=sites),
        result(truth, np.where(sites == "B", 0.51, 0.49), sites=sites, model="site"),
    )
    assert confound_warnings(content) == []
    compared = content["tasks"][0]["comparisons"][0]["balanced_accuracy_difference"]
    assert compared["value"] == 0.5
    assert compared["low"] > 0.2


def test_a_fact_of_several_tasks_is_said_once(evaluate: Any) -> None:
    truth, sites = np.arange(40) % 2, np.array(["A", "B"])[np.arange(40) % 2]
    both = []
    for labels in (("AD", "PD"), ("AD", "DLB")):
        for model in ("ckn2+gevnet", "site"):
            own = result(truth, 0.1 + 0.8 * truth, sites=sites, labels=labels, model=model)
            both.append(replace(own, task="-v-".join(labels)))
    texts = confound_warnings(evaluate(*both))
    assert len(texts) == 2
    assert all(text.count("AD v. ") == 2 for text in texts)


def test_association_of_site_and_diagnosis_is_said_where_the_site_alone_does_not_show_it(
    evaluate: Any,
) -> None:
    truth = np.arange(40) % 2
    sites = np.where(np.arange(40) % 8 < 6, np.array(["A", "B"])[truth], "A")
    content = evaluate(result(truth, np.full(40, 0.4), sites=sites))
    assert 0.6 < content["site_association"] < 0.9
    (text,) = confound_warnings(content)
    assert text.startswith("Site and diagnosis are associated (Cramér's V 0.")


def test_network_at_chance_is_left_to_the_headline(evaluate: Any) -> None:
    truth = np.arange(20) % 2
    chance = np.tile([0.4, 0.4, 0.6, 0.6], 5)
    content = evaluate(
        result(truth, chance),
        *(result(truth, chance, model=name) for name in ("site", "motion", "age_sex")),
    )
    assert confound_warnings(content) == []
    sentence = content["tasks"][0]["headline"]["sentence"]
    assert "no model of the scans" in sentence


def test_fold_with_one_class_has_no_area_and_nothing_breaks(evaluate: Any) -> None:
    content = evaluate(
        result([0, 0, 0, 1, 1], [0.1, 0.3, 0.2, 0.9, 0.8], folds=[1, 1, 2, 2, 2], sites="AABBB")
    )
    task = content["tasks"][0]["models"][0]["schemes"]["folds"]
    first = task["folds"][0]
    assert first["accuracy"]["value"] == 1
    for name in ("balanced_accuracy", "roc_auc", "average_precision"):
        assert first[name] == {"value": None, "low": None, "high": None, "method": "none"}
    assert first["recall"][1]["value"] is None
    assert task["fold_summary"]["roc_auc"] == {"mean": 1.0, "sd": None, "folds": 1}
    assert [fold["fold"] for fold in task["roc"][0]["folds"]] == [2]
    assert task["sites"][0]["roc_auc"]["value"] is None
    json.dumps(content, allow_nan=False)


def test_only_one_class_in_all_folds(evaluate: Any) -> None:
    content = evaluate(result([0, 0, 0], [0.1, 0.3, 0.2]))
    task = content["tasks"][0]["models"][0]["schemes"]["folds"]
    assert task["roc"][0]["pooled"] is None
    assert task["roc"][0]["mean"] is None
    assert task["pr"][0]["pooled"] is None
    assert confound_warnings(content) == []
    json.dumps(content, allow_nan=False)


def test_sessions_do_not_narrow_intervals(evaluate: Any) -> None:
    """Five identical scans of everybody say as much as one."""
    truth, chance = np.arange(20) % 2, np.linspace(0.2, 0.9, 20)
    once = pooled(evaluate(result(truth, chance)))
    people = np.repeat([f"{i:03d}" for i in range(20)], 5)
    often = pooled(evaluate(result(np.repeat(truth, 5), np.repeat(chance, 5), people=people)))
    assert (often["n_scans"], often["n_participants"]) == (100, 20)
    for name in ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "brier", "ece"):
        for part in ("value", "low", "high"):
            assert often[name][part] == pytest.approx(once[name][part], abs=1e-9), name


def test_three_classes(evaluate: Any) -> None:
    labels = ("AD", "DLB", "PD")
    truth = np.arange(30) % 3
    chances = np.eye(3)[truth] * 0.7 + 0.1
    chances[0] = [0.1, 0.8, 0.1]
    content = evaluate(result(truth, chances, labels=labels, sites=np.repeat(["A", "B"], 15)))
    task = content["tasks"][0]
    assert (task["title"], task["positive"]) == ("AD v. DLB v. PD", None)
    assert task["chance"] == pytest.approx(1 / 3)
    found = pooled(content)
    assert found["balanced_accuracy"]["value"] == pytest.approx((0.9 + 1 + 1) / 3)
    assert found["brier"]["value"] == pytest.approx((29 * 0.06 + (0.81 + 0.64 + 0.01)) / 30)
    assert found["roc_auc"]["method"] == found["average_precision"]["method"] == "bootstrap"
    assert found["roc_auc"]["low"] < found["roc_auc"]["value"] < 1
    folds = task["models"][0]["schemes"]["folds"]
    assert [curve["positive"] for curve in folds["roc"]] == list(labels)
    assert folds["calibration"]["of"] == "most probable class"
    assert folds["permutation"]["balanced_accuracy"]["p"] == 0.01


def test_hostile_labels_and_sites_stay_text(evaluate: Any, tmp_path: Path) -> None:
    labels = ('"NA', "<script>alert(1)</script>")
    sites = ["n/a", "NULL", "=cmd()", "'; --"] * 2
    content = evaluate(result([0, 1] * 4, [0.2, 0.9] * 4, labels=labels, sites=sites))
    task = content["tasks"][0]
    assert task["labels"] == list(labels)
    assert {entry["site"] for entry in task["cohort"]} == set(sites)
    assert sum(entry["scans"] for entry in task["cohort"]) == 8
    table = read_predictions(tmp_path / "group_predictions.tsv")
    assert set(table["label"]) == set(labels)
    assert pooled(content)["accuracy"]["value"] == 1


@settings(deadline=None, max_examples=50)
@given(st.sets(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=4, max_size=4))
def test_any_text_comes_back_from_the_table(words: set[str]) -> None:
    marked = (word.strip() + mark for word, mark in zip(words, "abcd", strict=True))
    first, second, *sites = sorted(marked)
    own = result([0, 1] * 2, [0.2, 0.9] * 2, labels=(first, second), sites=sites * 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.tsv"
        write_predictions(path, [own])
        table = read_predictions(path)
    assert list(table["label"]) == [first, second] * 2
    assert list(table["site"]) == sites * 2
    np.testing.assert_array_equal(table[f"prob_{second}"], [0.2, 0.9] * 2)


def test_the_table_keeps_every_digit(tmp_path: Path) -> None:
    chance = np.random.default_rng(0).uniform(size=50) ** 20
    write_predictions(tmp_path / "t.tsv", [result([0, 1] * 25, chance)])
    table = read_predictions(tmp_path / "t.tsv")
    np.testing.assert_array_equal(table["prob_PD"].to_numpy(), chance)


def test_order_of_rows_and_further_columns_do_not_matter(evaluate: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    content = evaluate(
        result(np.arange(30) % 2, rng.uniform(size=30), folds=np.arange(30) % 5 + 1)
    )
    table = read_predictions(tmp_path / "group_predictions.tsv")
    mixed = table.sample(frac=1, random_state=0).assign(remark="seen")
    assert evaluate_table(mixed, **FEW) == content


def test_leave_site_out_names_the_site(evaluate: Any) -> None:
    truth, sites = np.arange(12) % 2, np.repeat(["A", "B", "C"], 4)
    number = np.repeat([1, 2, 3], 4)
    content = evaluate(
        result(truth, 0.2 + 0.6 * truth, sites=sites),
        result(truth, 0.3 + 0.4 * truth, sites=sites, folds=number, scheme="leave-site-out"),
    )
    schemes = content["tasks"][0]["models"][0]["schemes"]
    assert [fold["site"] for fold in schemes["leave-site-out"]["folds"]] == ["A", "B", "C"]
    assert [fold["site"] for fold in schemes["folds"]["folds"]] == [None]


def test_ablation_has_the_papers_figures_beside_ours(evaluate: Any) -> None:
    truth = np.arange(10) % 2
    several = [result(truth, 0.2 + 0.6 * truth, model=name) for name in scan_networks()]
    assert evaluate(several[0])["ablation"] is None
    table = evaluate(*reversed(several))["ablation"]
    assert [row["network"] for row in table["rows"]] == list(scan_networks())
    assert table["rows"][-1]["paper"] == {
        "AD v. DLB": 0.9286,
        "AD v. PD": 0.9836,
        "DLB v. PD": 0.9827,
    }
    assert table["rows"][-1]["ours"]["AD v. PD"]["mean"] == 1.0
    assert table["paper"]["cohort"] == "the paper's patients"
    assert all(networks()[name].paper_accuracies for name in scan_networks())


def test_same_seed_same_figures(evaluate: Any) -> None:
    own = result(np.arange(20) % 2, np.linspace(0, 1, 20))
    assert evaluate(own, seed=5) == evaluate(own, seed=5)
    assert evaluate(own, seed=5) != evaluate(own, seed=6)


def test_a_table_in_memory_is_as_good(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    write_predictions(path, [result([0, 1, 0, 1], [0.1, 0.6, 0.7, 0.8])])
    table = read_predictions(path)
    assert isinstance(table, pd.DataFrame)
    assert evaluate_table(table, **FEW) == evaluate_table(path, **FEW)
