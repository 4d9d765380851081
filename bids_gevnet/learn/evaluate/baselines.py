"""What simpler models reach on the same folds: site, motion, age and sex, mean RISH, whole maps.

All are logistic regressions with weights that make classes equally important, as the network's
samples do, or ridge regressions where a number is predicted. Imputation, scaling and encoding are
part of a scikit-learn pipeline that is fitted to the training scans of a fold, so nothing of the
test scans gets in. Those on whole maps are in `voxelwise`.

The RISH features of a scan are, over its brain, mean and standard deviation of the log energy of
each degree and of the generalised anisotropy (of each shell, where there are several)

    GFA = sqrt(1 - RISH_0 / sum_l RISH_l),

the share of the signal's spread over directions (after Tuch 2004). They are read from the maps of
the store (smoothed, as harmonisation uses them) and harmonised with the gains of the fold's
network: on log energies, gain g adds 2 log g.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.learn.cohort.number_checks import to_number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.cohort.scan_rows import ScanRow
    from bids_gevnet.learn.cohort.store import StoredScan

    Floats = NDArray[np.float64]


_RIDGE = (0.1, 1.0, 10.0, 100.0)
"""Penalties to choose from by leaving out one training scan in turn."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """One simple model.

    Parameters
    ----------
    title : str
    about : str
        A sentence for the report.
    confound : bool
        Whether it knows nothing of the brain: the network should do better.
    numbers, words : tuples of str
        Columns it is fitted to; "rish" stands for all RISH features.
    maps : str
        Kind of map a voxelwise model is fitted to, of `voxel_maps.KINDS`; empty for other models.
    combat : bool
        Whether its maps are harmonised by ComBat and not as for the network.
    instead : str
        What a network may have learned instead of the groups, where a confound keeps up with it;
        from the title if empty.
    needs_several : bool
        Whether it is left out where its words are the same for all scans.
    """

    title: str
    about: str
    confound: bool = True
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    maps: str = ""
    combat: bool = False
    instead: str = ""
    needs_several: bool = False

    @property
    def about_number(self) -> str:
        """The sentence for a number that is predicted."""
        words = self.about.replace("Penalised logistic", "Logistic")
        return words.replace("Logistic regression", "Ridge regression", 1)

    @property
    def lesson(self) -> str:
        """What a network may have learned instead of the groups or the number."""
        return self.instead or self.title.removesuffix(" alone").lower()


_MAPS = {"fa": "FA", "md": "MD", "rish": "RISH"}


def _voxelwise(kind: str, *, combat: bool) -> Baseline:
    how = "harmonised by ComBat in the fold" if combat else "harmonised as for the network"
    return Baseline(
        title=f"Voxelwise {_MAPS[kind]}" + (", ComBat" if combat else ""),
        about=f"Penalised logistic regression on maps of {_MAPS[kind]}, {how}.",
        confound=False,
        maps=kind,
        combat=combat,
    )


BASELINES = {
    "site": Baseline(
        title="Site alone",
        about="Logistic regression on the site, one indicator for each.",
        words=("site",),
        instead="the scanner",
    ),
    "motion": Baseline(
        title="Motion alone",
        about="Logistic regression on mean framewise displacement.",
        numbers=("motion",),
        instead="head motion",
    ),
    "age_sex": Baseline(
        title="Age and sex alone",
        about="Logistic regression on age and sex.",
        numbers=("age",),
        words=("sex",),
    ),
    "age": Baseline(
        title="Age alone",
        about="Logistic regression on age.",
        numbers=("age",),
    ),
    "sex": Baseline(
        title="Sex alone",
        about="Logistic regression on sex.",
        words=("sex",),
    ),
    "source": Baseline(
        title="Source alone",
        about="Logistic regression on the pipeline that preprocessed the scan.",
        words=("source",),
        instead="the preprocessing pipeline",
        needs_several=True,
    ),
    "rish": Baseline(
        title="Mean RISH features",
        about=(
            "Logistic regression on mean and standard deviation over the brain of the log energy "
            "of each degree and of the generalised anisotropy, harmonised as for the network."
        ),
        confound=False,
        numbers=("rish",),
    ),
    **{f"voxels_{kind}": _voxelwise(kind, combat=False) for kind in _MAPS},
    **{f"voxels_{kind}_combat": _voxelwise(kind, combat=True) for kind in _MAPS},
}
"""By their name in the column `model` of group_predictions.tsv."""


def baselines_for(rows: Sequence[ScanRow], target: str) -> dict[str, Baseline]:
    """Return the baselines that can say something about a cohort.

    Age and sex stand together, unless one of them is what is predicted, and are left out where
    nobody's are known.

    Parameters
    ----------
    rows : sequence of ScanRow
    target : str
        Column that is predicted.
    """
    mixed = len({row.source for row in rows}) > 1
    of_person = {"age_sex", "age", "sex"}
    if any(row.age is not None or row.sex is not None for row in rows):
        of_person.remove(person_baseline(rows, target))
    return {
        name: baseline
        for name, baseline in BASELINES.items()
        if name not in of_person and (mixed or not baseline.needs_several)
    }


def person_baseline(rows: Sequence[ScanRow], target: str) -> str:
    """Name the baseline of age and sex without what is predicted, whatever its column is called.

    Parameters
    ----------
    rows : sequence of ScanRow
    target : str
    """
    ages = [row.age for row in rows]
    given = bool(rows) and None not in ages
    if target == "age" or (given and ages == [to_number(row.label) for row in rows]):
        return "sex"
    if target == "sex" or (rows and all(row.sex == row.label for row in rows)):
        return "age"
    return "age_sex"


def scan_table(rows: Sequence[ScanRow]) -> pd.DataFrame:
    """Columns site, source, motion, age and sex of each scan; NaN or an empty word if missing."""
    return pd.DataFrame(
        {
            "site": [row.site for row in rows],
            "source": [row.source for row in rows],
            "sex": [row.sex or "" for row in rows],
            "age": np.array([np.nan if row.age is None else row.age for row in rows], float),
            "motion": np.array(
                [np.nan if row.motion is None else row.motion for row in rows], float
            ),
        }
    )


def rish_table(
    scans: Sequence[StoredScan], sites: Sequence[str], gains: RishGains | None
) -> pd.DataFrame:
    """RISH features of each scan, harmonised if there are gains.

    Parameters
    ----------
    scans : sequence of StoredScan
    sites : sequence of str
        Of each scan; one that the gains do not know is left as it is.
    gains : RishGains or None
    """
    features = [
        rish_features_of(scan.log_rish, _log_gains(gains, site), shells=scan.shells)
        for scan, site in zip(scans, sites, strict=True)
    ]
    return pd.DataFrame(features, columns=[f"rish{i}" for i in range(len(features[0]))])


def rish_features_of(
    log_rish: NDArray[np.floating[Any]], log_gains: Floats | None, *, shells: int = 1
) -> Floats:
    """Mean and standard deviation of each degree's log energy and of GFA over the brain.

    Parameters
    ----------
    log_rish : (X, Y, Z, n_shells * n_degrees) array
        NaN away from the brain.
    log_gains : (X, Y, Z, n_shells * n_degrees) array, optional
    shells : int

    Returns
    -------
    features : (n_shells * (2 n_degrees + 2),) array
        Shell after shell.
    """
    inside = np.isfinite(log_rish).all(axis=-1)
    energies = log_rish[inside].astype(np.float64)  # (n_voxels, n_shells * n_degrees)
    if log_gains is not None:
        energies += 2 * log_gains[inside]
    features = []
    for energy in np.split(energies, shells, axis=1):
        ratio = np.exp(energy[:, 0] - np.logaddexp.reduce(energy, axis=1))
        columns = np.column_stack([energy, np.sqrt(np.maximum(1 - ratio, 0))])
        features += [columns.mean(axis=0), columns.std(axis=0)]
    return np.concatenate(features)


def _log_gains(gains: RishGains | None, site: str) -> Floats | None:
    if gains is None or not gains.corrects(site):
        return None
    logs: Floats = np.log(gains.gains[gains.sites.index(site)].astype(np.float64))
    return logs


def read_gains(model_dir: Path) -> RishGains | None:
    """Gains that a model was trained with, if it was."""
    path = model_dir / "harmonisation.npz"
    return load_gains(path) if path.is_file() else None


def fit_predict(
    baseline: Baseline,
    table: pd.DataFrame,
    truth: NDArray[Any],
    training: Sequence[int],
    testing: Sequence[int],
    classes: int | None,
) -> Floats:
    """Fit a baseline to the training scans and predict the others.

    Parameters
    ----------
    baseline : Baseline
    table : DataFrame
        A row per scan, from `scan_table` and `rish_table`.
    truth : (n_scans,) array
        Classes as int, or numbers.
    training, testing : sequences of int
        Rows.
    classes : int or None
        None for numbers.

    Returns
    -------
    outputs : (n_testing, classes) array
        Probabilities, 0 for a class that is not among the training scans; or (n_testing, 1)
        numbers.
    """
    numbers = [
        name
        for name in table.columns
        if name in baseline.numbers or ("rish" in baseline.numbers and name.startswith("rish"))
    ]
    # A column without a single value in training cannot be imputed from it.
    known = [name for name in numbers if table[name].iloc[list(training)].notna().any()]
    labels = truth[list(training)]
    outputs = np.zeros((len(testing), classes or 1))
    if not known and not baseline.words:
        if classes is None:
            outputs[:] = labels.mean()
        else:
            outputs[:, np.unique(labels)] = 1 / len(np.unique(labels))
        return outputs
    model = _pipeline(known, list(baseline.words), number=classes is None)
    columns = table[[*known, *baseline.words]]
    with warnings.catch_warnings():
        # A site that training has not seen has no indicator: that is what should happen.
        warnings.filterwarnings("ignore", message="Found unknown categories", category=UserWarning)
        model.fit(columns.iloc[list(training)], labels)
        if classes is None:
            outputs[:, 0] = model.predict(columns.iloc[list(testing)])
        else:
            outputs[:, model.classes_] = model.predict_proba(columns.iloc[list(testing)])
    return outputs


def _pipeline(numbers: list[str], words: list[str], *, number: bool = False) -> Any:
    """Impute and scale numbers, encode words, regress; all fitted together."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    imputed = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    encoded = OneHotEncoder(handle_unknown="ignore")
    parts = [("numbers", imputed, numbers)] if numbers else []
    parts += [("words", encoded, words)] if words else []
    regression: Any = LogisticRegression(class_weight="balanced", max_iter=1000)
    if number:
        regression = RidgeCV(alphas=_RIDGE)
    return make_pipeline(ColumnTransformer(parts), regression)
