"""Held-out predictions of all folds as a table, and the metrics that follow from it alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.learn.calibration import fit_temperature, softmax
from bids_gevnet.learn.tables import tsv_cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bids_gevnet.learn.scan_facts import ScanRow

_FIXED = (
    "participant_id",
    "session_id",
    "scan",
    "task",
    "network",
    "fold",
    "label",
    "predicted",
    "site",
    "age",
    "sex",
    "motion",
)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Held-out results of one task and network.

    Parameters
    ----------
    task, title, network : str
    labels : tuple of str
    rows : tuple of ScanRow
        The scans, all folds together.
    folds : (n,) array of int
        The fold each scan was tested in.
    probabilities : (n, n_classes) array
        Calibrated on the other folds.
    temperature : float
        Fitted to all folds, for the final model.
    """

    task: str
    title: str
    network: str
    labels: tuple[str, ...]
    rows: tuple[ScanRow, ...]
    folds: NDArray[np.intp]
    probabilities: NDArray[np.float64]
    temperature: float

    @property
    def truth(self) -> NDArray[np.intp]:
        """Class of each scan: (n,) array."""
        return np.array([self.labels.index(row.label) for row in self.rows])


def calibrate(
    scores: NDArray[np.float64], truth: NDArray[np.intp], folds: NDArray[np.intp]
) -> tuple[NDArray[np.float64], float]:
    """Probabilities of every fold with the temperature of the others, and that of all.

    Parameters
    ----------
    scores : (n, n_classes) array
    truth, folds : (n,) arrays of int

    Returns
    -------
    probabilities : (n, n_classes) array
    temperature : float
    """
    probabilities = np.empty_like(scores)
    for fold in np.unique(folds):
        own = folds == fold
        probabilities[own] = softmax(scores[own], fit_temperature(scores[~own], truth[~own]))
    return probabilities, fit_temperature(scores, truth)


def write_predictions(path: Path, results: Sequence[TaskResult]) -> None:
    """Write group_predictions.tsv: one row per held-out scan, task and network."""
    classes = sorted({label for result in results for label in result.labels})
    lines = [[*_FIXED, *(tsv_cell(f"prob_{label}") for label in classes)]]
    for result in results:
        for row, fold, chances in zip(
            result.rows, result.folds, result.probabilities, strict=True
        ):
            predicted = result.labels[int(chances.argmax())]
            known = dict(zip(result.labels, map(float, chances), strict=True))
            cells: list[object] = [f"sub-{row.participant}", row.session and f"ses-{row.session}"]
            cells += [row.scan, result.task, result.network, int(fold), row.label, predicted]
            cells += [row.site, row.age, row.sex, row.motion]
            cells += [known.get(label) for label in classes]
            lines.append([tsv_cell(cell) for cell in cells])
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


def write_metrics(
    path: Path, results: Sequence[TaskResult], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write group_metrics.json; returns its content."""
    content = dict(about) | {
        "tasks": [
            {
                "task": result.task,
                "title": result.title,
                "network": result.network,
                "labels": list(result.labels),
                "temperature": result.temperature,
                "pooled": metrics(result.truth, result.probabilities),
                "folds": [
                    {"fold": int(fold)}
                    | metrics(
                        result.truth[result.folds == fold],
                        result.probabilities[result.folds == fold],
                    )
                    for fold in np.unique(result.folds)
                ],
            }
            for result in results
        ]
    }
    write_json(path, content)
    return content


def metrics(truth: NDArray[np.intp], probabilities: NDArray[np.float64]) -> dict[str, Any]:
    """Accuracy, balanced accuracy, ROC AUC, log loss, Brier score and confusion.

    Parameters
    ----------
    truth : (n,) array of int
    probabilities : (n, n_classes) array

    Returns
    -------
    metrics : dict
        The area under the curve is None where not all classes are present; with more than two
        classes it is the mean over one class against the others.
    """
    from sklearn import metrics as measure

    classes = np.arange(probabilities.shape[1])
    predicted = probabilities.argmax(axis=1)
    recalls = measure.recall_score(truth, predicted, labels=np.unique(truth), average="macro")
    area = None
    if len(np.unique(truth)) == len(classes):
        two = len(classes) == 2
        area = float(
            measure.roc_auc_score(truth, probabilities[:, 1])
            if two
            else measure.roc_auc_score(truth, probabilities, multi_class="ovr", labels=classes)
        )
    one_hot = np.eye(len(classes))[truth]
    return {
        "n": len(truth),
        "accuracy": float(measure.accuracy_score(truth, predicted)),
        "balanced_accuracy": float(recalls),
        "roc_auc": area,
        "log_loss": float(measure.log_loss(truth, probabilities, labels=classes)),
        "brier": float(np.square(probabilities - one_hot).sum(axis=1).mean()),
        "confusion": measure.confusion_matrix(truth, predicted, labels=classes).tolist(),
    }
