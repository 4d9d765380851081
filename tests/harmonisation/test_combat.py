"""ComBat against the reference implementation, known sites, and what it must not do."""

import contextlib
import io

import numpy as np
import pandas as pd
import pytest

from bids_gevnet.harmonisation.combat import Combat, fit_combat

PEOPLE, FEATURES = 60, 400


def cohort(seed: int = 0) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
    """Values with a site's shift and spread, an effect of diagnosis and one of age."""
    rng = np.random.default_rng(seed)
    sites = [("A", "B", "C")[i % 3] for i in range(PEOPLE)]
    # Diagnoses lean on sites, as they do in clinics.
    groups = ["PD" if rng.uniform() < (0.3, 0.5, 0.8)[i % 3] else "AD" for i in range(PEOPLE)]
    age = rng.uniform(50, 80, PEOPLE)
    values = rng.normal(size=(PEOPLE, FEATURES)) + rng.normal(size=FEATURES)
    values += 0.05 * (age - 65)[:, None]
    values[:, :100] += 1.5 * (np.array(groups) == "PD")[:, None]
    shift, spread = {"A": 0.0, "B": 1.0, "C": -2.0}, {"A": 1.0, "B": 1.4, "C": 0.7}
    for row, site in enumerate(sites):
        values[row] = spread[site] * values[row] + shift[site] + 0.2 * np.sin(np.arange(FEATURES))
    return values, sites, groups, age


def test_estimates_are_those_of_the_reference_implementation() -> None:
    module = pytest.importorskip("neuroCombat", reason="pip install neuroCombat==0.2.12")
    values, sites, groups, age = cohort()
    people = pd.DataFrame({"site": sites, "diagnosis": groups, "age": age})
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = module.neuroCombat(
            values.T, people, "site", categorical_cols=["diagnosis"], continuous_cols=["age"]
        )["estimates"]
        plain = module.neuroCombat(values.T, people[["site"]], "site")["data"].T
    ours = fit_combat(values, sites, groups=groups, covariates={"age": age.tolist()})
    np.testing.assert_allclose(ours.scale**2, theirs["var.pooled"][:, 0], rtol=1e-6)
    np.testing.assert_allclose(ours.shift, theirs["gamma.star"], atol=1e-3)
    np.testing.assert_allclose(ours.spread**2, theirs["delta.star"], rtol=1e-3)
    alone = fit_combat(values, sites)
    np.testing.assert_allclose(harmonise(alone, values, sites), plain, atol=1e-3)


def harmonise(combat: Combat, values: np.ndarray, sites: list[str]) -> np.ndarray:
    return np.stack([combat.apply(row, site) for row, site in zip(values, sites, strict=True)])


def test_new_people_of_a_known_site_are_brought_to_the_others() -> None:
    values, sites, groups, age = cohort()
    combat = fit_combat(values, sites, groups=groups, covariates={"age": age.tolist()})
    new, new_sites, _, _ = cohort(seed=1)
    place = np.array(new_sites)

    def apart(data: np.ndarray) -> float:
        return float(np.ptp([data[place == site, 100:].mean() for site in "ABC"]))

    assert apart(new) > 2.5
    assert apart(harmonise(combat, new, new_sites)) < 0.6  # what 20 people a site leave open
    spreads = [harmonise(combat, new, new_sites)[place == s].std(axis=0).mean() for s in "ABC"]
    assert max(spreads) / min(spreads) < 1.15


def test_the_diagnosis_stays_and_is_not_needed_to_harmonise() -> None:
    values, sites, groups, _ = cohort()
    patients = np.array(groups) == "PD"
    with_model = harmonise(fit_combat(values, sites, groups=groups), values, sites)
    without = harmonise(fit_combat(values, sites), values, sites)

    def effect(data: np.ndarray) -> float:
        affected = data[:, :100].mean(axis=1) - data[:, 100:].mean(axis=1)
        return float(affected[patients].mean() - affected[~patients].mean())

    assert effect(with_model) == pytest.approx(1.5, abs=0.25)
    # A model that does not know of it takes part of the effect away with the site.
    assert effect(with_model) > effect(without) + 0.05


def test_sites_that_cannot_be_compared_stay_as_they_are() -> None:
    values, _, _, _ = cohort()
    sites = ["A"] * 30 + ["B"] * 30
    combat = fit_combat(values, sites, groups=["AD"] * 30 + ["PD"] * 30)
    assert combat.sites == ()
    np.testing.assert_array_equal(harmonise(combat, values, sites), values)
    assert any("cannot be separated" in text for text in combat.warnings)


def test_small_and_unknown_sites_stay_as_they_are_and_small_ones_are_named() -> None:
    values, _, _, _ = cohort()
    sites = ["A"] * 29 + ["B"] * 29 + ["tiny"] * 2
    combat = fit_combat(values, sites)
    assert combat.sites == ("A", "B")
    assert any("tiny" in text for text in combat.warnings)
    for site in ("tiny", "never seen"):
        np.testing.assert_array_equal(combat.apply(values[0], site), values[0])


def test_features_without_variance_do_no_harm() -> None:
    values, sites, _, _ = cohort()
    values[:, :3] = 7.0
    found = harmonise(fit_combat(values, sites), values, sites)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:, :3], 7.0, atol=1e-6)
