"""Cramér's V against known truth, and against chance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.harmonisation.association import cramers_v, cross_table


def test_association_of_independent_and_of_identical_columns():
    assert cramers_v(np.array([[25, 25], [25, 25]])) == 0
    assert cramers_v(np.array([[50, 0], [0, 50]])) == pytest.approx(1)
    assert cramers_v(np.array([[50, 50]])) is None
    assert cramers_v(np.array([[0, 0], [5, 5]])) is None


def test_association_is_corrected_for_chance():
    """Without the correction, unrelated columns of a small sample seem related."""
    rng = np.random.default_rng(0)
    raw, corrected = [], []
    for _ in range(200):
        table = np.zeros((5, 3), int)
        for _ in range(30):
            table[rng.integers(5), rng.integers(3)] += 1
        n = table.sum()
        expected = np.outer(table.sum(1), table.sum(0)) / n
        good = expected > 0
        chi = ((table - expected)[good] ** 2 / expected[good]).sum()
        raw.append(np.sqrt(chi / n / 2))
        corrected.append(cramers_v(table))
    assert np.mean(raw) > 0.3
    assert np.mean(corrected) < 0.15


@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=5))
def test_association_is_between_zero_and_one(rows):
    value = cramers_v(np.array(rows))
    assert value is None or 0 <= value <= 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from("ABC"), min_size=2, max_size=30))
def test_a_renamed_category_is_fully_associated_where_anything_repeats(sites):
    value = cramers_v(cross_table(sites, [site.lower() for site in sites]))
    if 1 < len(set(sites)) < len(sites):
        assert value == pytest.approx(1)
    else:
        assert value is None  # one category, or everybody alone in theirs


def test_independent_categories_are_not_associated():
    assert cramers_v(cross_table(list("AABB"), list("xyxy"))) == pytest.approx(0)
