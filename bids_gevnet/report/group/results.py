"""Read the results of the group level from group_metrics.json, as the report shows them.

The file may be of another version or damaged: everything is read piece by piece, and what has
another type than expected counts as missing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.external_headline import EXTERNAL
from bids_gevnet.learn.evaluate.permutation import p_text
from bids_gevnet.settings import DEFAULT_NETWORK

JsonObject = Mapping[str, Any]

MEASURES: Mapping[str, tuple[str, str]] = {
    "balanced_accuracy": ("Balanced accuracy", "mean of the recalls of all classes"),
    "accuracy": ("Accuracy", "share of scans that were right"),
    "roc_auc": ("ROC AUC", "chance that a case is ranked above a non-case"),
    "average_precision": ("Average precision", "area under the precision-recall curve"),
    "brier": ("Brier score", "mean squared error of the probabilities; 0 is best"),
    "log_loss": ("Log loss", "0 is best"),
    "ece": ("Calibration error", "expected; 0 is best"),
    "correlation": ("Correlation", "of true and predicted number; 0 is guessing, 1 is best"),
    "mae": ("Mean absolute error", "how far off predictions are on average"),
    "rmse": ("Root mean square error", "the same, with large errors counting more"),
    "r2": ("R²", "share of the differences that is predicted; below 0 the mean would be closer"),
    "slope": ("Slope", "of predicted on true number; below 1, drawn towards the mean"),
}
"""Measures in the order in which they are shown: name and meaning."""

FOLDS, SITES_OUT = "folds", "leave-site-out"
ADAPTED = "leave-site-out-adapted"

ENOUGH_TO_CALIBRATE = 100
"""Participants from which a calibration curve shows more than noise."""


def as_map(value: Any) -> JsonObject:
    """Give a mapping, empty if the value is something else."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Give a list, empty if the value is something else."""
    return value if isinstance(value, list) else []


