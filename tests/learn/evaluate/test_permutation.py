"""Permutation tests: hold their level in cross-validation, strong under signal, blind to sites."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from bids_gevnet.learn.evaluate.permutation import (
    JointTest,
    _draw,
    _strata,
    balanced_accuracies,
    holm,
    p_text,
    permutation_test,
    swap_test,
)


def names(n: int) -> list[str]:
    return [f"p{i}" for i in range(n)]


def run(truth: Any, predicted: Any, sites: Any, *, count: int = 499, seed: int = 0) -> Any:
    people = names(len(truth))
    return permutation_test(
        np.asarray(truth), np.asarray(predicted), people, list(sites), classes=2, count=count,
        seed=seed,
    )  # fmt: skip


def cross_validated(rng: np.random.Generator, models: int = 4, people: int = 40) -> Any:
    """Labels without any effect, and what ridge regressions predict of them over five folds."""
    truth = np.arange(people) % 2
    folds = rng.permutation(np.arange(people) // 2 % 5 * 2 + truth) // 2
    target = 2.0 * truth - 1
    answers = np.empty((models, people), dtype=np.intp)
    for model in range(models):
        data = rng.normal(size=(people, 30))
        for fold in np.unique(folds):
            inside, tested = folds != fold, folds == fold
            gram = data[inside] @ data[inside].T + 10 * np.eye(inside.sum())
            weights = np.linalg.solve(gram, target[inside] - target[inside].mean())
            answers[model, tested] = data[tested] @ data[inside].T @ weights > 0
    return truth, answers


def test_studies_without_effect_find_one_in_at_most_five_of_a_hundred() -> None:
    """Both for one model and for the best of four; without the root of two they would not."""
    rng = np.random.default_rng(0)
    single, joint, naive = [], [], []
    for study in range(300):
        truth, answers = cross_validated(rng)
        options: Any = {"classes": 2, "count": 199, "seed": study}
        alone = JointTest(truth, answers[:1], names(40), ["A"] * 40, **options)
        single.append(alone.p[0])
        test = JointTest(truth, answers, names(40), ["A"] * 40, **options)
        joint.append(test.p.min())
        naive.append(float(test.z.max()))
    three_errors = 3 * np.sqrt(0.05 * 0.95 / 300)
    assert np.mean(np.array(single) < 0.05) <= 0.05 + three_errors
    assert np.mean(np.array(joint) < 0.05) <= 0.05
    # The best of four independent standard normals is above 2.23 in 5 of 100.
    assert np.mean(np.array(naive) > 2.23) > 0.05


def test_p_is_small_under_signal_and_never_zero() -> None:
    truth = np.arange(40) % 2
    test = run(truth, truth, ["A"] * 40, count=999)
    assert test["balanced_accuracy"]["p"] == 1 / 1000
    assert test["balanced_accuracy"]["null_mean"] == pytest.approx(0.5, abs=0.02)
    assert "roc_auc" not in test


def test_the_best_of_many_has_to_reach_further() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(40) % 2
    good = np.where(rng.uniform(size=40) < 0.72, truth, 1 - truth)
    others = rng.integers(0, 2, (30, 40))
    options: Any = {"classes": 2, "count": 999, "seed": 0}
    alone = JointTest(truth, good[None], names(40), ["A"] * 40, **options)
    among = JointTest(truth, np.vstack([good, others]), names(40), ["A"] * 40, **options)
    assert among.p[0] > 3 * alone.p[0]
    assert among.needed[0] > alone.needed[0] > 0.6
    again = JointTest(truth, np.vstack([good] * 30), names(40), ["A"] * 40, **options)
    assert again.p[0] == pytest.approx(alone.p[0])  # the same answers thirty times are one model


def test_a_model_that_always_says_the_same_is_no_evidence() -> None:
    truth = np.arange(20) % 2
    test = run(truth, np.ones(20, dtype=np.intp), ["A"] * 20)
    assert test["balanced_accuracy"]["p"] == 1.0


def test_site_alone_is_not_rewarded() -> None:
    """Predictions that know the site only: strong without regard to sites, nothing within."""
    rng = np.random.default_rng(1)
    sites = np.repeat(["A", "B"], 30)
    truth = np.r_[rng.permutation([0] * 25 + [1] * 5), rng.permutation([1] * 25 + [0] * 5)]
    predicted = (sites == "B").astype(np.intp)
    within = run(truth, predicted, sites)["balanced_accuracy"]
    across = run(truth, predicted, ["all"] * 60)["balanced_accuracy"]
    assert within["observed"] == pytest.approx(50 / 60)
    assert within["p"] == 1.0
    assert across["p"] == 1 / 500


def test_one_label_per_site_cannot_be_tested_and_says_so() -> None:
    truth = np.repeat([0, 1], 10)
    test = run(truth, truth, ["A"] * 10 + ["B"] * 10)
    assert not test["possible"]
    assert "same label" in test["reason"]
    empty = {"observed": 1.0, "p": None, "null_mean": None, "null_sd": None}
    assert test["balanced_accuracy"] == empty


def test_missing_class_has_no_statistic() -> None:
    test = run(np.zeros(4, dtype=np.intp), np.ones(4, dtype=np.intp), ["A"] * 4)
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


def test_scans_of_a_person_get_one_label_however_many_there_are() -> None:
    """A model that sees the person and not the label: exchanging scans alone would favour it."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 6, 60)
    people = np.repeat([f"p{n:02d}" for n in range(60)], sizes)
    truth = np.repeat(rng.integers(0, 2, 60), sizes)
    order = rng.permutation(len(people))  # scans of a person lie apart
    predicted = np.repeat(rng.integers(0, 2, 60), sizes)[order]
    found = permutation_test(
        truth[order], predicted, people[order].tolist(), ["A"] * len(order),
        classes=2, count=4000, seed=0,
    )["balanced_accuracy"]  # fmt: skip
    # By hand: labels of people exchanged, one by one.
    labels = np.repeat(np.arange(60), sizes)[order]
    first = truth[np.searchsorted(np.repeat(np.arange(60), sizes), np.arange(60))]
    null = []
    for _ in range(2000):
        moved = rng.permutation(first)[labels]
        null.append(balanced_accuracy_score(moved, predicted))
    assert found["null_mean"] == pytest.approx(np.mean(null), abs=0.005)
    assert found["null_sd"] == pytest.approx(np.std(null), rel=0.06)


