"""Gains for a site that comes later: known shifts, few scans, covariates, and the cost."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.adaptation import FEWEST_PEOPLE, adapt
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.harmonisation.glm import fit_rish_glm

SHAPE = (4, 4, 4)
SHIFT = np.array([0.4, -0.3, 0.2, 0.5], np.float32)


def people_of(count, start=0):
    return [f"p{start + i}" for i in range(count)]


def maps_of(count, *, shift=0.0, seed=0, ages=None, age_effect=0.0, groups=None, effect=0.0):
    """Log RISH maps: a fixed pattern, everybody's own level, and the effects asked for."""
    rng = np.random.default_rng(seed)
    pattern = np.random.default_rng(99).normal(size=(*SHAPE, 4))
    made = []
    for i in range(count):
        values = pattern + rng.normal(0, 0.05, (1, 1, 1, 4)) + rng.normal(0, 0.02, (*SHAPE, 4))
        values += shift
        values += 0 if ages is None else age_effect * (ages[i] - 70) / 10
        values += 0 if groups is None else effect * (groups[i] == "PD")
        made.append(values.astype(np.float32))
    return made


def fit(count=40, *, ages=None, groups=None, **options):
    covariates = None if ages is None else {"age": ages}
    return fit_rish_glm(
        maps_of(count, ages=ages, groups=groups, **options),
        participants=people_of(count),
        sites=["A", "B"] * (count // 2),
        groups=groups,
        covariates=covariates,
    )


@pytest.fixture(scope="module")
def gains():
    return fit()


def test_a_known_shift_is_taken_away_and_known_sites_stay(gains):
    adapted, facts = adapt(
        gains, maps_of(20, shift=SHIFT, seed=1), site="C", participants=people_of(20, 100)
    )
    expected = np.exp(-SHIFT / 2)
    np.testing.assert_allclose(adapted.gains[-1].mean(axis=(0, 1, 2)), expected, rtol=0.03)
    np.testing.assert_allclose(facts.mean_gains, expected, rtol=0.03)
    np.testing.assert_array_equal(adapted.gains[:2], gains.gains)
    assert adapted.sites == ("A", "B", "C")
    assert (facts.people, facts.scans, facts.degrees) == (20, 20, (0, 2, 4, 6))


def test_a_site_like_the_training_data_is_hardly_changed(gains):
    adapted, _ = adapt(gains, maps_of(20, seed=2), site="C", participants=people_of(20, 100))
    assert np.abs(np.log(adapted.gains[-1])).max() < 0.03


def test_the_reference_is_that_of_harmonised_scans():
    """A site adapted to ends where the training sites were brought to, not where they were."""
    maps = [m + (0.6 if i % 2 else 0) for i, m in enumerate(maps_of(40))]
    gains = fit_rish_glm(maps, participants=people_of(40), sites=["A", "B"] * 20)
    assert gains.corrects("B")
    between = [m + 0.3 for m in maps_of(20, seed=3)]
    adapted, _ = adapt(gains, between, site="C", participants=people_of(20, 100))
    assert np.abs(np.log(adapted.gains[-1])).max() < 0.05


def test_fewer_people_change_fewer_degrees_and_by_less(gains):
    changes = []
    for count in (3, 5, 8, 12):
        maps = maps_of(count, shift=0.15, seed=4)
        adapted, facts = adapt(gains, maps, site="C", participants=people_of(count, 100))
        changed = [bool((adapted.gains[-1, ..., i] != 1).any()) for i in range(4)]
        assert sum(changed) == len(facts.degrees)
        changes.append(len(facts.degrees))
    assert changes == [1, 2, 3, 4]


def test_noise_between_few_people_is_shrunk_away(gains):
    """Without any difference, gains of three people stay nearer to 1 than their mean says."""
    raw, shrunk = [], []
    for seed in range(20):
        maps = maps_of(3, seed=50 + seed)
        adapted, _ = adapt(gains, maps, site="C", participants=people_of(3, 100))
        shrunk.append(np.log(adapted.gains[-1, ..., 0]).mean())
        away = np.mean(maps, axis=0)[..., 0].mean() - gains.training.mean[:, 0].mean()
        raw.append(-away / 2)
    assert np.std(shrunk) < 0.8 * np.std(raw)


def test_too_few_people_are_refused_with_their_number(gains):
    maps = maps_of(6, seed=1)
    with pytest.raises(InputError, match=rf"at least {FEWEST_PEOPLE} people of site C(.|\n)*2"):
        adapt(gains, maps, site="C", participants=["x", "x", "x", "y", "y", "y"])


def test_several_scans_of_a_person_count_as_one(gains):
    maps = maps_of(8, shift=SHIFT, seed=5)
    once, _ = adapt(gains, maps, site="C", participants=people_of(8))
    twice = [m for m in maps for _ in range(3)]
    names = [name for name in people_of(8) for _ in range(3)]
    again, facts = adapt(gains, twice, site="C", participants=names)
    np.testing.assert_allclose(again.gains, once.gains, rtol=1e-5)
    assert (facts.people, facts.scans) == (8, 24)


def test_an_older_site_is_not_taken_for_another_scanner():
    rng = np.random.default_rng(7)
    ages = rng.uniform(60, 80, 40).tolist()
    gains = fit(ages=ages, age_effect=0.3)
    old = rng.uniform(75, 85, 20).tolist()
    maps = maps_of(20, ages=old, age_effect=0.3, seed=8)
    known, _ = adapt(gains, maps, site="C", participants=people_of(20), covariates={"age": old})
    blind, facts = adapt(gains, maps, site="C", participants=people_of(20))
    assert np.abs(np.log(known.gains[-1])).max() < 0.04
    assert np.abs(np.log(blind.gains[-1])).mean() > 0.1
    assert facts.unknown == ("age",)
    assert "age unknown" in facts.sentence


def test_another_mix_of_diagnoses_is_removed_like_a_scanner_and_the_sentence_says_so():
    groups = ["AD", "AD", "PD", "PD"] * 10
    gains = fit(groups=groups, effect=0.4)
    same, facts = adapt(
        gains,
        maps_of(20, groups=["AD", "PD"] * 10, effect=0.4, seed=9),
        site="C",
        participants=people_of(20),
    )
    only, _ = adapt(
        gains,
        maps_of(20, groups=["PD"] * 20, effect=0.4, seed=9),
        site="C",
        participants=people_of(20),
    )
    assert np.abs(np.log(same.gains[-1])).mean() < 0.04
    # Half of the difference between diagnoses (0.2 in log energy) is gone with the "scanner".
    np.testing.assert_allclose(np.log(only.gains[-1]).mean(), -0.1, atol=0.03)
    assert "mix of diagnoses" in facts.sentence


def test_a_saved_harmonisation_adapts_like_the_one_in_memory(gains, tmp_path):
    ages = np.linspace(60, 80, 40).tolist()
    fitted = fit(ages=ages, age_effect=0.2)
    fitted.save(tmp_path / "gains.npz")
    read = load_gains(tmp_path / "gains.npz")
    maps, old = maps_of(12, shift=SHIFT, seed=3), [75.0] * 12
    options = {"site": "C", "participants": people_of(12), "covariates": {"age": old}}
    first, second = (adapt(g, maps, **options)[0].gains for g in (fitted, read))
    np.testing.assert_allclose(first, second, rtol=1e-4)
    assert read.training.covariates == fitted.training.covariates


def test_gains_of_an_earlier_version_are_read_and_cannot_adapt(gains, tmp_path):
    old = dataclasses.replace(gains, training=None)
    old.save(tmp_path / "gains.npz")
    read = load_gains(tmp_path / "gains.npz")
    assert read.training is None
    with pytest.raises(InputError, match="earlier version"):
        adapt(read, maps_of(12), site="C", participants=people_of(12))


def test_scans_on_another_grid_are_refused(gains):
    maps = [np.zeros((5, 4, 4, 4), np.float32)] * 12
    with pytest.raises(InputError, match="on the grid"):
        adapt(gains, maps, site="C", participants=people_of(12))


@pytest.mark.parametrize("name", ["training_mean", "training_variance", "training_inside"])
def test_a_damaged_reference_is_refused(gains, tmp_path, name):
    path = tmp_path / "gains.npz"
    gains.save(path)
    with np.load(path) as content:
        arrays = {key: content[key] for key in content}
    arrays[name] = arrays[name].ravel()[:3]
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="something else"):
        load_gains(path)


def test_hostile_facts_of_a_reference_are_refused(gains, tmp_path):
    path = tmp_path / "gains.npz"
    gains.save(path)
    assert zipfile.is_zipfile(path)
    with np.load(path) as content:
        arrays = {key: content[key] for key in content}
    facts = json.loads(bytes(arrays["facts"]))
    for training in (3, {}, {"people": "x", "covariates": []}, {"people": 5, "covariates": [1]}):
        text = json.dumps(facts | {"training": training}).encode()
        np.savez(path, **(arrays | {"facts": np.frombuffer(text, np.uint8)}))
        with pytest.raises(InputError, match="something else"):
            load_gains(path)
