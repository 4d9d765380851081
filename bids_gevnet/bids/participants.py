"""participants.tsv: who is in the dataset and which label each one carries."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bids_gevnet.errors import InputError, describe_unreadable

DEFAULT_TARGETS = ("diagnosis", "group")

_MISSING = frozenset({"", "n/a", "N/A", "na", "NA", "nan", "NaN", "NAN", "None"})
# Without "none": that is what a person writes for no treatment, and "None" what a program writes.


def trim_cell(text: str) -> str:
    """Remove blanks and quotes around a cell.

    >>> trim_cell(' "sub-01" ')
    'sub-01'
    """
    return text.strip().strip("\"'").strip()


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value, as BIDS, R or Python write it.

    >>> [is_missing(text) for text in ("n/a", " NaN ", "None", "NAS")]
    [True, True, True, False]
    """
    return trim_cell(text) in _MISSING


def read_participants(dataset_dir: Path) -> pd.DataFrame:
    """Read participants.tsv with every cell as text; cells without a value become missing."""
    path = dataset_dir / "participants.tsv"
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except FileNotFoundError:
        raise InputError(
            expected="participants.tsv at the top of the dataset",
            found=f"none in {dataset_dir}",
            remedy="add one with the columns participant_id and diagnosis; where BIDS_DIR holds "
            "derivatives, give the raw dataset that has one instead",
        ) from None
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise InputError(
            expected=f"a tab-separated table in {path}",
            found=f"none ({describe_unreadable(error)})",
            remedy="save the table as tab-separated text in UTF-8",
        ) from None
    if not lines:
        raise InputError(
            expected=f"a tab-separated table in {path}",
            found="an empty file",
            remedy="write it again, with the columns participant_id and diagnosis",
        )
    header, rows = lines[0], [row for row in lines[1:] if row]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(
                expected=f"{len(header)} cells in every row of {path}, as in its header",
                found=f"{len(row)} in row {number}",
                remedy="complete the row with n/a, and separate cells by one tab each",
            )
    cells = [
        [cell if name == "participant_id" or not is_missing(cell) else None
         for name, cell in zip(header, row, strict=True)]
        for row in rows
    ]  # fmt: skip
    table = pd.DataFrame(cells, columns=header, dtype=object)
    if "participant_id" not in table.columns:
        raise InputError(
            expected=f"a column participant_id in {path}",
            found=f"the columns {', '.join(table.columns)}",
            remedy="name the column of labels participant_id; separate columns by tabs",
        )
    return table


def target_column(columns: Sequence[str], target: str | None) -> str:
    """Choose the column to predict: the one asked for, else `diagnosis`, else `group`."""
    wanted = (target,) if target is not None else DEFAULT_TARGETS
    for column in wanted:
        if column in columns:
            return column
    raise InputError(
        expected=f"a column {' or '.join(wanted)} in participants.tsv",
        found=f"the columns {', '.join(columns)}",
        remedy="name the column to predict with --target"
        if target is None
        else "choose one of them for --target, spelled as it is there",
    )