def as_number(value: Any) -> float | None:
    """Give a finite number or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def as_numbers(value: Any) -> list[float]:
    """Give numbers, none if one of them is missing."""
    numbers = [as_number(item) for item in as_list(value)]
    return [] if None in numbers else [float(number or 0) for number in numbers]


@dataclass(frozen=True)
class Value:
    """A figure with its interval; any of the three may be missing."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """For a cell of a table."""
        if self.value is None:
            return "–"
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def reach(self) -> float:
        """How far it goes from 0, with its interval."""
        return max((abs(x) for x in (self.value, self.low, self.high) if x is not None), default=0)


def read_value(raw: Any) -> Value:
    """Read a figure, with or without interval."""
    if isinstance(raw, Mapping):
        return Value(*(as_number(raw.get(key)) for key in ("value", "low", "high")))
    return Value(as_number(raw))


def round_up(end: float) -> float:
    """Round the end of a scale up to two digits; 1 for none.

    Examples
    --------
    >>> round_up(18.65), round_up(0.0321), round_up(0.0)
    (19.0, 0.033, 1.0)
    """
    if end <= 0:
        return 1.0
    step = 10.0 ** (math.floor(math.log10(end)) - 1)
    return float(f"{math.ceil(end / step - 1e-9) * step:.2g}")


@dataclass(frozen=True)
class Bar:
    """A row of a table with an interval drawn beside it.

    Attributes
    ----------
    name, note : str
    value : Value
    n : str
        How many scans it rests on.
    kind : str
        "network" or "baseline": sets the colour.
    """

    name: str
    value: Value
    note: str = ""
    n: str = ""
    kind: str = "network"


@dataclass(frozen=True)
class Evaluation:
    """One model under one scheme."""

    pooled: JsonObject
    folds: list[JsonObject]
    sites: list[JsonObject]
    summary: JsonObject
    roc: list[JsonObject]
    pr: list[JsonObject]
    calibration: JsonObject
    permutation: JsonObject
    constant: str = ""
    scatter: JsonObject = field(default_factory=dict)

    @property
    def shows_calibration(self) -> bool:
        """Whether enough people were tested for a calibration curve and its error."""
        return _count(self.pooled.get("n_participants")) >= ENOUGH_TO_CALIBRATE

    def value(self, measure: str) -> Value:
        """Give the pooled figure of a measure."""
        return read_value(self.pooled.get(measure))

    @property
    def rows(self) -> list[tuple[str, str, Value, str]]:
        """Name, meaning, pooled figure and mean over folds of every measure that is there."""
        rows = []
        for key, (name, hint) in MEASURES.items():
            if key in self.pooled and (key != "ece" or self.shows_calibration):
                rows.append((name, hint, self.value(key), _over_folds(self.summary.get(key))))
        return rows

    @property
    def confusion(self) -> list[list[int]]:
        """Rows true, columns predicted; empty if it is not a square of counts."""
        rows = [as_list(row) for row in as_list(self.pooled.get("confusion"))]
        square = all(len(row) == len(rows) for row in rows)
        whole = all(isinstance(n, int) and n >= 0 for row in rows for n in row)
        return rows if square and whole else []

    @property
    def recalls(self) -> list[tuple[str, Value]]:
        """Recall of each class."""
        return [
            (str(entry.get("label", "")), read_value(entry))
            for entry in map(as_map, as_list(self.pooled.get("recall")))
        ]

    def by_fold(self, measure: str = "balanced_accuracy") -> list[Bar]:
        """Give a bar for every fold."""
        return [
            Bar(f"Fold {fold.get('fold')}", read_value(fold.get(measure)), n=_n(fold))
            for fold in self.folds
        ]

    def by_site(self, measure: str = "accuracy") -> list[Bar]:
        """Give a bar for every site."""
        return [
            Bar(str(site.get("site", "")), read_value(site.get(measure)), n=_n(site))
            for site in self.sites
        ]

    def by_left_out_site(self, measure: str = "accuracy") -> list[Bar]:
        """Give a bar for every site that a model was tested on but not trained with."""
        return [
            Bar(str(fold.get("site", "")), read_value(fold.get(measure)), n=_n(fold))
            for fold in self.folds
        ]

    @property
    def chance_text(self) -> str:
        """What the permutation test says."""
        if not self.permutation:
            return ""
        tests = (self.permutation.get(name) for name in ("balanced_accuracy", "correlation"))
        test = next((as_map(entry) for entry in tests if as_map(entry)), {})
        p, n = as_number(test.get("p")), self.permutation.get("n")
        if p is None:
            reason = self.permutation.get("reason")
            return f"not possible: {reason}" if reason else "not possible"
        null, spread = as_number(test.get("null_mean")), as_number(test.get("null_sd"))
        text = f"{p_text(p)}, {n} permutations"
        if null is not None and spread is not None:
            text += f"; shuffled labels reach {null:.2f} ± {spread:.2f}"
        return text


def _over_folds(raw: Any) -> str:
    summary = as_map(raw)
    mean, sd = as_number(summary.get("mean")), as_number(summary.get("sd"))
    if mean is None:
        return "–"
    return f"{mean:.2f}" + (f" ± {sd:.2f}" if sd is not None else "")


def _n(raw: JsonObject) -> str:
    scans, people = raw.get("n_scans"), raw.get("n_participants")
    if not isinstance(scans, int):
        return ""
    return f"{scans}" if scans == people or not isinstance(people, int) else f"{scans} ({people})"


def read_evaluation(raw: Any) -> Evaluation | None:
    """Read the results of one scheme, or nothing."""
    scheme = as_map(raw)
    if not as_map(scheme.get("pooled")):
        return None
    return Evaluation(
        pooled=as_map(scheme.get("pooled")),
        folds=[as_map(entry) for entry in as_list(scheme.get("folds"))],
        sites=[as_map(entry) for entry in as_list(scheme.get("sites"))],
        summary=as_map(scheme.get("fold_summary")),
        roc=[as_map(entry) for entry in as_list(scheme.get("roc"))],
        pr=[as_map(entry) for entry in as_list(scheme.get("pr"))],
        calibration=as_map(scheme.get("calibration")),
        permutation=as_map(scheme.get("permutation")),
        constant=_text(scheme.get("constant")),
        scatter=as_map(scheme.get("scatter")),
    )


@dataclass(frozen=True)
class Headline:
    """What a task found: how good the news is, in a sentence, with a line of numbers."""

    level: str = "note"
    sentence: str = "There are no results of this task."
    numbers: str = ""


def read_headline(raw: Any) -> Headline:
    """Read the headline of a task; that there is none is one, too."""
    entry = as_map(raw)
    sentence, level = _text(entry.get("sentence")), entry.get("level")
    if not sentence or level not in ("good", "warning", "note"):
        return Headline()
    return Headline(str(level), sentence, _text(entry.get("numbers")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class ModelResult:
    """A network or a baseline; `folds` has the results of a finished model that is validated."""

    kind: str
    model: str
    title: str
    about: str
    folds: Evaluation | None
    sites_out: Evaluation | None
    adapted: Evaluation | None = None


@dataclass(frozen=True)
class TaskResult:
    """One problem: classes, or a number.

    Attributes
    ----------
    key : str
        Safe for identifiers in the page.
    headline : Headline
    comparisons : list of Bar
        How much better the network is than each baseline.
    network_pairs : list of (Bar, str)
        How much better a network is than another, and the corrected p-value.
    is_regression : bool
        Whether a number was predicted.
    unit : str
        Of the number, if it is known.
    not_left_out : list of (str, str)
        Sites that no model was trained without, and why.
    adaptations : list of str
        How left-out sites were harmonised from their unlabelled scans, with ``--adapt``.
    """

    key: str
    task: str
    title: str
    labels: tuple[str, ...]
    chance: float | None
    n_scans: int
    n_participants: int
    models: list[ModelResult]
    headline: Headline = field(default_factory=Headline)
    comparisons: list[Bar] = field(default_factory=list)
    network_pairs: list[tuple[Bar, str]] = field(default_factory=list)
    not_left_out: list[tuple[str, str]] = field(default_factory=list)
    adaptations: list[str] = field(default_factory=list)
    is_regression: bool = False
    unit: str = ""

    @property
    def figure(self) -> str:
        """The measure that is tested."""
        return "correlation" if self.is_regression else "balanced_accuracy"

    @property
    def figure_name(self) -> str:
        """The same in words."""
        return self.figure.replace("_", " ")

    @property
    def reach(self) -> float:
        """How far differences to simple models go from 0, at least a little."""
        return round_up(max([bar.value.reach for bar in self.comparisons], default=0.0))

    @property
    def error_reach(self) -> float:
        """How far mean absolute errors of the main network go, over folds and sites."""
        shown = [e for e in (self.main.folds, self.main.sites_out) if e] if self.main else []
        parts = [part for e in shown for part in (*e.folds, *e.sites)]
        return round_up(max((read_value(part.get("mae")).reach for part in parts), default=0.0))

    @property
    def networks(self) -> list[ModelResult]:
        """The networks."""
        return [model for model in self.models if model.kind == "network"]

    @property
    def main(self) -> ModelResult | None:
        """The network that is shown in full: the paper's, or the first."""
        preferred = [m for m in self.networks if m.model == DEFAULT_NETWORK]
        return next(iter(preferred or self.networks), None)

    def chance_p(self, network: str) -> float | None:
        """Permutation test of a network on the folds; None where there is none."""
        evaluation = next((m.folds for m in self.networks if m.model == network), None)
        if evaluation is None:
            return None
        return as_number(as_map(evaluation.permutation.get("balanced_accuracy")).get("p"))

    def beside(self, measure: str) -> list[Bar]:
        """Give a bar for every model, networks first."""
        return [
            Bar(model.title, model.folds.value(measure), _note(model), kind=model.kind)
            for model in self.models
            if model.folds is not None
        ]


