"""Who takes part: what the options of the command line say together about participants.

`--participant-label` and `--participants-file` choose, `--exclude-participant-label` and the file
take out; a label that nobody carries is an error, because a misspelt one would be ignored.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.bids.participants import trim_cell
from bids_gevnet.errors import InputError
from bids_gevnet.settings import SelectionSettings

EXCLUDED = "excluded by --exclude-participant-label or --participants-file"
NOT_ASKED_FOR = "not among those asked for by --participant-label or --participants-file"

_FILE_OPTION = "--participants-file"
_MAX_BYTES = 16 * 1024**2
_ANSWERS = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Labels of those who take part, without "sub-" and "ses-".

    Parameters
    ----------
    participants : frozenset of str or None
        Those asked for by name; None for everybody.
    excluded : frozenset of str
    sessions : tuple of str
        Only these, if there are any.
    """

    participants: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    sessions: tuple[str, ...] = ()

    def reason_against(self, participant: str) -> str | None:
        """Say why a participant does not take part; None for one who does."""
        if participant in self.excluded:
            return EXCLUDED
        if self.participants is not None and participant not in self.participants:
            return NOT_ASKED_FOR
        return None


def read_selection(settings: SelectionSettings, present: Collection[str]) -> Selection:
    """Resolve the options against the participants that there are.

    Parameters
    ----------
    settings : SelectionSettings
    present : collection of str
        Labels of all participants, without "sub-".
    """
    chosen = _labels(settings.participant_label) or None
    excluded = _labels(settings.exclude_participant_label)
    require_labels(chosen or (), present, option="--participant-label", what="participant")
    require_labels(excluded, present, option="--exclude-participant-label", what="participant")
    if settings.participants_file is not None:
        included, taken_out = read_participants_file(settings.participants_file)
        named = (included or frozenset()) | taken_out
        require_labels(named, present, option=_FILE_OPTION, what="participant")
        excluded |= taken_out
        if included is not None:
            chosen = included if chosen is None else chosen & included
    if present and not frozenset(present if chosen is None else chosen) - excluded:
        raise InputError(
            expected="at least one participant who is asked for and not excluded",
            found="none",
            remedy="correct --participant-label, --exclude-participant-label or "
            "--participants-file",
        )
    return Selection(
        participants=chosen,
        excluded=excluded,
        sessions=tuple(sorted(_labels(settings.session_label, "ses-"))),
    )


def require_labels(
    wanted: Iterable[str], present: Collection[str], *, option: str, what: str
) -> None:
    """Refuse labels that the dataset does not have."""
    unknown = sorted(set(wanted) - set(present))
    if unknown:
        shown = ", ".join(sorted(present)[:10]) + (", ..." if len(present) > 10 else "")
        raise InputError(
            expected=f"labels of {what}s in the dataset for {option}",
            found=f"{', '.join(unknown)}, which the dataset does not have",
            remedy=f"choose among its {len(present)}: {shown}"
            if present
            else f"leave {option} out: the dataset has no {what}s",
        )


def read_participants_file(path: Path) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Read a list of labels, or a table with a column `include` or `exclude`.

    Parameters
    ----------
    path : Path

    Returns
    -------
    included : frozenset of str or None
        Those to take; None for everybody.
    excluded : frozenset of str
        Those to leave out.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes")  # noqa: TRY301
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            expected=f"a readable text file for {_FILE_OPTION}",
            found=f"{path} ({reason})",
            remedy="check the path, and save the file as text in UTF-8",
        ) from None
    lines = [
        (number, [trim_cell(cell) for cell in line.split("\t")])
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not lines:
        raise _unusable(path, "nothing")
    header = lines[0][1]
    if len(header) == 1:
        rows = lines[1:] if header == ["participant_id"] else lines
        return frozenset(_one_label(path, number, cells) for number, cells in rows), frozenset()
    return _read_table(path, header, lines[1:])


def _read_table(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]
) -> tuple[frozenset[str] | None, frozenset[str]]:
    columns = [name for name in ("include", "exclude") if name in header]
    if "participant_id" not in header or len(columns) != 1:
        raise _unusable(path, f"the columns {', '.join(header)}")
    (column,) = columns
    answers: dict[str, bool] = {}
    for number, cells in rows:
        if len(cells) != len(header):
            raise _unusable(path, f"{len(cells)} cells instead of {len(header)} in line {number}")
        row = dict(zip(header, cells, strict=True))
        label = _one_label(path, number, [row["participant_id"]])
        answer = _ANSWERS.get(row[column].casefold())
        if answer is None:
            raise _unusable(path, f"{row[column]!r} for {column} in line {number}")
        if answers.setdefault(label, answer) is not answer:
            raise _unusable(path, f"both yes and no for {label} (line {number})")
    yes = frozenset(label for label, answer in answers.items() if answer)
    no = frozenset(answers) - yes
    return (yes, no) if column == "include" else (None, yes)


def _one_label(path: Path, number: int, cells: Sequence[str]) -> str:
    label = _label(cells[0])
    if len(cells) != 1 or not label or any(char.isspace() or char in ",;" for char in label):
        raise _unusable(path, f"{' '.join(cells)!r:.60} in line {number}")
    return label


def _labels(given: Iterable[str], prefix: str = "sub-") -> frozenset[str]:
    """Read labels of the command line, apart or joined by commas, which no label has."""
    parts = (part for text in given for part in text.split(","))
    return frozenset(filter(None, (_label(part, prefix) for part in parts)))


def _label(text: str, prefix: str = "sub-") -> str:
    return trim_cell(text).removeprefix(prefix)


def _unusable(path: Path, found: str) -> InputError:
    return InputError(
        expected=f"one participant label a line in {path}, or a tab-separated table with the "
        "column participant_id and either include or exclude, filled with yes or no",
        found=found,
        remedy=f"correct the file given to {_FILE_OPTION}",
    )
