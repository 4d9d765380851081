r"""A regularised linear model on whole maps, fitted in its dual form.

Logistic regression with a quadratic penalty on the weights w of V voxels has its solution in the
span of the n training maps, so with X = U S V^T, the standardised training maps,

.. math:: \min_w \sum_i \ell(y_i, x_i w) + \tfrac1{2C} |w|^2
          \quad\text{is}\quad \min_u \sum_i \ell(y_i, (U S)_i u) + \tfrac1{2C} |u|^2:

n columns in place of V, from the n x n matrix X X^T alone. Where there are more people than voxels
the V x V matrix X^T X gives the same axes, and of more than `MOST_AXES` those of the largest
variance are kept: cost grows with the people and not with their cube. The same holds of ridge
regression, with a squared error as the loss, where a number is predicted. All is fitted to the
training people of a fold: who counts as one person is their mean map at a site, voxels are
standardised by training people, ComBat is fitted to them, and C is chosen by cross-validation
among them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.harmonisation.combat import fit_combat
from bids_gevnet.learn.train.jobs import kept_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.learn.train.jobs import JobScan

    Floats = NDArray[np.float64]
    Maps = NDArray[np.floating[Any]]

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""C to choose from; people have length 1 on average, so 1 is a strong penalty."""

_INNER_FOLDS = 5
_BLOCK = 2**16  # voxels at once

MOST_AXES = 1000
"""Principal axes to fit to, at most; fewer than 1,001 training people have no more than these."""


def predict_from_maps(
    maps: Maps,
    training: Sequence[JobScan],
    testing: Sequence[JobScan],
    *,
    labels: Sequence[str],
    combat: bool = False,
) -> Floats:
    """Fit a voxelwise model to training scans and predict test scans.

    Parameters
    ----------
    maps : (n_training + n_testing, n_voxels) array
        NaN where a scan has no brain.
    training, testing : sequences of JobScan
    labels : sequence of str
        Names of the classes, or of the number that the scans have as `value`.
    combat : bool
        Whether to harmonise sites by ComBat, fitted to the training people.

    Returns
    -------
    outputs : (n_testing, n_classes) array
        Probabilities, 0 for a class that is not among the training scans; or (n_testing, 1)
        numbers.
    """
    people, rows = average_people(maps[: len(training)], training)
    tested = np.array(maps[len(training) :])
    _fill_gaps(rows, tested)
    if combat:
        _harmonise(rows, people, tested, testing, labels)
    train_scores, test_scores = dual_scores(rows, tested)
    names = [person.participant for person in people]
    numbers = [person.value for person in people if person.value is not None]
    if numbers:
        ridge = _choose_ridge(train_scores, np.array(numbers), names)
        return np.asarray(ridge.predict(test_scores), dtype=np.float64)[:, None]
    truth = np.array([person.label for person in people])
    chances = np.zeros((len(testing), len(labels)))
    present = np.unique(truth)
    if len(present) < 2:
        chances[:, present] = 1.0
        return chances
    model = _choose_model(train_scores, truth, names)
    chances[:, model.classes_] = model.predict_proba(test_scores)
    return chances


def average_people(maps: Maps, scans: Sequence[JobScan]) -> tuple[list[JobScan], Maps]:
    """Average the scans of a person that share site and label or number; give one, and the mean.

    Parameters
    ----------
    maps : (n_scans, n_voxels) array
    scans : sequence of JobScan
    """
    units: dict[tuple[str, str, int, float | None], list[int]] = {}
    for number, scan in enumerate(scans):
        key = (scan.participant, scan.site, scan.label, scan.value)
        units.setdefault(key, []).append(number)
    rows = np.empty((len(units), maps.shape[1]), np.float32)
    for row, members in zip(rows, units.values(), strict=True):
        if len(members) == 1:
            row[:] = maps[members[0]]
            continue
        with warnings.catch_warnings():
            # Outside all brains of a person there is no mean.
            warnings.filterwarnings("ignore", message="Mean of empty slice")
            row[:] = np.nanmean(maps[members], axis=0)
    return [scans[members[0]] for members in units.values()], rows


def _fill_gaps(rows: Maps, tested: Maps) -> None:
    """Put the mean over training people where somebody has no brain, in place."""
    for start in range(0, rows.shape[1], _BLOCK):
        part = slice(start, start + _BLOCK)
        mean = np.nan_to_num(np.nanmean(rows[:, part], axis=0, dtype=np.float64))
        for maps in (rows, tested):
            block = maps[:, part]
            maps[:, part] = np.where(np.isfinite(block), block, mean)


