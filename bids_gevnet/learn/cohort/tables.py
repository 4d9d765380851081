"""Tables of text: sizes that are refused, and cells that stay cells."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

from bids_gevnet.bids.participants import is_missing, trim_cell
from bids_gevnet.errors import InputError, describe_unreadable

if TYPE_CHECKING:
    from pathlib import Path

MAX_ROWS = 100_000
MAX_CELL = 10_000
_MAX_BYTES = 256 * 1024**2


def tsv_cell(value: object) -> str:
    """Write a value so that it stays one cell."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "n/a"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "".join(" " if char in "\t\r\n" else char for char in text)


def check_table_size(path: Path) -> None:
    """Refuse a table that no cohort has, before reading it into memory."""
    rows = longest = 0
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            while size <= _MAX_BYTES and (line := stream.readline(MAX_CELL * 1000)):
                rows += 1
                cells = line.split(b"\t") if len(line) > MAX_CELL else [b""]
                longest = max(longest, *map(len, cells))
                if rows > MAX_ROWS + 1 or longest > MAX_CELL:
                    break
    except OSError:
        return  # the reader says what is wrong
    if size > _MAX_BYTES or rows > MAX_ROWS + 1 or longest > MAX_CELL:
        found = f"{size} bytes"
        if rows > MAX_ROWS + 1:
            found = f"more than {MAX_ROWS} rows"
        elif longest > MAX_CELL:
            found = f"a cell of {longest} bytes or more in row {rows}"
        raise InputError(
            expected=f"a table of at most {MAX_ROWS} rows with cells of at most {MAX_CELL} bytes "
            f"in {path}",
            found=found,
            remedy="check what wrote this file",
        )


def read_sessions(bids_dir: Path, subject: str) -> dict[str, dict[str, str]]:
    """Rows of sub-X_sessions.tsv by session label, cells with a value only; empty if none."""
    path = bids_dir / f"sub-{subject}" / f"sub-{subject}_sessions.tsv"
    if not path.is_file():
        return {}
    check_table_size(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            expected=f"a tab-separated table in {path}",
            found=f"none ({describe_unreadable(error)})",
            remedy="save the table as tab-separated text in UTF-8",
        ) from None
    return {
        trim_cell(str(row.get("session_id") or "")).removeprefix("ses-"): {
            key: value
            for key, value in row.items()
            if isinstance(key, str) and isinstance(value, str) and not is_missing(value)
        }
        for row in rows
    }