def read_results(metrics: JsonObject) -> list[TaskResult]:
    """Read the results of all tasks."""
    about = {
        str(entry.get("model")): str(entry.get("about", ""))
        for entry in map(as_map, as_list(metrics.get("baselines")))
    }
    reasons = [as_map(entry) for entry in as_list(metrics.get("leave_site_out"))]
    adapted = [as_map(entry) for entry in as_list(metrics.get("adapted"))]
    return [
        replace(
            _read_task(number, as_map(raw), about, reasons),
            adaptations=[
                text
                for entry in adapted
                if entry.get("task") == as_map(raw).get("task")
                and (text := _text(entry.get("what")))
            ],
        )
        for number, raw in enumerate(as_list(metrics.get("tasks")), 1)
        if as_map(raw)
    ]


def _read_task(
    number: int, raw: JsonObject, about: Mapping[str, str], reasons: Sequence[JsonObject]
) -> TaskResult:
    models = []
    for entry in map(as_map, as_list(raw.get("models"))):
        schemes = as_map(entry.get("schemes"))
        models.append(
            ModelResult(
                kind=str(entry.get("kind", "")),
                model=str(entry.get("model", "")),
                title=str(entry.get("title") or entry.get("model") or ""),
                about=about.get(str(entry.get("model")), ""),
                folds=read_evaluation(schemes.get(FOLDS) or schemes.get(EXTERNAL)),
                sites_out=read_evaluation(schemes.get(SITES_OUT)),
                adapted=read_evaluation(schemes.get(ADAPTED)),
            )
        )
    result = TaskResult(
        key=f"t{number}",
        task=str(raw.get("task", "")),
        title=str(raw.get("title", "")),
        labels=tuple(str(label) for label in as_list(raw.get("labels"))),
        chance=as_number(raw.get("chance")),
        n_scans=_count(raw.get("n_scans")),
        n_participants=_count(raw.get("n_participants")),
        models=models,
        headline=read_headline(raw.get("headline")),
        is_regression=raw.get("kind") == REGRESSION,
        unit=_text(raw.get("unit")),
        not_left_out=[
            (str(entry.get("site", "")), str(entry.get("reason") or "not run"))
            for entry in reasons
            if entry.get("task") == raw.get("task") and entry.get("run") is not True
        ],
    )
    return _with_comparisons(result, raw)