def _harmonise(
    rows: Maps,
    people: Sequence[JobScan],
    tested: Maps,
    testing: Sequence[JobScan],
    labels: Sequence[str],
) -> None:
    """Fit ComBat to the training people and apply it to everybody, in place."""
    groups, covariates = kept_apart(people, labels)
    combat = fit_combat(
        rows, [person.site for person in people], groups=groups, covariates=covariates
    )
    for maps, scans in ((rows, people), (tested, testing)):
        for number, scan in enumerate(scans):
            maps[number] = combat.apply(maps[number], scan.site)


def dual_scores(rows: Maps, tested: Maps, *, most_axes: int = MOST_AXES) -> tuple[Floats, Floats]:
    """Coordinates of training and test maps on the training people's principal axes.

    Parameters
    ----------
    rows : (n_people, n_voxels) array
    tested : (n_tested, n_voxels) array
    most_axes : int
        How many axes to keep, those of the largest variance.

    Returns
    -------
    train, test : (n_people, n_axes) and (n_tested, n_axes) arrays
        With the inner products of the maps, standardised by training people and scaled so that
        those have length 1 on average.
    """
    if rows.shape[1] < len(rows):
        return _primal_scores(rows, tested, most_axes)
    gram = np.zeros((len(rows), len(rows)))
    cross = np.zeros((len(tested), len(rows)))
    for start in range(0, rows.shape[1], _BLOCK):
        part = slice(start, start + _BLOCK)
        train, mean, weight = _standardise(rows[:, part])
        gram += train @ train.T
        cross += ((tested[:, part] - mean) * weight) @ train.T
    size = np.trace(gram) / len(rows) or 1.0
    variances, axes = _largest_axes(gram / size, most_axes)
    lengths = np.sqrt(variances)
    return axes * lengths, cross / size @ (axes / lengths)


def _primal_scores(rows: Maps, tested: Maps, most_axes: int) -> tuple[Floats, Floats]:
    """Give the same coordinates from the inner products of voxels, of which there are fewer."""
    train, mean, weight = _standardise(rows)
    size = float(np.square(train).sum()) / len(train) or 1.0
    _, axes = _largest_axes(train.T @ train / size, most_axes)
    axes /= np.sqrt(size)
    return train @ axes, ((tested - mean) * weight) @ axes


def _standardise(maps: Maps) -> tuple[Floats, Floats, Floats]:
    """Standardise voxels over people; give the maps, the means and what they are multiplied by."""
    train = np.asarray(maps, dtype=np.float64)
    mean, spread = train.mean(axis=0), train.std(axis=0)
    weight = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0.0)
    return (train - mean) * weight, mean, weight


def _largest_axes(products: Floats, most: int) -> tuple[Floats, Floats]:
    """Eigenvalues and eigenvectors of a matrix that differ from zero, the largest of them."""
    from scipy.linalg import eigh

    n = len(products)
    if n > most:
        variances, axes = eigh(products, subset_by_index=(n - most, n - 1))
    else:
        variances, axes = np.linalg.eigh(products)
    kept = variances > 1e-8 * max(variances[-1], 1e-12)
    return variances[kept], axes[:, kept]


def _choose_model(scores: Floats, truth: NDArray[np.intp], people: Sequence[str]) -> Any:
    """Fit with the C that predicts other training people best, by log loss."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold

    model = LogisticRegression(class_weight="balanced", max_iter=2000)
    label_of = dict(zip(people, truth.tolist(), strict=True))
    fewest = min(Counter(label_of.values()).values())
    folds = min(_INNER_FOLDS, fewest)
    if folds < 2 or len(set(label_of.values())) < len(np.unique(truth)):
        return model.fit(scores, truth)
    inner = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        # Somebody with two labels may leave an inner fold uneven; it only helps to choose C.
        warnings.simplefilter("ignore", UserWarning)
        search = GridSearchCV(model, {"C": PENALTIES}, scoring="neg_log_loss", cv=inner)
        search.fit(scores, truth, groups=list(people))
    return search.best_estimator_


def _choose_ridge(scores: Floats, numbers: Floats, people: Sequence[str]) -> Any:
    """Fit with the penalty that predicts other training people best, by squared error."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold

    penalties = [1 / strength for strength in PENALTIES]
    folds = min(_INNER_FOLDS, len(set(people)))
    if folds < 2:
        return Ridge(alpha=1.0).fit(scores, numbers)
    search = GridSearchCV(
        Ridge(),
        {"alpha": penalties},
        scoring="neg_mean_squared_error",
        cv=GroupKFold(n_splits=folds, shuffle=True, random_state=0),
    )
    return search.fit(scores, numbers, groups=list(people)).best_estimator_
