"""Held-out predictions as a table, and the metrics that follow from it alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.learn.cohort.tables import tsv_cell
from bids_gevnet.learn.evaluate.confound_warnings import confound_warnings
from bids_gevnet.learn.evaluate.scoring import CHANCE, NUMBER, evaluate_table
from bids_gevnet.learn.models.calibration import fit_temperature, softmax

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bids_gevnet.learn.cohort.scan_rows import ScanRow

FIXED_COLUMNS = (
    "participant_id",
    "session_id",
    "scan",
    "task",
    "kind",
    "model",
    "scheme",
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
    """Held-out results of one task, model and scheme.

    Parameters
    ----------
    task, title : str
    kind : str
        "network" or "baseline".
    model : str
        Name of the network or of the baseline.
    scheme : str
        "folds" or "leave-site-out".
    labels : tuple of str
        The classes, or the column whose number is predicted.
    rows : tuple of ScanRow
        The scans, all folds together.
    folds : (n,) array of int
        The fold each scan was tested in, or the number of its site.
    outputs : (n, n_labels) array
        Probabilities, of a network calibrated on the other folds; or numbers, in one column.
    temperature : float or None
        Fitted to all folds, for the final model; None for baselines and numbers.
    is_regression : bool
        Whether outputs are numbers.
    """

    task: str
    title: str
    kind: str
    model: str
    scheme: str
    labels: tuple[str, ...]
    rows: tuple[ScanRow, ...]
    folds: NDArray[np.intp]
    outputs: NDArray[np.float64]
    temperature: float | None = None
    is_regression: bool = False

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
        inside = folds == fold
        probabilities[inside] = softmax(
            scores[inside], fit_temperature(scores[~inside], truth[~inside])
        )
    return probabilities, fit_temperature(scores, truth)


def write_predictions(path: Path, results: Sequence[TaskResult]) -> None:
    """Write group_predictions.tsv: one row per held-out scan, task, model and scheme.

    Probabilities and numbers have all their digits: what is computed from the table is exact.
    """
    classes = sorted({_column(result, label) for result in results for label in result.labels})
    lines = [[*FIXED_COLUMNS, *(tsv_cell(name) for name in classes)]]
    for result in results:
        origin = [result.task, result.kind, result.model, result.scheme]
        columns = [_column(result, label) for label in result.labels]
        for row, fold, outputs in zip(result.rows, result.folds, result.outputs, strict=True):
            predicted: object = result.labels[int(outputs.argmax())]
            if result.is_regression:
                predicted = float(outputs[0])
            known = dict(zip(columns, (repr(float(value)) for value in outputs), strict=True))
            cells: list[object] = [f"sub-{row.participant}", row.session and f"ses-{row.session}"]
            cells += [row.scan, *origin, int(fold), row.label, predicted]
            cells += [row.site, row.age, row.sex, row.motion]
            cells += [known.get(name) for name in classes]
            lines.append([tsv_cell(cell) for cell in cells])
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


def _column(result: TaskResult, label: str) -> str:
    return (NUMBER if result.is_regression else CHANCE) + label


def write_headlines(path: Path, content: Mapping[str, Any]) -> None:
    """Write group_headline.tsv: what every task found, as text.

    Parameters
    ----------
    path : Path
    content : mapping
        Of group_metrics.json.
    """
    names = ("level", "sentence", "numbers", "best", "network", "network_adds", "confound")
    lines = [["task", "title", *names]]
    for task in content["tasks"]:
        cells = [task["task"], task["title"], *(task["headline"][name] for name in names)]
        lines.append([tsv_cell(cell) for cell in cells])
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


def write_metrics(
    path: Path, predictions: Path, about: Mapping[str, Any], *, seed: int
) -> dict[str, Any]:
    """Write group_metrics.json; returns its content.

    Parameters
    ----------
    path : Path
    predictions : Path
        group_predictions.tsv, which all figures come from.
    about : mapping
        Facts of the training; warnings about the figures are added to its ``warnings``.
    seed : int
        Of bootstrap and permutations.
    """
    figures = evaluate_table(predictions, seed=seed, unit=str(about.get("unit", "")))
    warnings = [*about.get("warnings", ()), *confound_warnings(figures)]
    content = figures | dict(about) | {"warnings": list(dict.fromkeys(warnings))}
    write_json(path, content)
    return content
