"""Read the files that a group report is made of, whatever is missing or broken.

Everything comes from the tables and models that the group level wrote and from the derivatives
of the participant level; nothing is trained or predicted again.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import CONFOUNDS
from bids_gevnet.bids.reading import read_json
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.harmonisation.gains import RishGains, load_gains
from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.external_headline import EXTERNAL
from bids_gevnet.learn.evaluate.scoring import CHANCE, NUMBER
from bids_gevnet.report.alerts import Alert, collect_alerts
from bids_gevnet.report.figures.motion import summarise_motion
from bids_gevnet.report.scan_files import ScanFiles, find_scans, read_table

COHORT_FIXED = (
    "participant_id", "session_id", "scan", "site", "source", "age", "sex",
    "mean_framewise_displacement",
)  # fmt: skip
_FOLD = re.compile(r"fold-(\d+)")


@dataclass(frozen=True)
class CohortScan:
    """One row of group_cohort.tsv, and the files of that scan.

    Attributes
    ----------
    key : str
        Short and safe for identifiers in the page.
    participant, scan, site : str
    label : str
        Class; where a number is predicted, the third of the cohort that the number is in.
    value : float or None
        The number, where one is predicted.
    session, sex : str
        Empty where unknown.
    age, motion : float or None
    files : ScanFiles or None
    alerts : list of Alert
    report : str
        Name of the subject report, empty if there is none.
    """

    key: str
    participant: str
    session: str
    scan: str
    label: str
    site: str
    age: float | None
    sex: str
    motion: float | None
    files: ScanFiles | None = None
    alerts: list[Alert] = field(default_factory=list)
    report: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Predictions:
    """Held-out predictions of one network for one task, all folds, in the order of the table.

    Attributes
    ----------
    task, network : str
    labels : tuple of str
    scans, participants, sites : tuple of str
    truth : (n,) array
        Classes as int, or numbers.
    folds : (n,) array of int
    outputs : (n, n_labels) array
        Probabilities, or numbers in one column.
    """

    task: str
    network: str
    labels: tuple[str, ...]
    scans: tuple[str, ...]
    participants: tuple[str, ...]
    sites: tuple[str, ...]
    truth: npt.NDArray[Any]
    folds: npt.NDArray[np.intp]
    outputs: npt.NDArray[np.float64]

    @property
    def is_regression(self) -> bool:
        """Whether a number was predicted."""
        return len(self.labels) == 1

    @cached_property
    def predicted(self) -> npt.NDArray[Any]:
        """Most probable class of each scan, or its number: (n,) array."""
        return self.outputs[:, 0] if self.is_regression else self.outputs.argmax(axis=1)


@dataclass(frozen=True)
class FoldModel:
    """A model folder: of one fold, or the final one (fold is None)."""

    folder: Path
    task: str
    network: str
    fold: int | None
    card: Mapping[str, Any]

    @cached_property
    def held_out(self) -> dict[str, list[float]]:
        """Scores by scan; empty where there are none."""
        entries = read_json(self.folder / "held_out.json").get("scans", [])
        held_out = {}
        for entry in entries if isinstance(entries, list) else []:
            scores = entry.get("scores") if isinstance(entry, Mapping) else None
            if isinstance(scores, list) and all(isinstance(s, int | float) for s in scores):
                held_out[str(entry.get("scan"))] = [float(value) for value in scores]
        return held_out

    def names(self, key: str) -> list[str]:
        """Give a list of words of the card; empty if it is something else."""
        words = self.card.get(key)
        return [str(word) for word in words] if isinstance(words, list) else []

    @cached_property
    def curve(self) -> dict[str, list[float]]:
        """Columns of the learning curve; NaN where a cell is empty."""
        table = read_table_text(self.folder / "learning_curve.csv", ",")
        names = list(table[0]) if table else []
        return {name: [_float(row[name]) for row in table] for name in names}

    @cached_property
    def gains(self) -> RishGains | None:
        """The harmonisation, if the model has one that can be read."""
        try:
            return load_gains(self.folder / "harmonisation.npz")
        except BidsGevnetError:
            return None


@dataclass(frozen=True)
class StudyFiles:
    """What the group level wrote, read from disk."""

    output_dir: Path
    target: str
    scans: tuple[CohortScan, ...]
    predictions: tuple[Predictions, ...]
    metrics: Mapping[str, Any]
    models: tuple[FoldModel, ...]

    @property
    def external(self) -> Mapping[str, Any]:
        """Facts of a finished model that was validated; empty where models were trained."""
        facts = self.metrics.get("external")
        return facts if isinstance(facts, Mapping) else {}

    # Cached: the page asks for these at every scan.
    @cached_property
    def is_regression(self) -> bool:
        """Whether a number was predicted."""
        return any(scan.value is not None for scan in self.scans)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes, or the thirds of a number, sorted."""
        return tuple(sorted({scan.label for scan in self.scans}))

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites, sorted."""
        return tuple(sorted({scan.site for scan in self.scans}))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Slugs of the tasks in the order of the predictions."""
        return tuple(dict.fromkeys(p.task for p in self.predictions))

    def networks(self, task: str) -> tuple[str, ...]:
        """Networks of a task in the order of the predictions."""
        return tuple(p.network for p in self.predictions if p.task == task)

    def folds_of(self, task: str, network: str) -> list[FoldModel]:
        """Models of a task's folds in their order."""
        models = [m for m in self.models if (m.task, m.network) == (task, network)]
        return sorted((m for m in models if m.fold is not None), key=lambda m: m.fold or 0)

    def final_of(self, task: str, network: str) -> FoldModel | None:
        """Return the model trained on everybody."""
        models = [m for m in self.models if (m.task, m.network) == (task, network)]
        return next((m for m in models if m.fold is None), None)


