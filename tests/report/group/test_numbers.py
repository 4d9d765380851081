"""The group report of a number that is predicted, from tables alone."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bids_gevnet.learn.evaluate.scoring import evaluate_table
from bids_gevnet.report.group.page import build_group_report
from bids_gevnet.report.group.study_files import name_thirds, read_study

AGES = np.round(np.linspace(50, 85, 18), 1)
PEOPLE = [f"sub-{i:02d}" for i in range(18)]
SITES = ["A", "B"] * 9


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two networks and a simple model, on three folds."""
    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {
                "participant_id": PEOPLE,
                "session_id": "n/a",
                "scan": PEOPLE,
                "task": "age",
                "kind": "network" if size > 3 else "baseline",
                "model": model,
                "scheme": "folds",
                "fold": [i % 3 + 1 for i in range(18)],
                "label": [repr(float(age)) for age in AGES],
                "predicted": "",
                "site": SITES,
                "value_age": AGES + rng.normal(0, size, 18),
            }
        )
        for model, size in (("ckn2", 4), ("ckn2+gevnet", 12), ("rish", 2))
    ]
    table = pd.concat(parts)
    content = evaluate_table(table, resamples=100, permutations=200, unit="year")
    about = {"target": "age", "unit": "year", "training": [], "leave_site_out": [], "left_out": []}
    about["remarks"] = ["age has 18 different numbers."]
    (tmp_path / "group_metrics.json").write_text(json.dumps(content | about | {"warnings": []}))
    table.to_csv(tmp_path / "group_predictions.tsv", sep="\t", index=False)
    columns = {"participant_id": PEOPLE, "scan": PEOPLE, "age": AGES, "site": SITES, "sex": "F"}
    pd.DataFrame(columns).to_csv(tmp_path / "group_cohort.tsv", sep="\t", index=False)
    return tmp_path


def test_thirds_hold_everybody_and_sort_as_their_numbers() -> None:
    values = [float(v) for v in np.random.default_rng(1).permutation(AGES)]
    names = name_thirds([*values, None])
    assert names[-1] == "no number"
    by_name = {n: [v for v, m in zip(values, names, strict=False) if m == n] for n in set(names)}
    ordered = [by_name[name] for name in sorted(by_name) if by_name[name]]
    assert [len(third) for third in ordered] == [6, 6, 6]
    assert max(ordered[0]) < min(ordered[1]) <= max(ordered[1]) < min(ordered[2])


def test_predictions_are_read_with_all_their_digits(study: Path) -> None:
    files = read_study(study)
    assert files.is_regression
    assert [scan.value for scan in files.scans] == AGES.tolist()
    table = pd.read_csv(study / "group_predictions.tsv", sep="\t")
    (first,) = [p for p in files.predictions if p.network == "ckn2"]
    expected = table[table["model"] == "ckn2"]["value_age"]
    np.testing.assert_array_equal(first.predicted, expected)
    np.testing.assert_array_equal(first.truth, AGES)


def test_the_page_speaks_of_the_number(study: Path) -> None:
    page = build_group_report(study).read_text()
    assert "✓ Predicted" in page
    assert "Told apart" not in page
    assert "Age can be predicted from the scans" in page
    assert "age has 18 different numbers." in page
    assert "By age, in thirds of the cohort" in page
    assert "Predicted against true age of every held-out scan" in page
    assert "Mean absolute error (year) by fold" in page
    for word in ("ROC", "Balanced accuracy", "Calibration", "diagnosis differ"):
        assert word not in page.split('id="methods"')[0], word


def test_networks_are_compared_by_how_far_they_are_off(study: Path) -> None:
    (task,) = json.loads((study / "group_metrics.json").read_text())["tasks"]
    (pair,) = task["network_comparisons"]
    errors = {m["model"]: m["schemes"]["folds"]["pooled"]["mae"]["value"] for m in task["models"]}
    gap = errors[pair["second"]] - errors[pair["first"]]
    assert pair["error_difference"]["value"] == pytest.approx(gap)
    assert 0 < pair["p_corrected"] < 0.05
    page = build_group_report(study).read_text()
    section = page.split('id="ablation"')[1].split("</section>")[0]
    assert "how much smaller the mean absolute error of the first is" in section
    assert "The paper's patients" not in section


def test_a_damaged_file_of_metrics_leaves_a_page(study: Path) -> None:
    (study / "group_metrics.json").write_text('{"tasks": [{"kind": "regression"}]}')
    assert build_group_report(study).is_file()
