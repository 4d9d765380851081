"""Which sites can be left out, and who is trained on then.

A site's scans are predicted by a network that saw nobody from there: not the site's scans, and
no other scan of a person who was also scanned there. That needs enough people of every class
elsewhere. Harmonisation has nothing to fit to the site either: its scans stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.learn.cohort.scan_rows import ScanRow

MIN_PEOPLE = 2
"""Participants the site needs, and participants of each class that the others need."""

NOT_ASKED = "switched off (--no-leave-site-out)"


@dataclass(frozen=True, kw_only=True)
class SiteSplit:
    """One site of a task.

    Parameters
    ----------
    site : str
    training, testing : tuples of int
        Which of the cohort's scans; empty if the site is not left out.
    reason : str or None
        Why it is not; None if it is.
    """

    site: str
    training: tuple[int, ...] = ()
    testing: tuple[int, ...] = ()
    reason: str | None = None


def plan_sites(
    rows: Sequence[ScanRow], labels: Sequence[str] | None, *, wanted: bool | None
) -> tuple[SiteSplit, ...]:
    """Split off every site of a task in turn.

    Parameters
    ----------
    rows : sequence of ScanRow
        The whole cohort.
    labels : sequence of str or None
        Classes of the task; scans of others are left aside. None where a number is predicted.
    wanted : bool or None
        None leaves sites out if at least two can be.

    Returns
    -------
    splits : tuple of SiteSplit
        One for every site, sorted by name.
    """
    sites = sorted({row.site for row in rows if labels is None or row.label in labels})
    if wanted is False:
        return tuple(SiteSplit(site=site, reason=NOT_ASKED) for site in sites)
    splits = tuple(_split(rows, labels, site) for site in sites)
    possible = [split for split in splits if split.reason is None]
    if wanted is None and len(possible) < 2:
        alone = "the only site that could be left out (--leave-site-out does it all the same)"
        return tuple(SiteSplit(site=split.site, reason=split.reason or alone) for split in splits)
    return splits


def _split(rows: Sequence[ScanRow], labels: Sequence[str] | None, site: str) -> SiteSplit:
    inside = [i for i, row in enumerate(rows) if labels is None or row.label in labels]
    testing = [i for i in inside if rows[i].site == site]
    people = {rows[i].participant for i in testing}
    training = [i for i in inside if rows[i].participant not in people]
    elsewhere = {
        label: len({rows[i].participant for i in training if rows[i].label == label})
        for label in labels or ()
    }
    few = [f"{n} of {label}" for label, n in elsewhere.items() if n < MIN_PEOPLE]
    numbers = {rows[i].label for i in training} if labels is None else None
    reason = None
    if len(people) < MIN_PEOPLE:
        reason = f"{len(people)} participant there; {MIN_PEOPLE} are needed"
    elif not training:
        reason = "there is no other site to train on"
    elif few:
        reason = (
            f"the other sites have {' and '.join(few)}; {MIN_PEOPLE} participants of every "
            "class are needed to train on"
        )
    elif numbers is not None and len(numbers) < MIN_PEOPLE:
        reason = "the other sites have no two people with different numbers to train on"
    if reason is not None:
        return SiteSplit(site=site, reason=reason)
    return SiteSplit(site=site, training=tuple(training), testing=tuple(testing))
