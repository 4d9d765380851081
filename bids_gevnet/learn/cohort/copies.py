"""One image under several names: two people who are the same would meet across a split."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.store import StoredScan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bids_gevnet.learn.cohort.scan_rows import ScanRow

_NAMED = 8  # groups of copies named in an error before "and n more"


def refuse_copies(rows: Sequence[ScanRow], folders: Sequence[Path]) -> None:
    """Name scans whose content is the same, and stop.

    Parameters
    ----------
    rows : sequence of ScanRow
    folders : sequence of Path
        Where in the store each scan is.
    """
    by_content: dict[str, list[ScanRow]] = defaultdict(list)
    for row, folder in zip(rows, folders, strict=True):
        by_content[StoredScan(folder).fingerprint].append(row)
    copies = [same for same in by_content.values() if len(same) > 1]
    if not copies:
        return
    named = ["; ".join(" = ".join(row.scan for row in same) for same in copies[:_NAMED])]
    if len(copies) > _NAMED:
        named.append(f"{len(copies) - _NAMED} more")
    of_one_person = all(len({row.participant for row in same}) == 1 for same in copies)
    remedy = (
        "a session was copied in place of another one: correct the dataset, or choose sessions "
        "with --session-label"
        if of_one_person
        else "find out whose image it is, correct the dataset, and leave the copies out with "
        "--exclude-participant-label"
    )
    raise InputError(
        expected="a different image for every scan",
        found=f"the same one in {' and '.join(named)}",
        remedy=remedy,
    )
