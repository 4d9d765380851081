"""Confidence intervals: closed forms, oracles, coverage, and who is drawn with whom."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from sklearn.metrics import average_precision_score, roc_auc_score

from bids_gevnet.learn.evaluate.intervals import (
    NOTHING,
    Resamples,
    mover_mean,
    newcombe,
    paired_difference,
    percentile_interval,
    wilson,
)


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_wilson_is_scipys(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    found, oracle = wilson(k / n, n), binomtest(k, n).proportion_ci(method="wilson")
    assert found["low"] == pytest.approx(oracle.low, abs=1e-12)
    assert found["high"] == pytest.approx(oracle.high, abs=1e-12)


def test_nobody_gives_nothing() -> None:
    assert wilson(0.5, 0) == NOTHING
    assert mover_mean([wilson(1.0, 3), NOTHING]) == NOTHING
    assert paired_difference(np.zeros(0, bool), np.zeros(0, bool), 0) == NOTHING


def test_mean_of_equal_parts_is_narrower_by_root_two() -> None:
    """At p = 1/2 Wilson's interval is symmetric; two such parts halve the variance."""
    one = wilson(0.5, 40)
    two = mover_mean([one, one])
    assert one["high"] is not None
    assert two["high"] == pytest.approx(0.5 + (one["high"] - 0.5) / np.sqrt(2))
    assert two["low"] == pytest.approx(0.5 - (one["high"] - 0.5) / np.sqrt(2))


def test_newcombe_solves_its_equation() -> None:
    m, n, area = 11, 17, 0.8
    found = newcombe(area, m, n)
    for theta in (found["low"], found["high"]):
        assert theta is not None
        shape = 1 + ((m + n) / 2 - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        variance = theta * (1 - theta) * shape / (m * n)
        assert abs(area - theta) == pytest.approx(norm.ppf(0.975) * np.sqrt(variance))


@pytest.mark.parametrize("area", [0.0, 1.0])
def test_a_perfect_area_is_not_certain(area: float) -> None:
    few, many = newcombe(area, 5, 5), newcombe(area, 500, 500)
    for found in (few, many):
        assert found["low"] <= area <= found["high"]  # type: ignore[operator]
    width = [f["high"] - f["low"] for f in (few, many)]  # type: ignore[operator]
    assert width[0] > 0.2
    assert width[1] < 0.02


def test_area_and_its_mirror() -> None:
    found, mirror = newcombe(0.7, 12, 20), newcombe(0.3, 20, 12)
    assert found["low"] == pytest.approx(1 - mirror["high"], abs=1e-9)  # type: ignore[operator]


def test_same_answers_differ_less_surely_than_opposite_ones() -> None:
    """Correlated models are compared more sharply; a model with itself has difference 0."""
    first = np.arange(40) % 4 > 0
    same = paired_difference(first, first, 40)
    other = paired_difference(first, np.roll(first, 1), 40)
    assert same["value"] == other["value"] == 0
    assert same["high"] == pytest.approx(0, abs=0.05)
    assert other["high"] > 0.1  # type: ignore[operator]


def _cover(value: float | None, low: float | None, high: float | None, truth: float) -> bool:
    assert value is not None
    assert low is not None
    assert high is not None
    return low <= truth <= high


def test_coverage_of_balanced_accuracy_and_its_difference() -> None:
    """Recalls 0.9 of 12 and 0.6 of 25 people; a rival at 0.75 and 0.5, partly the same errors."""
    rng = np.random.default_rng(0)
    hits = compared = 0
    runs = 1000
    for _ in range(runs):
        parts, differences = [], []
        for p, q, n in ((0.9, 0.75, 12), (0.6, 0.5, 25)):
            shared = rng.random(n)
            mixed = np.where(rng.random(n) < 0.5, shared, rng.random(n))
            first, second = shared < p, mixed < q
            parts.append(wilson(float(first.mean()), n))
            differences.append(paired_difference(first, second, n))
        found, difference = mover_mean(parts), mover_mean(differences)
        hits += _cover(found["value"], found["low"], found["high"], 0.75)
        compared += _cover(
            difference["value"], difference["low"], difference["high"], 0.75 - 0.625
        )
    assert 0.93 <= hits / runs <= 0.985
    assert 0.93 <= compared / runs <= 0.985


@pytest.mark.parametrize("area", [0.5, 0.8, 0.95])
def test_coverage_of_the_area(area: float) -> None:
    """Normal scores of 15 and 20 people whose means differ so that the area is known."""
    rng = np.random.default_rng(1)
    shift = np.sqrt(2) * norm.ppf(area)
    hits = 0
    runs = 1000
    for _ in range(runs):
        low, high = rng.normal(size=15), rng.normal(shift, size=20)
        found = newcombe(float((high[:, None] > low).mean()), 15, 20)
        hits += _cover(found["value"], found["low"], found["high"], area)
    assert 0.925 <= hits / runs <= 0.985


def test_coverage_of_the_bootstrap_needs_participants() -> None:
    """Three scans of a person that say the same: drawn by scan, intervals are far too narrow."""
    rng = np.random.default_rng(2)
    hits = {"people": 0, "scans": 0}
    runs = 300
    for run in range(runs):
        values = np.repeat(rng.normal(size=30), 3)
        strata = np.repeat(np.arange(30) % 2, 3).tolist()
        people = {"people": np.repeat(np.arange(30), 3), "scans": np.arange(90)}
        for unit, names in people.items():
            draws = Resamples(names.astype(str).tolist(), strata, count=400, seed=run)
            found = percentile_interval(float(values.mean()), draws.means(values))
            hits[unit] += _cover(found["value"], found["low"], found["high"], 0.0)
    assert hits["people"] / runs > 0.89
    assert hits["scans"] / runs < 0.8


def test_sessions_of_a_person_are_drawn_together_and_classes_keep_their_size() -> None:
    rng = np.random.default_rng(3)
    people = [f"p{i}" for i in rng.integers(0, 20, 60)]
    label = {name: int(name[1:]) % 2 for name in people}
    strata = [label[name] for name in people]
    weights = Resamples(people, strata, count=50, seed=0).weights
    for name in set(people):
        own = weights[:, [p == name for p in people]]
        assert (own == own[:, :1]).all()
    first = [people.index(name) for name in sorted(set(people))]
    for kind in (0, 1):
        of_kind = [i for i in first if strata[i] == kind]
        assert (weights[:, of_kind].sum(axis=1) == len(of_kind)).all()
    assert len({tuple(row) for row in weights}) > 1


def test_person_whose_label_changes_is_one_unit() -> None:
    weights = Resamples(["a", "a", "b", "c", "d"], [0, 1, 0, 1, 1], count=20, seed=0).weights
    assert (weights[:, 0] == weights[:, 1]).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_resampled_areas_and_precisions_are_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = np.arange(24) % 3 == 0
    chance = rng.integers(0, 6, 24) / 5  # with ties
    draws = Resamples([str(i) for i in range(24)], truth.tolist(), count=4, seed=seed)
    areas, precisions = draws.areas(truth, chance), draws.precisions(truth, chance)
    for weight, area, precision in zip(draws.weights, areas, precisions, strict=True):
        assert area == pytest.approx(roc_auc_score(truth, chance, sample_weight=weight))
        oracle = average_precision_score(truth, chance, sample_weight=weight)
        assert precision == pytest.approx(oracle)
