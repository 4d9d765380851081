"""What a study predicts: classes that are told apart, or a number.

A task knows its kind. Everything that differs between the two asks for it in one place each: the
loss (`learn.train.objectives`), the samples (`learn.train.mixup`), folds (`folds`), simple models
(`learn.evaluate.baselines`), measures and tests (`learn.evaluate.yardsticks`) and the words of
the first sentence (`learn.evaluate.wording`).

Folders are named so that no label can misuse them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bids_gevnet.settings import Classes

Kind = Literal["classification", "regression"]
CLASSIFICATION: Kind = "classification"
REGRESSION: Kind = "regression"

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_MAX_SLUG = 24
_PAIRED_CLASSES = 5
"""With more classes than this, all at once: the number of pairs grows with the square."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: to tell classes apart, or to predict a number.

    Parameters
    ----------
    labels : tuple of str
        What the network's outputs are, in their order: the classes, or the one column whose
        number is predicted.
    kind : {"classification", "regression"}
    """

    labels: tuple[str, ...]
    kind: Kind = CLASSIFICATION

    @property
    def title(self) -> str:
        """For people: "AD v. DLB", "age"; any character a label may have, so escape it in HTML."""
        return " v. ".join(self.labels)

    @property
    def slug(self) -> str:
        """For folders: letters, digits and hyphens only."""
        return "-v-".join(slug(label) for label in self.labels)

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted."""
        return self.kind == REGRESSION

    def includes(self, label: str) -> bool:
        """Whether somebody with this label, or this number, is part of the problem."""
        return self.is_regression or label in self.labels

    def output(self, label: str) -> int:
        """Which of the network's outputs stands for a label; the only one for a number."""
        return 0 if self.is_regression else self.labels.index(label)


def slug(text: str) -> str:
    """Turn any text into a short name of letters and digits; different texts stay different.

    >>> slug("AD")
    'AD'
    >>> slug("../AD")
    'AD-4961'
    """
    plain = _UNSAFE.sub("", text)[:_MAX_SLUG]
    if plain and plain == text:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:4]
    return f"{plain}-{digest}" if plain else digest


def make_tasks(labels: Iterable[str], *, pairs: bool = True) -> tuple[Task, ...]:
    """List the problems: all pairs of labels, or all classes at once.

    >>> [task.title for task in make_tasks(["PD", "AD", "DLB"])]
    ['AD v. DLB', 'AD v. PD', 'DLB v. PD']
    """
    names = sorted(set(labels))
    if pairs:
        return tuple(Task(pair) for pair in combinations(names, 2))
    return (Task(tuple(names)),)


def choose_tasks(
    labels: Iterable[str], classes: Classes
) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """List the problems that `--classes` asks for, and what there is to say about it.

    Parameters
    ----------
    labels : iterable of str
    classes : str
        "pairs" or "all".

    Returns
    -------
    tasks : tuple of Task
    warnings : tuple of str
    """
    names = set(labels)
    if classes == "pairs" and len(names) > _PAIRED_CLASSES:
        text = (
            f"{len(names)} labels make {len(names) * (len(names) - 1) // 2} pairs: they are told "
            "apart all at once instead."
        )
        return make_tasks(names, pairs=False), (text,)
    return make_tasks(names, pairs=classes == "pairs"), ()
