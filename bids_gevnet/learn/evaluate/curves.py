"""Curves of held-out predictions, as numbers that a report can draw as they are.

With two classes there is one ROC and one precision-recall curve, of the second class; with more,
one for each class against the others. A fold without both sides of a curve has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.evaluate.intervals import wilson

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

GRID = np.linspace(0, 1, 101)
"""False positive rates at which the folds' ROC curves are averaged."""

BINS = 10
"""Reliability bins of equal width."""

MOST_POINTS = 500
"""Points of a curve that are written, at most: a picture shows no more, and areas are of all."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Held-out predictions of one task, model and scheme, or of a part of them.

    Parameters
    ----------
    labels : tuple of str
    truth : (n,) array of int
    probabilities : (n, n_classes) array
    folds : (n,) array of int
    scans, people, sites : (n,) arrays of str
    """

    labels: tuple[str, ...]
    truth: NDArray[np.intp]
    probabilities: Floats
    folds: NDArray[np.intp]
    scans: NDArray[np.str_]
    people: NDArray[np.str_]
    sites: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.truth)

    def part(self, chosen: NDArray[np.bool_]) -> HeldOut:
        """Give some of the scans."""
        return HeldOut(
            labels=self.labels,
            truth=self.truth[chosen],
            probabilities=self.probabilities[chosen],
            folds=self.folds[chosen],
            scans=self.scans[chosen],
            people=self.people[chosen],
            sites=self.sites[chosen],
        )

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def predicted(self) -> NDArray[np.intp]:
        """Most probable class of each scan: (n,) array."""
        most: NDArray[np.intp] = self.probabilities.argmax(axis=1)
        return most

    @property
    def complete(self) -> bool:
        """Whether every class is there."""
        return len(np.unique(self.truth)) == len(self.labels)

    def participants(self, label: int | None = None) -> int:
        """Count people, of one class if it is given."""
        people = self.people if label is None else self.people[self.truth == label]
        return len(np.unique(people))

    def sides(self) -> Iterator[tuple[str, NDArray[np.bool_], Floats]]:
        """Name, truth and probability of each class that has curves."""
        for k, label in enumerate(self.labels):
            if k > 0 or len(self.labels) > 2:
                yield label, self.truth == k, self.probabilities[:, k]


def constant_answer(held_out: HeldOut) -> str | None:
    """Say so where a model gives everybody the same answer; None where it does not.

    Examples
    --------
    >>> names = np.array(["a", "b"])
    >>> same = HeldOut(labels=("AD", "PD"), truth=np.array([0, 1]), folds=np.array([1, 2]),
    ...                probabilities=np.array([[0.4, 0.6], [0.3, 0.7]]), scans=names,
    ...                people=names, sites=names)
    >>> constant_answer(same)
    'always answers PD'
    """
    answers = np.unique(held_out.predicted)
    if len(answers) == 1 and len(held_out) > 1:
        return f"always answers {held_out.labels[answers[0]]}"
    folds = [held_out.predicted[held_out.folds == fold] for fold in np.unique(held_out.folds)]
    if all(len(np.unique(fold)) == 1 for fold in folds) and any(len(fold) > 1 for fold in folds):
        return "gives everybody in a fold the same answer"
    return None


def roc_curves(held_out: HeldOut) -> list[dict[str, Any]]:
    """ROC curves: each fold's, their mean with a band of one standard deviation, and pooled."""
    from sklearn.metrics import auc, roc_curve

    entries = []
    for label, truth, chance in held_out.sides():
        folds, heights = [], []
        for fold, inside in _both_sides(held_out.folds, truth):
            fpr, tpr, _ = roc_curve(truth[inside], chance[inside])
            area = float(auc(fpr, tpr))
            shown = thin_curve(fpr, tpr)
            folds.append({"fold": fold, "fpr": shown[0], "tpr": shown[1], "auc": area})
            height = np.interp(GRID, fpr, tpr)
            height[0] = 0.0
            heights.append(height)
        entry: dict[str, Any] = {"positive": label, "grid": _list(GRID)}
        entry |= _band(heights) | {"folds": folds, "pooled": None}
        if 0 < truth.sum() < len(truth):
            fpr, tpr, _ = roc_curve(truth, chance)
            area = float(auc(fpr, tpr))
            shown = thin_curve(fpr, tpr)
            entry["pooled"] = {"fpr": shown[0], "tpr": shown[1], "auc": area}
        entries.append(entry)
    return entries


