"""Splits: nobody on both sides, everybody tested once, classes and sites in proportion."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.learn.cohort.folds import make_folds


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.data())
def test_no_person_straddles_a_split(seed: int, folds: int, data: st.DataObject) -> None:
    people, labels, sites = [], [], []
    for k, label in enumerate(("AD", "PD")):
        count = data.draw(st.integers(folds, 12))
        for i in range(count):
            sessions = data.draw(st.integers(1, 3))
            site = data.draw(st.sampled_from(["A", "B"]))
            people += [f"{k}-{i}"] * sessions
            labels += [label] * sessions
            sites += [site] * sessions
    fold = make_folds(people, labels, sites, folds=folds, seed=seed)
    assert set(fold.tolist()) <= set(range(folds))
    for person in set(people):
        assert len({int(f) for f, p in zip(fold, people, strict=True) if p == person}) == 1


def test_classes_and_sites_are_in_proportion() -> None:
    labels = ["AD"] * 40 + ["PD"] * 60
    sites = ["A"] * 20 + ["B"] * 20 + ["A"] * 45 + ["B"] * 15
    people = [str(i) for i in range(100)]
    fold = make_folds(people, labels, sites, folds=5, seed=3)
    for k in range(5):
        counts = Counter((labels[i], sites[i]) for i in np.flatnonzero(fold == k))
        assert counts == {("AD", "A"): 4, ("AD", "B"): 4, ("PD", "A"): 9, ("PD", "B"): 3}


def test_a_rare_site_does_not_unbalance_the_classes() -> None:
    labels = ["AD"] * 10 + ["PD"] * 10
    sites = ["A"] * 9 + ["rare"] + ["A"] * 10
    fold = make_folds([str(i) for i in range(20)], labels, sites, folds=5, seed=0)
    for k in range(5):
        assert Counter(labels[i] for i in np.flatnonzero(fold == k)) == {"AD": 2, "PD": 2}


def test_seed_decides() -> None:
    people = [str(i) for i in range(40)]
    labels, sites = ["AD", "PD"] * 20, ["A", "A", "B", "B"] * 10

    def folds(seed: int) -> list[int]:
        return [int(f) for f in make_folds(people, labels, sites, folds=4, seed=seed)]

    assert folds(1) == folds(1)
    assert folds(1) != folds(2)