def test_changed_labels_are_exchanged_as_they_are() -> None:
    """A person who converted keeps one scan of each label, whoever they exchange with."""
    people = ["a", "a", "b", "b", "c", "d"]
    truth = np.array([0, 1, 1, 0, 0, 1])
    (labels,) = _draw(truth, _strata(truth, people, ["A"] * 6), 50, np.random.default_rng(0))
    assert (labels[:, :2].sum(axis=1) == 1).all()
    assert (labels.sum(axis=1) == 3).all()
    assert (labels[:, 0] == 1).any()


@pytest.mark.parametrize("classes", [2, 3])
def test_balanced_accuracies_are_scikit_learns(classes: int) -> None:
    rng = np.random.default_rng(2)
    predicted = rng.integers(0, classes, (3, 30))
    labels = np.stack([rng.permutation(np.arange(30) % classes) for _ in range(5)])
    found = balanced_accuracies(labels, predicted, classes)
    for model, answers in enumerate(predicted):
        for number, truth in enumerate(labels):
            expected = balanced_accuracy_score(truth, answers)
            assert found[model, number] == pytest.approx(expected, abs=1e-6)


def swap(first: Any, second: Any, truth: Any, people: Any, **options: Any) -> float:
    single, corrected = swap_test(first, second[None], truth, list(people), **options)
    assert single == corrected
    return float(single[0])


def test_swapping_models_finds_differences_and_only_those() -> None:
    rng = np.random.default_rng(3)
    truth = np.arange(60) % 2
    options: Any = {"count": 499, "seed": 0}
    good, coin = rng.uniform(size=60) < 0.95, rng.uniform(size=60) < 0.5
    assert swap(good, coin, truth, names(60), **options) < 0.01
    assert swap(good, good, truth, names(60), **options) == 1.0
    p = [
        swap(*(rng.uniform(size=(2, 60)) < 0.7), truth, names(60), count=99, seed=run)
        for run in range(200)
    ]
    assert np.mean(np.array(p) < 0.05) <= 0.05
    # Ten scans of everybody are no more evidence than one.
    people = np.repeat(names(60), 10)
    many = (np.repeat(good, 10), np.repeat(coin, 10), np.repeat(truth, 10), people)
    assert swap(*many, **options) == pytest.approx(
        swap(good, coin, truth, names(60), **options), abs=0.01
    )


def test_the_same_rival_many_times_costs_nothing_and_different_ones_do() -> None:
    rng = np.random.default_rng(4)
    truth = np.arange(60) % 2
    first, second = rng.uniform(size=60) < 0.9, rng.uniform(size=60) < 0.6
    options: Any = {"count": 1999, "seed": 0}
    alone, _ = swap_test(first, second[None], truth, names(60), **options)
    single, same = swap_test(first, np.stack([second] * 7), truth, names(60), **options)
    assert same[0] == single[0] == alone[0]
    others = np.vstack([second, rng.uniform(size=(7, 60)) < 0.85])
    _, corrected = swap_test(first, others, truth, names(60), **options)
    assert corrected[0] > alone[0]


def test_holm_is_ordered_and_never_smaller_than_the_raw_value() -> None:
    raw = [0.04, 0.001, 0.03, 0.5]
    corrected = holm(raw)
    assert all(after >= before for before, after in zip(raw, corrected, strict=True))
    assert corrected == pytest.approx([0.09, 0.004, 0.09, 0.5])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_p_is_never_written_as_zero() -> None:
    assert p_text(1 / 2001) == "p < 0.001"
    assert p_text(0.001) == "p = 0.001"
    assert not any("0.000" in p_text(p) for p in np.geomspace(1e-6, 1, 200))
