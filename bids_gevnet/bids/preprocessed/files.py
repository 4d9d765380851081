"""Look for files beside a series, and say which ones were expected where there are none."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bids_gevnet.errors import ParticipantError

_ENTITIES = ("sub", "ses", "acq", "rec", "dir", "run", "echo")


def scan_entities(entities: Mapping[str, str]) -> dict[str, str]:
    """Keep the entities that tell scans apart, not those that tell derivatives apart.

    >>> scan_entities({"sub": "01", "acq": "b1000", "space": "ACPC", "desc": "preproc"})
    {'sub': '01', 'acq': 'b1000'}
    """
    return {key: value for key, value in entities.items() if key in _ENTITIES}


def as_label(name: str) -> str:
    """Make a BIDS label of the name of a folder.

    >>> as_label("sub-HCA6002236_V1")
    'HCA6002236V1'
    """
    return re.sub(r"[^A-Za-z0-9]", "", name.removeprefix("sub-"))


def first_file(candidates: Iterable[Path]) -> Path | None:
    """Return the first path that is a file."""
    return next((path for path in candidates if path.is_file()), None)


def require_file(candidates: Iterable[Path], what: str, remedy: str) -> Path:
    """Return the first path that is a file, or raise a `ParticipantError`."""
    paths = list(candidates)
    path = first_file(paths)
    if path is None:
        names = " or ".join(dict.fromkeys(path.name for path in paths))
        raise ParticipantError(
            expected=f"{what} ({names}) in {paths[0].parent}", found="none", remedy=remedy
        )
    return path


def only_file(folder: Path, pattern: str) -> list[Path]:
    """Return the file of a folder that fits a pattern, if there is exactly one."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    return files if len(files) == 1 else []
