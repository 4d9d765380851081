"""Simple models: what they see, what is fitted where, and what they do with gaps."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bids_gevnet.harmonisation.features import log_rish_maps
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.learn.cohort.scan_rows import ScanRow
from bids_gevnet.learn.cohort.store import StoredScan, to_half, write_scan
from bids_gevnet.learn.evaluate.baselines import (
    BASELINES,
    baselines_for,
    fit_predict,
    rish_features_of,
    rish_table,
)
from bids_gevnet.sphere.resampling import distinct_directions

OF_TABLES = {name: baseline for name, baseline in BASELINES.items() if not baseline.maps}
NSIDE = 2
DEGREES = 3  # 0, 2, 4: what 24 points can tell


def facts(n: int = 40, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = {
        "site": rng.choice(["A", "B"], n),
        "source": ["raw"] * n,
        "sex": rng.choice(["F", "M"], n),
        "age": rng.uniform(50, 80, n),
        "motion": rng.uniform(0, 1, n),
    }
    table |= {f"rish{i}": rng.normal(size=n) for i in range(10)}
    return pd.DataFrame(table | columns)


def held_out(name: str, table: pd.DataFrame, truth: np.ndarray) -> np.ndarray:
    half = len(table) // 2
    training, testing = range(half), range(half, len(table))
    return fit_predict(BASELINES[name], table, truth, training, testing, int(truth.max()) + 1)


TRUTH = np.arange(40) % 2


def people(**columns: Any) -> list[ScanRow]:
    known: dict[str, Any] = {"age": 60.0, "sex": "F", "motion": 0.1, "session": None}
    known |= {"label": "AD", "site": "A", "covariates": {}, "image": Path(), "mask": Path()}
    return [ScanRow(participant=str(n), scan=f"sub-{n}", **(known | columns)) for n in range(3)]


def test_age_and_sex_stand_beside_the_network_where_they_are_known() -> None:
    assert "age_sex" in baselines_for(people(), "diagnosis")
    assert "age_sex" in baselines_for(people(age=None), "diagnosis")
    assert "sex" in baselines_for(people(label="60"), "years")
    for nobody in (people(age=None, sex=None), people(age=None, sex=None, label="n/a")):
        assert not {"age", "sex", "age_sex"} & set(baselines_for(nobody, "Dx"))


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        ("site", {"site": np.array(["A", "B"])[TRUTH]}),
        ("source", {"source": np.array(["raw", "QSIPrep 1.0.1"])[TRUTH]}),
        ("motion", {"motion": 0.2 + 0.5 * TRUTH}),
        ("age_sex age", {"age": 60.0 + 9 * TRUTH}),
        ("age_sex sex", {"sex": np.array(["F", "M"])[TRUTH]}),
        ("rish", {"rish7": 1.0 * TRUTH}),
    ],
)
def test_each_sees_its_columns_and_no_others(names: str, columns: dict[str, Any]) -> None:
    table = facts(**columns)
    for other in OF_TABLES:
        right = (held_out(other, table, TRUTH).argmax(axis=1) == TRUTH[20:]).mean()
        assert (right > 0.9) == (other in names.split()), other


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_test_scan_changes_nobody_elses_prediction(name: str) -> None:
    """Imputation, scaling and encoding are fitted to the training scans alone."""
    table = facts()
    before = held_out(name, table, TRUTH)
    changed = table.copy()
    changed.loc[39] = ["elsewhere", "another", "?", 1e6, np.nan, *[1e6] * 10]
    after = held_out(name, changed, TRUTH)
    np.testing.assert_array_equal(before[:-1], after[:-1])
    np.testing.assert_allclose(after.sum(axis=1), 1)


def test_labels_of_test_scans_are_not_looked_at() -> None:
    other = np.r_[TRUTH[:20], 1 - TRUTH[20:]]
    for name in OF_TABLES:
        np.testing.assert_array_equal(
            held_out(name, facts(), TRUTH), held_out(name, facts(), other)
        )


def test_missing_values_are_imputed_and_missing_columns_give_even_chances() -> None:
    gaps = np.where(np.arange(40) % 3 == 0, np.nan, 60.0 + 9 * TRUTH)
    chances = held_out("age_sex", facts(age=gaps, sex=[""] * 40), TRUTH)
    assert np.isfinite(chances).all()
    known = ~np.isnan(gaps[20:])
    assert (chances.argmax(axis=1) == TRUTH[20:])[known].all()
    np.testing.assert_array_equal(held_out("motion", facts(motion=np.nan), TRUTH), 0.5)


def test_unequal_classes_do_not_decide_the_prediction() -> None:
    """With nothing to go by, a class is not preferred for being frequent."""
    truth = np.array(([0] * 4 + [1]) * 8)
    chances = held_out("site", facts(site=["A"] * 40), truth)
    np.testing.assert_allclose(chances, 0.5, atol=1e-3)


def test_class_without_training_scans_gets_no_chance() -> None:
    truth = np.array([0, 1] * 10 + [2] * 20)
    chances = held_out("motion", facts(), truth)
    assert chances.shape == (20, 3)
    assert (chances[:, 2] == 0).all()


def signal(spread: float) -> np.ndarray:
    """One signal everywhere in a cube: (n_voxels, 6 nside^2)."""
    z = distinct_directions(NSIDE)[:, 2]
    return np.tile(0.5 + spread * (1.5 * z**2 - 0.5), (6**3, 1))


def test_features_of_a_signal_of_degrees_0_and_2() -> None:
    """s + a P_2: RISH_0 = 4 pi s^2, RISH_2 = 4 pi a^2 / 5, hence GFA in closed form."""
    maps = log_rish_maps(
        signal(0.2), np.ones((6, 6, 6), bool), voxel_mm=2.0, nside=NSIDE, fwhm_mm=0
    )
    features = rish_features_of(maps, None)
    assert len(features) == 2 * DEGREES + 2
    energies = 4 * np.pi * np.array([0.25, 0.04 / 5])
    np.testing.assert_allclose(features[:2], np.log(energies), atol=1e-4)
    assert features[DEGREES] == pytest.approx(np.sqrt(energies[1] / energies.sum()), abs=1e-4)
    np.testing.assert_allclose(features[DEGREES + 1 :], 0, atol=1e-4)


def test_gains_are_applied_as_in_the_network(tmp_path: Any) -> None:
    """Features of a scan with gains equal those of the harmonised scan; others stay."""
    brain = np.ones((6, 6, 6), bool)
    gains = RishGains(
        gains=np.broadcast_to(np.array([1.1, 0.8, 1.0], np.float32), (1, 6, 6, 6, DEGREES)).copy(),
        sites=("A",),
        degrees=(0, 2, 4),
        nside=NSIDE,
    )
    raw, harmonised = tmp_path / "raw", tmp_path / "harmonised"
    samples = to_half(signal(0.2))
    write_scan(raw, samples, brain, nside=NSIDE, voxel_mm=2.0)
    corrected = to_half(gains.apply(samples, "A", brain))
    write_scan(harmonised, corrected, brain, nside=NSIDE, voxel_mm=2.0)
    chosen = [0, 1, DEGREES]  # degree 4 holds rounding errors only
    found = rish_table([StoredScan(raw)] * 2, ["A", "B"], gains).to_numpy()[:, chosen]
    alone = rish_table([StoredScan(harmonised), StoredScan(raw)], ["A", "B"], None)
    np.testing.assert_allclose(found, alone.to_numpy()[:, chosen], atol=5e-3)
    assert abs(found[0] - found[1]).max() > 0.1


def test_features_of_two_shells_are_those_of_each() -> None:
    maps = np.random.default_rng(0).normal(size=(3, 3, 3, 8))
    both = rish_features_of(maps, None, shells=2)
    apart = [rish_features_of(part, None) for part in np.split(maps, 2, axis=-1)]
    np.testing.assert_array_equal(both, np.concatenate(apart))
    assert not np.allclose(*apart)