def read_study(output_dir: Path) -> StudyFiles:
    """Read everything; what cannot be read is left out."""
    metrics = read_json(output_dir / "group_metrics.json")
    table = read_table_text(output_dir / "group_cohort.tsv")
    target = _target(metrics, table)
    return StudyFiles(
        output_dir=output_dir,
        target=target,
        scans=tuple(read_scan_table(output_dir, table, target, numbers=_is_number(metrics))),
        predictions=tuple(_read_predictions(output_dir / "group_predictions.tsv")),
        metrics=metrics,
        models=tuple(_read_models(output_dir / "models")),
    )


def read_table_text(path: Path, delimiter: str = "\t") -> list[dict[str, str]]:
    """Rows of a table as text, "n/a" as nothing; no rows if it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE))
    except (OSError, ValueError, csv.Error):
        return []
    return [
        {key: "" if value in (None, "n/a") else str(value) for key, value in row.items() if key}
        for row in rows
    ]


def _float(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _known(text: str | None) -> float | None:
    value = _float(text)
    return value if math.isfinite(value) else None


def _target(metrics: Mapping[str, Any], table: Sequence[Mapping[str, str]]) -> str:
    named = metrics.get("target")
    columns = list(table[0]) if table else []
    if isinstance(named, str) and named in columns:
        return named
    others = [c for c in columns if c not in COHORT_FIXED and not c.startswith("fold_")]
    return others[0] if others else "diagnosis"


def _is_number(metrics: Mapping[str, Any]) -> bool:
    tasks = metrics.get("tasks")
    kinds = [t.get("kind") for t in tasks if isinstance(t, Mapping)] if tasks else []
    return REGRESSION in kinds


def name_thirds(values: Sequence[float | None]) -> list[str]:
    """Name the third of a cohort that each number is in; names sort as their numbers do.

    Examples
    --------
    >>> name_thirds([50, 60, 70])
    ['lower third, 50 to 50', 'middle third, 60 to 60', 'upper third, 70 to 70']
    """
    known = [value for value in values if value is not None]
    if not known:
        return ["no number"] * len(values)
    edges = np.quantile(known, [1 / 3, 2 / 3])
    places = [None if value is None else int((value > edges).sum()) for value in values]
    spans = {}
    for place in set(places) - {None}:
        inside = [v for v, p in zip(values, places, strict=True) if p == place and v is not None]
        spans[place] = f"{min(inside):g} to {max(inside):g}"
    words = ("lower", "middle", "upper")
    return ["no number" if p is None else f"{words[p]} third, {spans[p]}" for p in places]


def read_scan_table(
    output_dir: Path,
    table: Sequence[Mapping[str, str]],
    target: str,
    *,
    numbers: bool = False,
) -> Iterator[CohortScan]:
    """Find the files of the scans of a table, such as group_cohort.tsv.

    Parameters
    ----------
    output_dir : Path
    table : sequence of mapping
    target : str
        Its column with the class or number.
    numbers : bool
        Whether that is a number: then scans are grouped by thirds of it.
    """
    known: dict[str, dict[str, ScanFiles]] = {}
    values = [_known(row.get(target)) if numbers else None for row in table]
    labels = name_thirds(values) if numbers else [row.get(target, "") for row in table]
    for number, row in enumerate(table, 1):
        participant = row.get("participant_id", "")
        label = participant.removeprefix("sub-")
        # A label from the table becomes a path only if it is one that BIDS allows.
        safe = label.isalnum() and label.isascii()
        if safe and label not in known:
            known[label] = {scan.name: scan for scan in find_scans(output_dir, label)}
        files = known.get(label, {}).get(row.get("scan", ""))
        report = f"sub-{label}.html"
        yield CohortScan(
            key=f"p{number}",
            participant=participant,
            session=row.get("session_id", ""),
            scan=row.get("scan", ""),
            label=labels[number - 1],
            value=values[number - 1],
            site=row.get("site", ""),
            age=_known(row.get("age")),
            sex=row.get("sex", ""),
            motion=_known(row.get("mean_framewise_displacement")),
            files=files,
            alerts=[] if files is None else _alerts(files),
            report=report if safe and (output_dir / report).is_file() else "",
        )


def _alerts(files: ScanFiles) -> list[Alert]:
    confounds = read_table(files.native(CONFOUNDS))
    return collect_alerts(files, None if confounds is None else summarise_motion(confounds))


def _read_predictions(path: Path) -> Iterator[Predictions]:
    rows = read_table_text(path)
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        # Baselines and other schemes are in the metrics; people are looked up in the folds.
        if row.get("kind") == "network" and row.get("scheme") in ("folds", EXTERNAL):
            groups.setdefault((row.get("task", ""), row.get("model", "")), []).append(row)
    for (task, network), members in groups.items():
        columns = [name for name in members[0] if name.startswith((CHANCE, NUMBER))]
        # Classes of other tasks have no probability here.
        used = [name for name in columns if all(_known(row[name]) is not None for row in members)]
        number = len(used) == 1 and used[0].startswith(NUMBER)
        labels = tuple(name.removeprefix(NUMBER if number else CHANCE) for name in used)
        usable = [
            row
            for row in members
            if _known(row.get("fold"))
            and (_known(row.get("label")) is not None if number else row.get("label") in labels)
        ]
        if (len(labels) < 2 and not number) or not usable:
            continue
        truth = [_float(r["label"]) if number else labels.index(r["label"]) for r in usable]
        yield Predictions(
            task=task,
            network=network,
            labels=labels,
            scans=tuple(row.get("scan", "") for row in usable),
            participants=tuple(row.get("participant_id", "") for row in usable),
            sites=tuple(row.get("site", "") for row in usable),
            truth=np.array(truth),
            folds=np.array([int(_float(row["fold"])) for row in usable]),
            outputs=np.array([[_float(row[name]) for name in used] for row in usable]),
        )


def _read_models(models: Path) -> Iterator[FoldModel]:
    for path in sorted(models.glob("**/model.json")):
        folder = path.parent
        fold = _FOLD.fullmatch(folder.name)
        if fold is None and folder.name != "final":
            continue
        try:
            card = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(card, Mapping):
            continue
        yield FoldModel(
            folder=folder,
            task=str(card.get("task", "")),
            network=str(card.get("network", "")),
            fold=int(fold.group(1)) if fold else None,
            card=card,
        )
