r"""Figures of held-out predictions of a number, with intervals.

With y the numbers, p what was predicted for people not trained on, and n participants,

.. math:: r = \mathrm{corr}(y, p), \qquad
          R^2 = 1 - \frac{\sum (y - p)^2}{\sum (y - \bar y)^2}, \qquad
          \mathrm{MAE} = \tfrac1n \sum |y - p|.

r says whether predictions and numbers go together, whatever their scale; it is what is tested. R²
is below 0 where always saying the mean would have been closer. The slope of p on y is below 1
where predictions are drawn towards the mean, as those of a weak model are: the difference between
predicted and true number then depends on the true one, and is no measure of health.

The interval of r is Fisher's, :math:`\tanh(\mathrm{artanh}\, r \pm 1.96 / \sqrt{n - 3})`; others
are percentile bootstraps over participants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.evaluate.intervals import (
    NOTHING,
    Resamples,
    Value,
    normal_quantile,
    percentile_interval,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FLAT = 0.02
"""Share of the numbers' spread below which predictions of a fold count as all the same."""


@dataclass(frozen=True, kw_only=True)
class HeldOutNumbers:
    """Held-out predictions of a number by one model under one scheme, or a part of them.

    Parameters
    ----------
    labels : tuple of one str
        The column that is predicted.
    truth, predicted : (n,) arrays
    folds : (n,) array of int
    scans, people, sites : (n,) arrays of str
    """

    labels: tuple[str, ...]
    truth: Floats
    predicted: Floats
    folds: NDArray[np.intp]
    scans: NDArray[np.str_]
    people: NDArray[np.str_]
    sites: NDArray[np.str_]
    classes: None = None

    def __len__(self) -> int:
        return len(self.truth)

    def part(self, chosen: NDArray[np.bool_]) -> HeldOutNumbers:
        """Give some of the scans."""
        names = ("truth", "predicted", "folds", "scans", "people", "sites")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    @property
    def complete(self) -> bool:
        """Whether there is anything to tell: at least two different numbers."""
        return len(np.unique(self.truth)) > 1

    def participants(self) -> int:
        """Count people."""
        return len(np.unique(self.people))

    @property
    def errors(self) -> Floats:
        """Absolute error of each scan: (n,) array."""
        errors: Floats = np.abs(self.predicted - self.truth)
        return errors


def measure_numbers(held_out: HeldOutNumbers, draws: Resamples) -> dict[str, Any]:
    """Figures of some held-out predictions, with intervals.

    What needs numbers that differ has no value where they do not.
    """
    truth, predicted = held_out.truth, held_out.predicted
    errors, weights = held_out.errors, draws.weights
    guess = np.abs(truth - np.median(truth))
    root = percentile_interval(
        float(np.sqrt(np.square(errors).mean())), np.sqrt(draws.means(np.square(errors)))
    )
    return {
        "n_scans": len(held_out),
        "n_participants": held_out.participants(),
        "correlation": _correlation(held_out),
        "r2": _differing(held_out, lambda w: r_squared(truth, predicted, w), weights),
        "mae": percentile_interval(float(errors.mean()), draws.means(errors)),
        "rmse": root,
        "slope": _differing(held_out, lambda w: _slopes(truth, predicted, w), weights),
        "guessing_mae": float(guess.mean()),
    }


def _correlation(held_out: HeldOutNumbers) -> Value:
    if not held_out.complete or np.ptp(held_out.predicted) == 0:
        return NOTHING
    r = float(correlations(held_out.truth[None], held_out.predicted[None])[0, 0])
    return fisher(r, held_out.participants())


def fisher(r: float, people: int) -> Value:
    """Fisher's interval of a correlation; none of three people or fewer.

    Examples
    --------
    >>> interval = fisher(0.5, 28)
    >>> round(interval["low"], 3), round(interval["high"], 3)
    (0.156, 0.736)
    """
    if people < 4:
        return Value(value=r, low=None, high=None, method="fisher")
    centre = np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))
    width = normal_quantile() / np.sqrt(people - 3)
    low, high = np.tanh([centre - width, centre + width])
    return Value(value=r, low=float(low), high=float(high), method="fisher")


