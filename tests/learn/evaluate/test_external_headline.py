"""What the first sentence of an external validation may claim."""

from math import comb

import numpy as np
import pandas as pd
import pytest

from bids_gevnet.learn.evaluate.scoring import evaluate_table


def table(labels: list[str], chances: list[float], sites: list[str]) -> pd.DataFrame:
    people = [f"sub-{i:02d}" for i in range(len(labels))]
    return pd.DataFrame(
        {
            "task": "AD-v-PD",
            "kind": "network",
            "model": "ckn2",
            "scheme": "external",
            "fold": 1,
            "scan": people,
            "participant_id": people,
            "site": sites,
            "label": labels,
            "prob_AD": chances,
            "prob_PD": [1 - chance for chance in chances],
        }
    )


def evaluate(labels: list[str], chances: list[float], sites: list[str] | None = None) -> dict:
    rows = table(labels, chances, sites or ["A"] * len(labels))
    (task,) = evaluate_table(rows, resamples=50, permutations=4000)["tasks"]
    return task


def test_a_model_that_holds_is_said_to_with_its_figure():
    task = evaluate(["AD"] * 12 + ["PD"] * 12, [0.9] * 10 + [0.2] * 2 + [0.1] * 11 + [0.8])
    score = task["models"][0]["schemes"]["external"]["pooled"]["balanced_accuracy"]
    assert score["value"] == pytest.approx((10 / 12 + 11 / 12) / 2)
    figure = f"{score['value']:.2f} ({score['low']:.2f} to {score['high']:.2f})"
    assert task["headline"]["sentence"] == (
        f"In 24 people it has never seen, the model tells AD from PD: balanced accuracy {figure}."
    )
    assert task["headline"]["level"] == "good"
    assert "12 AD, 12 PD" in task["headline"]["numbers"]


def test_the_p_value_is_that_of_all_exchanges():
    """Four and four all right: one exchange of the labels in C(8, 4) does as well."""
    task = evaluate(["AD"] * 4 + ["PD"] * 4, [0.9] * 4 + [0.1] * 4)
    p = task["models"][0]["schemes"]["external"]["permutation"]["balanced_accuracy"]["p"]
    assert p == pytest.approx(1 / comb(8, 4), abs=0.006)
    assert task["headline"]["best_p"] == p


def test_guessing_is_not_called_a_result():
    rng = np.random.default_rng(1)
    task = evaluate(["AD", "PD"] * 12, rng.uniform(size=24).tolist())
    assert task["headline"]["level"] == "note"
    assert "not distinguishable from chance" in task["headline"]["sentence"]
    constant = evaluate(["AD", "PD"] * 12, [0.7] * 24)
    assert "always answers AD" in constant["headline"]["sentence"]


def test_sites_with_one_group_each_are_said():
    task = evaluate(["AD"] * 6 + ["PD"] * 6, [0.9] * 6 + [0.1] * 6, ["A"] * 6 + ["B"] * 6)
    assert task["headline"]["level"] == "warning"
    assert "a difference between scanners looks the same" in task["headline"]["sentence"]
