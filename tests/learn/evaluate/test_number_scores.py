"""Figures, tests and sentences of a number that is predicted."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr
from sklearn import metrics
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from bids_gevnet.harmonisation.association import correlation_ratio
from bids_gevnet.learn.evaluate.confound_warnings import confound_warnings
from bids_gevnet.learn.evaluate.number_scores import (
    HeldOutNumbers,
    constant_number,
    correlations,
    fisher,
    measure_numbers,
)
from bids_gevnet.learn.evaluate.permutation import JointTest, swap_gains
from bids_gevnet.learn.evaluate.scoring import evaluate_table
from bids_gevnet.learn.evaluate.yardsticks import OF_NUMBERS


def held_out(truth: Any, predicted: Any, people: Any = None, folds: Any = None) -> HeldOutNumbers:
    names = np.array([f"p{i}" for i in range(len(truth))])
    return HeldOutNumbers(
        labels=("age",),
        truth=np.asarray(truth, float),
        predicted=np.asarray(predicted, float),
        folds=np.asarray(folds if folds is not None else np.ones(len(truth)), dtype=np.intp),
        scans=names,
        people=names if people is None else np.asarray(people),
        sites=np.array(["A"] * len(truth)),
    )


def table(truth: Any, models: dict[str, Any], sites: Any = None, scheme: str = "folds") -> Any:
    """Rows of group_predictions.tsv: numbers by name of the model."""
    names = [f"sub-{i:02d}" for i in range(len(truth))]
    parts = [
        pd.DataFrame(
            {
                "task": "age",
                "kind": "network" if model == "ckn2" else "baseline",
                "model": model,
                "scheme": scheme,
                "fold": [i % 4 + 1 for i in range(len(truth))],
                "scan": names,
                "participant_id": names,
                "site": sites if sites is not None else ["A"] * len(truth),
                "label": [repr(float(value)) for value in truth],
                "value_age": np.asarray(predicted, float),
            }
        )
        for model, predicted in models.items()
    ]
    return pd.concat(parts, ignore_index=True)


def evaluate(*arguments: Any, **options: Any) -> dict[str, Any]:
    content = evaluate_table(
        table(*arguments, **options), resamples=200, permutations=500, unit="year"
    )
    (task,) = content["tasks"]
    return task | {"content": content}


def test_figures_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(50, 90, 40)
    predicted = 0.5 * truth + rng.normal(35, 6, 40)
    own = held_out(truth, predicted)
    figures = measure_numbers(own, OF_NUMBERS.draw(own, count=300, seed=0))
    expected = {
        "correlation": pearsonr(truth, predicted).statistic,
        "r2": metrics.r2_score(truth, predicted),
        "mae": metrics.mean_absolute_error(truth, predicted),
        "rmse": metrics.root_mean_squared_error(truth, predicted),
        "slope": np.polyfit(truth, predicted, 1)[0],
    }
    for name, value in expected.items():
        assert figures[name]["value"] == pytest.approx(value), name
        assert figures[name]["low"] < value < figures[name]["high"]
    interval = pearsonr(truth, predicted).confidence_interval(0.95)
    assert figures["correlation"]["low"] == pytest.approx(interval.low)
    assert figures["correlation"]["high"] == pytest.approx(interval.high)


def test_intervals_count_people_not_scans() -> None:
    rng = np.random.default_rng(1)
    truth, noise = rng.uniform(50, 90, 20), rng.normal(0, 8, 20)
    once = held_out(truth, truth + noise)
    often = held_out(np.tile(truth, 5), np.tile(truth + noise, 5), np.tile(once.people, 5))
    widths = []
    for own in (once, often):
        figures = measure_numbers(own, OF_NUMBERS.draw(own, count=500, seed=0))
        widths.append([figures[n]["high"] - figures[n]["low"] for n in ("correlation", "mae")])
    np.testing.assert_allclose(widths[0], widths[1], rtol=1e-6)


def test_too_few_or_equal_numbers_have_no_interval() -> None:
    assert fisher(0.9, 3)["low"] is None
    same = held_out([70, 70, 70], [69, 70, 71])
    figures = measure_numbers(same, OF_NUMBERS.draw(same, count=20, seed=0))
    assert figures["correlation"]["value"] is None
    assert figures["r2"]["value"] is None
    assert figures["mae"]["value"] == pytest.approx(2 / 3)


def test_correlations_of_many_at_once() -> None:
    rng = np.random.default_rng(2)
    numbers, predicted = rng.normal(size=(3, 15)), rng.normal(size=(2, 15))
    predicted[1] = 4.0
    found = correlations(numbers, predicted)
    for k in range(3):
        assert found[0, k] == pytest.approx(np.corrcoef(predicted[0], numbers[k])[0, 1])
        assert found[1, k] == 0


def test_noise_is_seldom_called_an_association() -> None:
    """Ridge on noise, cross-validated, the best of two: at most one study in twenty."""
    found, studies = 0, 150
    for study in range(studies):
        rng = np.random.default_rng(study)
        truth = rng.normal(size=24)
        models = []
        for width in (5, 60):
            features, predicted = rng.normal(size=(24, width)), np.empty(24)
            for train, test in KFold(4, shuffle=True, random_state=study).split(features):
                ridge = Ridge(alpha=width).fit(features[train], truth[train])
                predicted[test] = ridge.predict(features[test])
            models.append(predicted)
        people = [str(i) for i in range(24)]
        test = JointTest(
            truth, np.stack(models), people, ["A", "B"] * 12, classes=None, count=200, seed=study
        )
        assert test.p.min() > 0
        found += test.p.min() < 0.05
    # 5 % of 150 is 7.5; more than 13 would happen to an exact test once in forty.
    assert found <= 13


def test_swapping_models_knows_which_is_closer() -> None:
    rng = np.random.default_rng(3)
    errors = np.abs(rng.normal(0, 5, 30))
    people = [str(i) for i in range(30)]
    better = swap_gains((errors * 0.5)[None], people, count=500, seed=0)[0][0]
    shuffled = swap_gains(rng.normal(size=30)[None], people, count=500, seed=0)[0][0]
    assert 0 < better < 0.01
    assert shuffled > 0.05


def test_a_constant_predictor_is_called_that() -> None:
    truth = [50.0, 60, 70, 80]
    assert constant_number(held_out(truth, [65] * 4)) == "gives everybody the same number"
    nearly = [65.0, 65.1, 64.9, 65.0]
    assert constant_number(held_out(truth, nearly)) == "gives everybody nearly the same number"
    assert constant_number(held_out(truth, [55, 60, 65, 70])) is None


AGES = np.linspace(50, 85, 24)


def noisy(size: float, seed: int) -> np.ndarray:
    return AGES + np.random.default_rng(seed).normal(0, size, 24)


def test_the_first_sentence_names_what_predicts_and_how_far_off() -> None:
    task = evaluate(AGES, {"ckn2": noisy(12, 0), "rish": noisy(2, 1), "motion": noisy(0, 2) * 0})
    found = task["headline"]
    assert found["level"] == "good"
    error = np.abs(noisy(2, 1) - AGES).mean()
    assert found["sentence"] == (
        "Age can be predicted from the scans, best by a few numbers per scan (Mean RISH "
        f"features), off by {error:.3g} years on average; the network does worse."
    )
    assert "minus that of CKN2" in found["numbers"]
    assert "24 participants, age 50 to 85 years" in found["numbers"]
    gap = found["difference"]
    expected = error - np.abs(noisy(12, 0) - AGES).mean()
    assert gap["value"] == pytest.approx(expected)
    assert gap["low"] < expected < gap["high"] < 0
    (beside,) = [entry for entry in task["comparisons"] if entry["baseline"] == "rish"]
    assert beside["error_difference"]["value"] == pytest.approx(expected)


def test_noise_is_not_a_prediction() -> None:
    rng = np.random.default_rng(5)
    task = evaluate(AGES, {"ckn2": rng.uniform(50, 85, 24), "rish": rng.uniform(50, 85, 24)})
    assert task["headline"]["level"] == "note"
    assert task["headline"]["sentence"] == (
        "Age could not be predicted from the scans: no model of the scans, network or simpler, "
        "was distinguishable from chance."
    )


def test_a_network_that_learned_nothing_is_said_to() -> None:
    task = evaluate(AGES, {"ckn2": np.full(24, 67.0), "rish": noisy(2, 1)})
    assert "the network has learned nothing" in task["headline"]["sentence"]
    assert "it gives everybody the same number" in task["headline"]["numbers"]


def test_confounds_come_first_where_they_win() -> None:
    task = evaluate(AGES, {"ckn2": noisy(3, 0), "rish": noisy(3, 1), "motion": noisy(3, 2)})
    found = task["headline"]
    assert found["level"] == "warning"
    assert found["sentence"].startswith("Careful: head motion alone tells age, and the scans are")
    assert found["sentence"].endswith("may be about head motion and not about age.")
    texts = confound_warnings(task["content"])
    assert any("may have learned head motion instead of age" in text for text in texts)


def test_age_by_site_is_found_out() -> None:
    """Old people at one scanner: what knows the site and nothing else predicts within none."""
    sites = ["A"] * 12 + ["B"] * 12
    by_site = np.where(np.arange(24) < 12, 58.0, 77.0)
    blind = by_site + np.random.default_rng(1).normal(0, 1, 24)
    task = evaluate(AGES, {"ckn2": blind, "rish": blind[::-1], "site": by_site}, sites)
    assert task["headline"]["sentence"] == (
        "Careful: the scanner alone tells age; no difference in the scans was found beyond that."
    )
    assert task["content"]["site_association"] == pytest.approx(
        correlation_ratio(sites, AGES.tolist())
    )
    assert any("site alone predicts age" in text for text in confound_warnings(task["content"]))


def test_an_external_validation_speaks_of_the_number() -> None:
    task = evaluate(AGES, {"ckn2": noisy(4, 0)}, scheme="external")
    figure = task["models"][0]["schemes"]["external"]["pooled"]["correlation"]
    error = np.abs(noisy(4, 0) - AGES).mean()
    assert task["headline"]["sentence"] == (
        "In 24 people it has never seen, the model predicts age: correlation "
        f"{figure['value']:.2f} ({figure['low']:.2f} to {figure['high']:.2f}), off by "
        f"{error:.3g} years on average."
    )


def test_correlation_ratio_of_unrelated_sites_is_near_zero() -> None:
    rng = np.random.default_rng(0)
    sites = list("ABCD") * 10
    found = [correlation_ratio(sites, rng.normal(size=40).tolist()) for _ in range(100)]
    assert np.mean(np.square(found)) < 0.06  # eta² alone would be 3 / 39 = 0.08