def _with_comparisons(result: TaskResult, raw: JsonObject) -> TaskResult:
    titles = {model.model: model.title for model in result.models}
    main = result.main
    for entry in map(as_map, as_list(raw.get("network_comparisons"))):
        first, second = (str(entry.get(key)) for key in ("first", "second"))
        name = f"{titles.get(first, first)} minus {titles.get(second, second)}"
        p = as_number(entry.get("p_corrected"))
        bar = Bar(name, _difference(entry))
        result.network_pairs.append((bar, "–" if p is None else p_text(p)))
    for entry in map(as_map, as_list(raw.get("comparisons"))):
        if entry.get("scheme") == FOLDS and main and entry.get("network") == main.model:
            baseline = entry.get("baseline")
            result.comparisons.append(
                Bar(
                    titles.get(str(baseline), str(baseline)),
                    _difference(entry),
                    "a confound" if entry.get("confound") else "",
                    kind="baseline",
                )
            )
    return result


def _difference(entry: JsonObject) -> Value:
    names = ("balanced_accuracy_difference", "error_difference")
    return read_value(next((entry[name] for name in names if name in entry), None))


def _note(model: ModelResult) -> str:
    """Say what a model is and, where it always answers the same, that."""
    constant = model.folds.constant if model.folds else ""
    said = f"{constant[:1].upper()}{constant[1:]}: it has learned nothing." if constant else ""
    return " ".join(text for text in (model.about, said) if text)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
