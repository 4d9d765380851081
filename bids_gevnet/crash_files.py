"""Read the crash files that Nipype leaves: which node failed, and why."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PATTERN = "crash-*.txt"
_OUR_ERRORS = frozenset({"ParticipantError", "InputError", "WorkflowBuildError"})
"""Errors whose message is a sentence for the user and needs no class name before it."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A node that failed.

    Attributes
    ----------
    path : Path
        The crash file.
    node : tuple of str
        Names of the workflows around the node and of the node itself, outermost first.
    message : str
        Last exception of the traceback: our sentence, or class and message of any other error.
    time_s : float
        When the crash file was written, in seconds since the epoch.
    """

    path: Path
    node: tuple[str, ...]
    message: str
    time_s: float

    @property
    def stage(self) -> str:
        """Name of the node that failed."""
        return self.node[-1] if self.node else "?"


def read_crashes(folder: Path) -> Iterator[Crash]:
    """Read all crash files of a folder, in the order of their names."""
    for path in sorted(folder.glob(_PATTERN)):
        text = path.read_text(encoding="utf-8", errors="replace")
        node = re.search(r"^Node: (\S+)", text, re.MULTILINE)
        names = tuple(node.group(1).split(".")) if node else ()
        yield Crash(path, names, _last_exception(text), path.stat().st_mtime)


def has_crashes(folder: Path) -> bool:
    """Tell whether a folder holds crash files."""
    return any(folder.glob(_PATTERN))


def _last_exception(text: str) -> str:
    """Keep what a person needs of a traceback: the last line like `package.Kind: message`."""
    matches = re.findall(r"^\s*(?:\w+\.)*([A-Z]\w+): (.+)$", text, re.MULTILINE)
    # The first line of the file looks like an exception called Node.
    exceptions = [(kind, message) for kind, message in matches if kind != "Node"]
    if not exceptions:
        return "no message in the crash file"
    kind, message = exceptions[-1]
    return str(message if kind in _OUR_ERRORS else f"{kind}: {message}")
