"""The test of contributions: variance by enumeration, errors and power by simulation."""

from itertools import permutations

import numpy as np
import pytest

from bids_gevnet.learn.evaluate.significance import count_arrangements, judge_contributions


def all_totals(contributions, truth):
    """T of every permutation of the labels of one stratum, computed from its definition."""
    people = np.arange(len(truth))
    totals = np.array(
        [contributions[people, list(labels)].sum(axis=0) for labels in permutations(truth)]
    )
    return totals - totals.mean(axis=0)


@pytest.mark.parametrize("truth", [(0, 0, 1, 1, 1), (0, 1, 2, 2, 1), (0, 0, 0, 0, 1, 2)])
def test_z_is_the_distance_in_standard_deviations_over_all_permutations(truth):
    rng = np.random.default_rng(len(truth))
    labels = np.array(truth)
    contributions = rng.normal(size=(len(truth), labels.max() + 1, 7))
    totals = all_totals(contributions, truth)
    observed = contributions[np.arange(len(truth)), labels].sum(axis=0)
    expected = observed - np.mean(
        [contributions[np.arange(len(truth)), list(p)].sum(axis=0) for p in permutations(truth)],
        axis=0,
    )
    test = judge_contributions(contributions, labels, ["x"] * len(truth), seed=0)
    np.testing.assert_allclose(test.total, expected, atol=1e-12)
    np.testing.assert_allclose(test.z, expected / totals.std(axis=0), rtol=1e-10)


def test_numbers_are_exchanged_themselves():
    rng = np.random.default_rng(5)
    numbers = np.array([61.0, 64.5, 64.5, 70.0, 82.0])
    contributions = rng.normal(size=(5, 1, 7))
    totals = np.array([np.array(p) @ contributions[:, 0] for p in permutations(numbers)])
    expected = numbers @ contributions[:, 0] - totals.mean(axis=0)
    test = judge_contributions(contributions, numbers, ["x"] * 5, seed=0)
    np.testing.assert_allclose(test.total, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(test.z, expected / totals.std(axis=0), rtol=1e-5, atol=1e-5)
    assert count_arrangements(numbers, ["x"] * 5) == pytest.approx(60)


def test_a_place_that_goes_with_the_number_is_found_and_no_other():
    rng = np.random.default_rng(6)
    age = rng.uniform(40, 80, 60)
    contributions = rng.normal(size=(60, 1, 40))
    contributions[:, 0, 11] += 0.15 * (age - 60)
    test = judge_contributions(contributions, age, np.arange(60) % 3, seed=0)
    assert np.flatnonzero(test.p < 0.05).tolist() == [11]


def test_p_is_the_share_of_all_permutations_whose_largest_z_is_as_large():
    rng = np.random.default_rng(3)
    truth = np.array([0, 0, 0, 1, 1, 1])
    contributions = rng.normal(size=(6, 2, 4))
    contributions[:, 1, 0] += 2 * truth
    totals = all_totals(contributions, tuple(truth))
    largest = (totals / totals.std(axis=0)).max(axis=1)
    test = judge_contributions(contributions, truth, ["x"] * 6, seed=0, count=20_000, root=1.0)
    exact = [(largest >= z - 1e-4).mean() for z in test.z]
    np.testing.assert_allclose(test.p, exact, atol=0.015)


def test_strata_in_which_nothing_can_be_exchanged_add_nothing():
    rng = np.random.default_rng(0)
    truth = np.array([0, 1, 0, 1, 1, 1])
    strata = ["a", "a", "a", "a", "all of one class", "all of one class"]
    contributions = rng.normal(size=(6, 2, 3))
    whole = judge_contributions(contributions, truth, strata, seed=0)
    part = judge_contributions(contributions[:4], truth[:4], strata[:4], seed=0)
    np.testing.assert_allclose(whole.z, part.z)
    assert count_arrangements(truth, strata) == pytest.approx(6)
    alone = judge_contributions(contributions[4:], truth[4:], strata[4:], seed=0)
    assert (alone.z == 0).all()
    assert (alone.p == 1).all()


def test_features_that_never_vary_are_not_significant():
    truth = np.arange(12) % 2
    test = judge_contributions(np.ones((12, 2, 5)), truth, ["x"] * 12, seed=0)
    assert (test.p == 1).all()
    assert np.isinf(test.needed)


def cross_validated(rng, *, people=24, folds=3, voxels=30, directions=6, effect=0.0, site=0.0):
    """Contributions by a linear classifier of the training class means, in a cross-validation.

    Returns contributions, labels and strata of fold and site; the first three voxels differ.
    """
    truth = rng.permutation(np.arange(people) % 2)
    # Four fifths of a class are at one site: the scanner tells the classes apart.
    sites = np.where(rng.uniform(size=people) < 0.8, truth, 1 - truth)
    fold = np.empty(people, int)
    for label in (0, 1):
        members = np.flatnonzero(truth == label)
        fold[members] = np.arange(len(members)) % folds
    data = rng.normal(size=(people, voxels, directions))
    data[:, :3] += effect * truth[:, None, None]
    data += site * sites[:, None, None]
    contributions = np.empty((people, 2, voxels))
    for number in range(folds):
        test, train = fold == number, fold != number
        weights = data[train & (truth == 1)].mean(0) - data[train & (truth == 0)].mean(0)
        own = ((data[test] - data[train].mean(0)) * weights).sum(-1)
        own /= np.sqrt(np.mean(own**2))
        contributions[test] = np.stack([-own, own], axis=1)
    return contributions, truth, fold, sites


def false_alarms(*, root=2**0.5, by_site=True, studies=300, **options):
    """Share of studies with a significant voxel."""
    found = 0
    for seed in range(studies):
        rng = np.random.default_rng([71, seed])
        contributions, truth, fold, sites = cross_validated(rng, **options)
        strata = list(zip(fold, sites if by_site else fold, strict=True))
        test = judge_contributions(contributions, truth, strata, seed=seed, count=199, root=root)
        found += bool((test.p <= 0.05).any())
    return found / studies


def test_without_an_effect_one_study_in_twenty_shows_anything_at_most():
    # 300 studies: a rate of 0.05 stays below 0.085 in 99.7 % of all cases.
    assert false_alarms(by_site=False) < 0.085


def test_the_root_of_two_is_needed():
    assert false_alarms(root=1.0, by_site=False) > 0.1


def test_a_difference_between_sites_is_not_taken_for_one_between_diagnoses():
    assert false_alarms(site=1.0, people=48, studies=60) < 0.15
    assert false_alarms(site=1.0, people=48, studies=20, by_site=False) > 0.9


def test_the_voxels_that_differ_are_found_and_come_first():
    found, first = [], []
    for seed in range(20):
        contributions, truth, fold, _ = cross_validated(
            np.random.default_rng([72, seed]), people=48, effect=1.0
        )
        test = judge_contributions(contributions, truth, fold, seed=seed, count=199)
        first.append(set(np.argsort(-test.z)[:3]) == {0, 1, 2})
        found.append((test.p[:3] <= 0.05).mean())
    assert np.mean(found) > 0.8
    assert np.mean(first) > 0.9
