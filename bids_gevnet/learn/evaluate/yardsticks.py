"""How predictions are judged, by the kind of task: of classes, or of a number.

Whatever differs between the two kinds in measuring, testing and comparing is a method here; the
tests themselves (`permutation`), the contest of models (`contest`) and the headline are the same.
Classes are judged by their balanced accuracy. A number is judged by its correlation with what was
predicted, and two models by how far they were off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION, Kind
from bids_gevnet.learn.evaluate.curves import (
    HeldOut,
    constant_answer,
    pr_curves,
    reliability,
    roc_curves,
)
from bids_gevnet.learn.evaluate.intervals import (
    NOTHING,
    Resamples,
    Value,
    mover_mean,
    paired_difference,
    percentile_interval,
)
from bids_gevnet.learn.evaluate.measures import measure
from bids_gevnet.learn.evaluate.number_scores import (
    HeldOutNumbers,
    constant_number,
    measure_numbers,
    scatter,
)
from bids_gevnet.learn.evaluate.permutation import swap_gains, swap_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.learn.evaluate.intervals import Floats

_PAIRED_DRAWS = 2000


class Yardstick(ABC):
    """How one kind of prediction is measured, tested and compared.

    Attributes
    ----------
    kind : {"classification", "regression"}
    figure, name : str
        The measure that is tested, in group_metrics.json and in words.
    difference : str
        What the difference of two models is called in group_metrics.json.
    summed : tuple of str
        Measures whose mean over folds is given.
    sign : int
        1 if more of what models are chosen by is better, -1 if less is.
    """

    kind: ClassVar[Kind]
    figure: ClassVar[str]
    name: ClassVar[str]
    difference: ClassVar[str]
    summed: ClassVar[tuple[str, ...]]
    sign: ClassVar[int] = 1

    @abstractmethod
    def chance(self, labels: Sequence[str]) -> float:
        """Figure of guessing."""

    @abstractmethod
    def draw(self, held_out: Any, *, count: int, seed: int) -> Resamples:
        """Draw participants with replacement."""

    @abstractmethod
    def measure(self, held_out: Any, draws: Resamples) -> dict[str, Any]:
        """Give all measures, with intervals."""

    @abstractmethod
    def curves(self, held_out: Any) -> dict[str, Any]:
        """Give what a report draws."""

    @abstractmethod
    def constant(self, held_out: Any) -> str | None:
        """Say so where a model has learned nothing but one answer."""

    @abstractmethod
    def compare(self, first: Any, second: Any) -> Value:
        """Say how much better one model is than another on the same scans; above 0, it is."""

    @abstractmethod
    def swap(
        self, first: Any, others: Sequence[Any], *, count: int, seed: int
    ) -> tuple[Floats, Floats]:
        """Test a model against others on the same scans, as `permutation.swap_test`."""

    @abstractmethod
    def merits(self, held_outs: Sequence[Any], weights: Floats) -> Floats:
        """Give what models are chosen by, in weighted samples: (n_samples, n_models) array."""


class _Classes(Yardstick):
    kind = CLASSIFICATION
    figure = "balanced_accuracy"
    name = "balanced accuracy"
    difference = "balanced_accuracy_difference"
    summed = (
        "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "brier", "log_loss",
    )  # fmt: skip

    def chance(self, labels: Sequence[str]) -> float:
        return 1 / len(labels)

    def draw(self, held_out: HeldOut, *, count: int, seed: int) -> Resamples:
        return Resamples(list(held_out.people), held_out.truth.tolist(), count=count, seed=seed)

    def measure(self, held_out: HeldOut, draws: Resamples) -> dict[str, Any]:
        return measure(held_out, draws)

    def curves(self, held_out: HeldOut) -> dict[str, Any]:
        return {
            "roc": roc_curves(held_out),
            "pr": pr_curves(held_out),
            "calibration": reliability(held_out),
        }

    def constant(self, held_out: HeldOut) -> str | None:
        return constant_answer(held_out)

    def compare(self, first: HeldOut, second: HeldOut) -> Value:
        parts = []
        for k in range(len(first.labels)):
            is_class = first.truth == k
            right = (first.predicted[is_class] == k, second.predicted[is_class] == k)
            parts.append(paired_difference(*right, first.participants(k)))
        return mover_mean(parts, method="mover_paired")

    def swap(
        self, first: HeldOut, others: Sequence[HeldOut], *, count: int, seed: int
    ) -> tuple[Floats, Floats]:
        return swap_test(
            first.predicted == first.truth,
            np.stack([other.predicted == other.truth for other in others]),
            first.truth,
            list(first.people),
            count=count,
            seed=seed,
        )

    def merits(self, held_outs: Sequence[HeldOut], weights: Floats) -> Floats:
        """Balanced accuracy."""
        first = held_outs[0]
        total: Floats = np.zeros((len(weights), len(held_outs)))
        for k in range(len(first.labels)):
            is_class = first.truth == k
            right = np.stack([is_class & (model.predicted == k) for model in held_outs], axis=1)
            with np.errstate(invalid="ignore"):
                total += (weights @ right) / (weights @ is_class)[:, None]
        return total / len(first.labels)


class _Numbers(Yardstick):
    kind = REGRESSION
    figure = "correlation"
    name = "correlation"
    difference = "error_difference"
    summed = ("correlation", "r2", "mae", "rmse")
    sign = -1

    def chance(self, labels: Sequence[str]) -> float:  # noqa: ARG002 - the same for all
        return 0.0

    def draw(self, held_out: HeldOutNumbers, *, count: int, seed: int) -> Resamples:
        return Resamples(list(held_out.people), [""] * len(held_out), count=count, seed=seed)

    def measure(self, held_out: HeldOutNumbers, draws: Resamples) -> dict[str, Any]:
        return measure_numbers(held_out, draws)

    def curves(self, held_out: HeldOutNumbers) -> dict[str, Any]:
        return {"scatter": scatter(held_out)}

    def constant(self, held_out: HeldOutNumbers) -> str | None:
        return constant_number(held_out)

    def compare(self, first: HeldOutNumbers, second: HeldOutNumbers) -> Value:
        """Mean absolute error of the second less that of the first, with a paired bootstrap."""
        gains = second.errors - first.errors
        draws = self.draw(first, count=_PAIRED_DRAWS, seed=0)
        value = percentile_interval(float(gains.mean()), draws.means(gains))
        return Value(**(value | {"method": "bootstrap_paired"}))

    def swap(
        self, first: HeldOutNumbers, others: Sequence[HeldOutNumbers], *, count: int, seed: int
    ) -> tuple[Floats, Floats]:
        gains = np.stack([other.errors - first.errors for other in others])
        return swap_gains(gains, list(first.people), count=count, seed=seed)

    def merits(self, held_outs: Sequence[HeldOutNumbers], weights: Floats) -> Floats:
        """Mean absolute error."""
        errors = np.stack([model.errors for model in held_outs], axis=1)
        with np.errstate(invalid="ignore"):
            means: Floats = weights @ errors / weights.sum(axis=1)[:, None]
        return means


OF_CLASSES, OF_NUMBERS = _Classes(), _Numbers()


def yardstick_of(held_out: HeldOut | HeldOutNumbers) -> Yardstick:
    """Choose the yardstick for some predictions."""
    return OF_NUMBERS if isinstance(held_out, HeldOutNumbers) else OF_CLASSES


def compare(first: HeldOut | HeldOutNumbers, second: HeldOut | HeldOutNumbers) -> Value:
    """Say how much better one model is than another; nothing where their scans differ."""
    if not np.array_equal(first.scans, second.scans):
        return NOTHING
    return yardstick_of(first).compare(first, second)
