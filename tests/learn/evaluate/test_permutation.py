"""Permutation test: exact under the null, strong under signal, blind to a pure site effect."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from bids_gevnet.learn.evaluate.permutation import _draw, _statistics, _strata, permutation_test


def chances(score: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-score))
    return np.column_stack([1 - p, p])


def names(n: int) -> list[str]:
    return [f"p{i}" for i in range(n)]


def test_p_is_uniform_under_the_null() -> None:
    rng = np.random.default_rng(0)
    truth, sites = np.arange(40) % 2, ["AB"[i % 4 // 2] for i in range(40)]
    found = [
        permutation_test(
            truth, chances(rng.normal(size=40)), names(40), sites, count=199, seed=run
        )
        for run in range(400)
    ]
    p = np.array([test["roc_auc"]["p"] for test in found])
    for level in (0.05, 0.2, 0.5):
        # Three standard errors of a share of 400.
        assert (p <= level).mean() == pytest.approx(level, abs=3 * np.sqrt(level / 400))
    discrete = np.array([test["balanced_accuracy"]["p"] for test in found])
    assert (discrete <= 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 / 400)


def test_p_is_small_under_signal_and_never_zero() -> None:
    truth = np.arange(40) % 2
    probabilities = chances(4.0 * truth - 2)
    test = permutation_test(truth, probabilities, names(40), ["A"] * 40, count=999, seed=0)
    assert test["balanced_accuracy"]["p"] == test["roc_auc"]["p"] == 1 / 1000
    assert test["roc_auc"]["null_mean"] == pytest.approx(0.5, abs=0.02)


def test_site_alone_is_not_rewarded() -> None:
    """Predictions that know the site only: strong without regard to sites, nothing within."""
    rng = np.random.default_rng(1)
    sites = np.repeat(["A", "B"], 30)
    truth = np.r_[rng.permutation([0] * 25 + [1] * 5), rng.permutation([1] * 25 + [0] * 5)]
    probabilities = chances(np.where(sites == "B", 2.0, -2.0))
    within = permutation_test(truth, probabilities, names(60), list(sites), count=499, seed=0)
    across = permutation_test(truth, probabilities, names(60), ["all"] * 60, count=499, seed=0)
    assert within["balanced_accuracy"]["observed"] == pytest.approx(50 / 60)
    assert within["balanced_accuracy"]["p"] == within["roc_auc"]["p"] == 1.0
    assert across["balanced_accuracy"]["p"] == 1 / 500


def test_one_label_per_site_cannot_be_tested_and_says_so() -> None:
    truth = np.repeat([0, 1], 10)
    sites = ["A"] * 10 + ["B"] * 10
    test = permutation_test(truth, chances(truth - 0.5), names(20), sites, count=99, seed=0)
    assert not test["possible"]
    assert "same label" in test["reason"]
    assert test["roc_auc"] == {"observed": 1.0, "p": None, "null_mean": None, "null_sd": None}


def test_missing_class_has_no_statistic() -> None:
    truth = np.zeros(4, dtype=np.intp)
    test = permutation_test(truth, chances(np.ones(4)), names(4), ["A"] * 4, count=9, seed=0)
    assert test["balanced_accuracy"]["observed"] is None
    assert not test["possible"]


def test_sessions_keep_one_label_and_sites_their_counts() -> None:
    people = ["a", "a", "b", "c", "d", "d", "e", "f"]
    sites = ["A", "A", "A", "A", "B", "B", "B", "B"]
    truth = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    (labels,) = _draw(truth, _strata(truth, people, sites), 100, np.random.default_rng(0))
    assert (labels[:, 0] == labels[:, 1]).all()
    assert (labels[:, 4] == labels[:, 5]).all()
    first = [0, 2, 3]
    assert (labels[:, first].sum(axis=1) == 2).all()
    assert (labels[:, 0] == 1).any()


def test_changed_labels_are_exchanged_as_they_are() -> None:
    """A person who converted keeps one scan of each label, whoever they exchange with."""
    people = ["a", "a", "b", "b", "c", "d"]
    truth = np.array([0, 1, 1, 0, 0, 1])
    (labels,) = _draw(truth, _strata(truth, people, ["A"] * 6), 50, np.random.default_rng(0))
    assert (labels[:, :2].sum(axis=1) == 1).all()
    assert (labels.sum(axis=1) == 3).all()
    assert (labels[:, 0] == 1).any()


@pytest.mark.parametrize("classes", [2, 3])
def test_statistics_are_scikit_learns(classes: int) -> None:
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.ones(classes), 30).round(1)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    labels = np.stack([rng.permutation(np.arange(30) % classes) for _ in range(5)])
    accuracies, areas = _statistics(labels, probabilities)
    for truth, accuracy, area in zip(labels, accuracies, areas, strict=True):
        predicted = probabilities.argmax(axis=1)
        assert accuracy == pytest.approx(balanced_accuracy_score(truth, predicted))
        score = probabilities[:, 1] if classes == 2 else probabilities
        assert area == pytest.approx(roc_auc_score(truth, score, multi_class="ovr"))
