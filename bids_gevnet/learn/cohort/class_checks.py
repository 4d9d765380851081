"""What an evaluation needs of the classes: clear labels, and enough people of each."""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING

from bids_gevnet.errors import InputError, count_people, name_people
from bids_gevnet.learn.cohort.left_out import name_left_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bids_gevnet.learn.cohort.members import Cohort

_MAX_CLASSES = 20
_MIN_FOLDS = 2
_LEAVE_OUT = "leave the class out with --participants-file or --exclude-participant-label"


def check_classes(cohort: Cohort, folds: int) -> None:
    """Refuse a cohort that cannot be evaluated.

    Parameters
    ----------
    cohort : Cohort
    folds : int
        Every class needs this many participants.
    """
    _require_one_spelling(cohort)
    labels = cohort.labels
    if len(labels) < 2:
        raise InputError(
            expected=f"at least two different values in column {cohort.target}",
            found=f"only {labels[0]!r} ({_name(cohort.people(labels[0]))}){_missing(cohort)}",
            remedy="choose another column with --target, or add participants",
        )
    if len(labels) > _MAX_CLASSES:
        raise InputError(
            expected=f"classes, at most {_MAX_CLASSES}, in column {cohort.target}",
            found=f"{len(labels)} different values",
            remedy="choose a column with categories with --target, or give --task regression if "
            "it holds a number",
        )
    small = {label: people for label in labels if len(people := cohort.people(label)) < folds}
    if small:
        listed = "; ".join(
            f"{len(people)} of {label!r} ({_name(people)})" for label, people in small.items()
        )
        raise InputError(
            expected=f"at least {folds} participants of every class for {folds} folds",
            found=f"{listed}{_missing(cohort)}",
            remedy=_remedy(small),
        )
    _require_one_label_each(cohort)


def same_after_normalising(labels: Iterable[str]) -> list[tuple[str, ...]]:
    """Group labels that are probably one class, spelled in different ways.

    >>> same_after_normalising(["AD", "ad", "PD", "1", "1.0"])
    [('AD', 'ad'), ('1', '1.0')]
    """
    groups: dict[object, list[str]] = defaultdict(list)
    for label in labels:
        groups[_normalised(label)].append(label)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _normalised(label: str) -> object:
    text = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    try:
        number = float(text.replace("_", "?"))
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _require_one_spelling(cohort: Cohort) -> None:
    similar = same_after_normalising(cohort.labels)
    if similar:
        counted = {
            label: f"{label!r} ({count_people(len(cohort.people(label)))})"
            for label in cohort.labels
        }
        named = "; ".join(" and ".join(counted[label] for label in group) for group in similar)
        raise InputError(
            expected=f"one spelling for every class in column {cohort.target}",
            found=f"{named}, which are probably the same",
            remedy="use one spelling in participants.tsv, or clearly different names if they "
            "are different classes",
        )


def _require_one_label_each(cohort: Cohort) -> None:
    labels: dict[str, set[str]] = defaultdict(set)
    for row in cohort.rows:
        labels[row.participant].add(row.label)
    changing = [person for person, several in labels.items() if len(several) > 1]
    if changing:
        raise InputError(
            expected=f"one {cohort.target} per participant",
            found=f"several over the sessions of {_name(changing)}",
            remedy="choose sessions in which it does not change with --session-label, or leave "
            "these participants out with --exclude-participant-label",
        )


def _remedy(small: Mapping[str, Sequence[str]]) -> str:
    fewest = min(map(len, small.values()))
    if fewest >= _MIN_FOLDS:
        return f"lower --folds to {fewest}, or {_LEAVE_OUT}"
    return (
        f"add participants, or {_LEAVE_OUT}: a class of one person cannot be trained on and "
        "tested, whatever --folds is"
    )


def _name(people: Iterable[str]) -> str:
    return name_people(f"sub-{person}" for person in people)


def _missing(cohort: Cohort) -> str:
    """Who was left out: often they are what is missing."""
    lines = name_left_out(cohort.left_out)
    return f"; left out are {'; '.join(lines)}" if lines else ""
