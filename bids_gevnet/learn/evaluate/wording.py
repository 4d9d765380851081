"""The words of a first sentence, by what is predicted: groups that are told apart, or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Pieces of sentences.

    Parameters
    ----------
    told, not_told : str
        The good news and the lack of any, without an end.
    undecided : str
        Why nothing can be said where nothing can be exchanged within sites.
    no_results : str
    confound : str
        What a confound "tells".
    instead : str
        What a result is not about if it is about a confound.
    """

    told: str
    not_told: str
    undecided: str
    no_results: str
    confound: str
    instead: str


def of_groups(labels: Sequence[str]) -> Wording:
    """Words for classes.

    Examples
    --------
    >>> of_groups(["AD", "PD"]).told
    'AD and PD can be told apart by their scans'
    """
    groups = join_and(labels)
    return Wording(
        told=f"{groups} can be told apart by their scans",
        not_told=f"{groups} could not be told apart",
        undecided=f"whether {groups} differ cannot be told from this study, because every site "
        "has only one of the groups: a difference between scanners looks the same",
        no_results=f"There are no results that could tell {groups} apart.",
        confound=f"{groups} apart",
        instead="the groups",
    )


def of_number(target: str) -> Wording:
    """Words for a number.

    Examples
    --------
    >>> of_number("age").told
    'age can be predicted from the scans'
    """
    return Wording(
        told=f"{target} can be predicted from the scans",
        not_told=f"{target} could not be predicted from the scans",
        undecided=f"whether scans tell {target} cannot be said from this study, because no site "
        f"has people who differ in it: a difference between scanners looks the same",
        no_results=f"There are no results that could predict {target}.",
        confound=target,
        instead=target,
    )


def join_and(names: Sequence[str]) -> str:
    """Join names as a sentence does.

    Examples
    --------
    >>> join_and(["AD", "DLB", "PD"])
    'AD, DLB and PD'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def with_unit(text: str, unit: str) -> str:
    """Put a unit after a number, if there is one; "year" as the plural that people read."""
    plural = {"year": "years", "month": "months", "day": "days", "point": "points"}
    return f"{text} {plural.get(unit, unit)}" if unit else text
