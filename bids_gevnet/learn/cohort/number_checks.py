"""Whether a column holds classes or a number, and what an evaluation needs of a number."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from bids_gevnet.bids.reading import read_json
from bids_gevnet.errors import InputError, name_people
from bids_gevnet.learn.cohort.left_out import name_left_out
from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.settings import TaskKind

_MANY = 10
"""More different numbers than this are no codes of classes."""

_SEVERAL, _FEW_PEOPLE = 5, 3
"""More numbers than the first, with fewer people each than the second, are none either."""

_NAMED = 4  # entries that are no numbers, named in an error


def to_number(text: str) -> float | None:
    """Read a finite number; None for anything else.

    >>> to_number("63.5"), to_number("89+"), to_number("inf"), to_number("1_000")
    (63.5, None, None, None)
    """
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def guess_kind(labels: Mapping[str, str]) -> Kind:
    """Guess from the entries of a column whether it holds classes or a number.

    Entries that are no numbers do not make a column of ages one of classes: where most entries
    are different numbers the others are mistakes, and `check_numbers` says so.

    Parameters
    ----------
    labels : mapping
        Participant to entry.

    Examples
    --------
    >>> guess_kind({str(i): str(60 + i / 2) for i in range(12)})
    'regression'
    >>> guess_kind({str(i): str(i % 4) for i in range(12)})
    'classification'
    """
    numbers = [number for text in labels.values() if (number := to_number(text)) is not None]
    if 2 * len(numbers) <= len(labels):
        return CLASSIFICATION
    values = len(set(numbers))
    many = values > _MANY or (values > _SEVERAL and len(numbers) < _FEW_PEOPLE * values)
    return REGRESSION if many else CLASSIFICATION


def describe_guess(column: str, labels: Mapping[str, str]) -> str:
    """Say that a column was taken for a number, and how to have it otherwise."""
    values = len({to_number(text) for text in labels.values()})
    return (
        f"{column} has {values} different numbers, so it is predicted as a number (regression); "
        "--task classification tells its values apart as classes instead."
    )


def choose_kind(task: TaskKind, column: str, labels: Mapping[str, str]) -> tuple[Kind, str]:
    """Decide what a column is, as asked for or by its entries; give what there is to say.

    Parameters
    ----------
    task : {"auto", "classification", "regression"}
    column : str
    labels : mapping
        Participant to entry.
    """
    if task != "auto":
        return task, ""
    kind = guess_kind(labels)
    return kind, describe_guess(column, labels) if kind == REGRESSION else ""


def check_numbers(cohort: Cohort, folds: int) -> None:
    """Refuse a cohort whose number cannot be predicted and evaluated.

    Parameters
    ----------
    cohort : Cohort
    folds : int
        At least this many participants are needed.
    """
    _require_numbers(cohort)
    people: dict[str, list[float]] = defaultdict(list)
    for row in cohort.rows:
        people[row.participant].append(row.number)
    values = Counter(value for numbers in people.values() for value in set(numbers))
    if len(values) < 2:
        raise InputError(
            expected=f"at least two different numbers in column {cohort.target}",
            found=f"only {next(iter(values)):g} ({_name(list(people))}){_missing(cohort)}",
            remedy="choose another column with --target, or add participants",
        )
    if len(people) < folds:
        raise InputError(
            expected=f"at least {folds} participants for {folds} folds",
            found=f"{len(people)} with a number in column {cohort.target}{_missing(cohort)}",
            remedy=f"lower --folds to {len(people)}, or add participants",
        )
    common, count = values.most_common(1)[0]
    others = [person for person, numbers in people.items() if set(numbers) != {common}]
    if folds > 1 and len(others) < 2:
        raise InputError(
            expected=f"numbers in column {cohort.target} that differ in every training fold",
            found=f"{common:g} for {count} participants and another number for {_name(others)} "
            "alone, who would be tested without anybody to learn it from",
            remedy="choose another column with --target, or add participants",
        )


def read_unit(bids_dir: Path, column: str) -> str:
    """Read the unit of a column from participants.json; empty where it gives none."""
    described = read_json(bids_dir / "participants.json").get(column)
    unit = described.get("Units") if isinstance(described, dict) else None
    return " ".join(unit.split())[:40] if isinstance(unit, str) else ""


def _require_numbers(cohort: Cohort) -> None:
    wrong: dict[str, list[str]] = defaultdict(list)
    for row in cohort.rows:
        if to_number(row.label) is None:
            wrong[row.label].append(row.participant)
    if not wrong:
        return
    named = [f"{text!r} ({_name(people)})" for text, people in list(wrong.items())[:_NAMED]]
    if len(wrong) > _NAMED:
        named.append(f"{len(wrong) - _NAMED} more")
    raise InputError(
        expected=f"finite numbers in column {cohort.target}, with a point for decimals",
        found="; ".join(named),
        remedy="correct these entries, or write n/a where there is no number: such people are "
        "left out; if these are classes, give --task classification",
    )


def _name(people: Sequence[str]) -> str:
    return name_people(dict.fromkeys(f"sub-{person}" for person in people))


def _missing(cohort: Cohort) -> str:
    lines = name_left_out(cohort.left_out)
    return f"; left out are {'; '.join(lines)}" if lines else ""