def _differing(
    held_out: HeldOutNumbers, statistic: Callable[[Floats], Floats], weights: Floats
) -> Value:
    """Estimate a statistic that needs numbers that differ, with its bootstrap interval."""
    if not held_out.complete:
        return NOTHING
    replicates = statistic(weights)
    value = float(statistic(np.ones((1, len(held_out))))[0])
    return percentile_interval(value, replicates[np.isfinite(replicates)])


def r_squared(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    """R² in each resample: (count, n) weights to (count,) array; NaN where numbers are equal."""
    spread = _variance(truth, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares: Floats = (weights @ np.square(truth - predicted)) / weights.sum(axis=1) / spread
    return np.where(spread > 1e-12 * max(1.0, float(np.square(truth).max())), 1 - shares, np.nan)


def _slopes(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    total = weights.sum(axis=1)
    means = weights @ truth / total, weights @ predicted / total
    covariance = weights @ (truth * predicted) / total - means[0] * means[1]
    spread = _variance(truth, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes: Floats = covariance / np.where(spread > 1e-12, spread, np.nan)
    return slopes


def _variance(values: Floats, weights: Floats) -> Floats:
    total = weights.sum(axis=1)
    centred = values - values.mean()
    squares: Floats = weights @ np.square(centred) / total
    means: Floats = weights @ centred / total
    variance: Floats = squares - np.square(means)
    return variance


def correlations(numbers: Floats, predicted: Floats) -> Floats:
    """Correlation of many models' predictions with many sets of numbers; 0 for a constant one.

    Parameters
    ----------
    numbers : (n_sets, n_scans) array
    predicted : (n_models, n_scans) array

    Returns
    -------
    r : (n_models, n_sets) array
    """
    r: Floats = _standard(predicted) @ _standard(numbers).T
    return r


def _standard(values: Floats) -> Floats:
    centred = values - values.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    scale = np.abs(values).max(axis=1, keepdims=True)
    differ = length > 1e-12 * np.maximum(scale, 1e-300)
    standard: Floats = np.where(differ, centred / np.maximum(length, 1e-300), 0.0)
    return standard


def constant_number(held_out: HeldOutNumbers) -> str | None:
    """Say so where a model gives everybody of a fold the same number; None where it does not.

    Examples
    --------
    >>> names = np.array(["a", "b", "c", "d"])
    >>> flat = HeldOutNumbers(labels=("age",), truth=np.array([50.0, 60, 70, 80]),
    ...                       predicted=np.array([66.0, 66, 64, 64]), folds=np.array([1, 1, 2, 2]),
    ...                       scans=names, people=names, sites=names)
    >>> constant_number(flat)
    'gives everybody in a fold the same number'
    """
    spread = float(held_out.truth.std())
    folds = [held_out.predicted[held_out.folds == fold] for fold in np.unique(held_out.folds)]
    several = [fold for fold in folds if len(fold) > 1]
    if not several or spread == 0:
        return None
    widest = max(float(np.ptp(fold)) for fold in several)
    if widest <= 1e-9 * spread:
        everywhere = float(np.ptp(held_out.predicted)) <= 1e-9 * spread
        return (
            "gives everybody the same number"
            if everywhere
            else "gives everybody in a fold the same number"
        )
    if max(float(fold.std()) for fold in several) < FLAT * spread:
        return "gives everybody nearly the same number"
    return None


def scatter(held_out: HeldOutNumbers) -> dict[str, Any]:
    """Give true and predicted numbers of each scan, as a report can draw them."""
    return {
        "scan": held_out.scans.tolist(),
        "truth": held_out.truth.tolist(),
        "predicted": held_out.predicted.tolist(),
        "fold": held_out.folds.tolist(),
        "site": held_out.sites.tolist(),
    }
