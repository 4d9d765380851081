"""Build the table of participants: one row per scan, with what is known and what was predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from bids_gevnet.report.group.cohort import Measure
from bids_gevnet.report.group.limits import LIMITS
from bids_gevnet.report.group.results import TaskResult
from bids_gevnet.report.group.study_files import CohortScan, Predictions, StudyFiles

_MOST_TASKS = 6
_ROWS_OF_A_PAGE = 100
_SHOWN = ("motion", "snr", "dice")


@dataclass(frozen=True)
class Outcome:
    """Held-out prediction of a scan in one task.

    Attributes
    ----------
    probability : float
        Of the true class; for a number, what was predicted.
    predicted : str
        Class, or by how much a predicted number is above the true one.
    right : bool
        Always, for a number.
    fold : int
    """

    probability: float
    predicted: str
    right: bool
    fold: int


@dataclass(frozen=True)
class PersonRow:
    """A row of the table."""

    scan: CohortScan
    link: str
    label_number: int
    site_number: int
    outcomes: list[Outcome | None]
    measures: list[float | None]
    errors: int
    warnings: int

    @property
    def wrong(self) -> bool:
        """Whether a prediction was wrong."""
        return any(outcome is not None and not outcome.right for outcome in self.outcomes)


@dataclass(frozen=True)
class PeopleTable:
    """Rows, and what the columns are.

    Attributes
    ----------
    tasks : list of (str, str)
        Title of each task and the network that predicted.
    measures : list of Measure
    sessions : bool
        Whether somebody has one.
    most_rows : int
        With more, the table is shown page by page.
    """

    rows: list[PersonRow]
    tasks: list[tuple[str, str]]
    measures: list[Measure]
    sessions: bool
    most_rows: int = LIMITS.rows

    @property
    def is_paged(self) -> bool:
        """Whether the page shows some rows at a time."""
        return len(self.rows) > self.most_rows

    @property
    def first_rows(self) -> list[PersonRow]:
        """Rows that are in the page from the start."""
        return self.rows[: min(self.most_rows, _ROWS_OF_A_PAGE)] if self.is_paged else self.rows


def describe_people(
    study: StudyFiles,
    measures: Sequence[Measure],
    results: Sequence[TaskResult],
    *,
    most_rows: int = LIMITS.rows,
) -> PeopleTable:
    """Put the table together; with more rows than `most_rows` it is shown page by page."""
    chosen = _main_predictions(study, results)[:_MOST_TASKS]
    shown = [measure for measure in measures if measure.key in _SHOWN]
    outcomes = [_outcomes(predictions) for _, predictions in chosen]
    label_numbers = {label: number for number, label in enumerate(study.labels)}
    site_numbers = {site: number for number, site in enumerate(study.sites)}
    rows = []
    for number, scan in enumerate(study.scans):
        levels = [alert.level for alert in scan.alerts]
        rows.append(
            PersonRow(
                scan,
                quote(scan.report),
                label_numbers[scan.label],
                site_numbers[scan.site],
                [of_task.get(scan.scan) for of_task in outcomes],
                [measure.values[number] for measure in shown],
                levels.count("error"),
                levels.count("warning"),
            )
        )
    return PeopleTable(
        rows,
        [(title, predictions.network) for title, predictions in chosen],
        shown,
        any(scan.session for scan in study.scans),
        most_rows,
    )


def _main_predictions(
    study: StudyFiles, results: Sequence[TaskResult]
) -> list[tuple[str, Predictions]]:
    """Predictions of the network that each task shows in full."""
    named = {task.task: task for task in results}
    chosen = []
    for slug in study.tasks:
        of_task = [p for p in study.predictions if p.task == slug]
        task = named.get(slug)
        main = task.main.model if task and task.main else of_task[0].network
        shown = next((p for p in of_task if p.network == main), of_task[0])
        chosen.append((task.title if task else slug, shown))
    return chosen


def _outcomes(predictions: Predictions) -> dict[str, Outcome]:
    outcomes = {}
    if predictions.is_regression:
        columns = (predictions.scans, predictions.truth, predictions.predicted, predictions.folds)
        for name, true, number, part in zip(*columns, strict=True):
            outcomes[name] = Outcome(float(number), f"{number - true:+.3g}", True, int(part))
        return outcomes
    for scan, truth, predicted, fold, chances in zip(
        predictions.scans,
        predictions.truth,
        predictions.predicted,
        predictions.folds,
        predictions.outputs,
        strict=True,
    ):
        outcomes[scan] = Outcome(
            float(chances[truth]),
            predictions.labels[int(predicted)],
            bool(truth == predicted),
            int(fold),
        )
    return outcomes