def pr_curves(held_out: HeldOut) -> list[dict[str, Any]]:
    """Precision-recall curves: each fold's, and pooled."""
    from sklearn.metrics import average_precision_score, precision_recall_curve

    def curve(truth: NDArray[np.bool_], chance: Floats) -> dict[str, Any]:
        precision, recall, _ = precision_recall_curve(truth, chance, drop_intermediate=True)
        shown = thin_curve(recall, precision)
        return {
            "recall": shown[0],
            "precision": shown[1],
            "average_precision": float(average_precision_score(truth, chance)),
        }

    entries = []
    for label, truth, chance in held_out.sides():
        folds = [
            {"fold": fold} | curve(truth[inside], chance[inside])
            for fold, inside in _both_sides(held_out.folds, truth)
        ]
        pooled = curve(truth, chance) if 0 < truth.sum() < len(truth) else None
        prevalence = float(truth.mean())
        entries.append(
            {"positive": label, "prevalence": prevalence, "folds": folds, "pooled": pooled}
        )
    return entries


def reliability(held_out: HeldOut) -> dict[str, Any]:
    """Reliability bins and the expected calibration error.

    With two classes, the probability of the second against how often it was right; with more, the
    probability of the most probable class.
    """
    outcome, chance, of = calibrated_event(held_out)
    number = _bin(chance)
    bins = []
    for k in np.unique(number):
        inside = number == k
        people = len(np.unique(held_out.people[inside]))
        bins.append(
            {
                "low": float(k / BINS),
                "high": float((k + 1) / BINS),
                "n": int(inside.sum()),
                "predicted": float(chance[inside].mean()),
                "observed": wilson(float(outcome[inside].mean()), people),
            }
        )
    error = float(np.abs(calibration_gaps(outcome, chance).sum(axis=0)).sum() / len(chance))
    return {"of": of, "bins": bins, "ece": error}


def calibrated_event(held_out: HeldOut) -> tuple[NDArray[np.bool_], Floats, str]:
    """Say what the bins are about: whether it happened, its probability, its name."""
    if len(held_out.labels) == 2:
        return held_out.truth == 1, held_out.probabilities[:, 1], held_out.labels[1]
    right = held_out.predicted == held_out.truth
    return right, held_out.probabilities.max(axis=1), "most probable class"


def calibration_gaps(outcome: NDArray[np.bool_], chance: Floats) -> Floats:
    """Observed minus predicted of each scan, in the column of its bin.

    Parameters
    ----------
    outcome, chance : (n,) arrays

    Returns
    -------
    gaps : (n, BINS) array
        The expected calibration error is sum |weights @ gaps| / sum weights.
    """
    gaps = np.zeros((len(chance), BINS))
    gaps[np.arange(len(chance)), _bin(chance)] = outcome - chance
    return gaps


def _bin(chance: Floats) -> NDArray[np.intp]:
    return np.minimum((chance * BINS).astype(np.intp), BINS - 1)


def _both_sides(
    folds: NDArray[np.intp], truth: NDArray[np.bool_]
) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    for fold in np.unique(folds):
        inside = folds == fold
        if 0 < truth[inside].sum() < inside.sum():
            yield int(fold), inside


def _band(heights: Sequence[Floats]) -> dict[str, list[float] | None]:
    if not heights:
        return {"mean": None, "low": None, "high": None}
    mean = np.mean(heights, axis=0)
    mean[-1] = 1.0
    spread = np.std(heights, axis=0)
    return {
        "mean": _list(mean),
        "low": _list(np.maximum(mean - spread, 0)),
        "high": _list(np.minimum(mean + spread, 1)),
    }


def thin_curve(*columns: Floats, most: int = MOST_POINTS) -> list[list[float]]:
    """Keep so many points of a curve at equal steps, its ends among them; all of a short one.

    Examples
    --------
    >>> thin_curve(np.arange(5.0), np.arange(5.0) ** 2, most=3)
    [[0.0, 2.0, 4.0], [0.0, 4.0, 16.0]]
    """
    n = len(columns[0])
    kept = np.rint(np.linspace(0, n - 1, min(most, n))).astype(np.intp)
    return [_list(column[kept]) for column in columns]


def _list(values: NDArray[np.floating[Any]]) -> list[float]:
    return [float(value) for value in values]
