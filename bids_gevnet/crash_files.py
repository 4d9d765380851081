"""Read the crash files that Nipype leaves: which node failed, and why."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.errors import printable

_PATTERN = "crash-*.txt"
_TRACEBACK = re.compile(r"^([ \t]*)Traceback \(most recent call last\):\n", re.MULTILINE)
_OUR_ERRORS = frozenset({"ParticipantError", "InputError", "WorkflowBuildError"})
"""Errors whose message is a sentence for the user and needs no class name before it."""
_NO_MEMORY = (
    r"MemoryError|OutOfMemory|out of memory|(?:allocate|enough) memory|bad_alloc|map segment"
    # A compiled module that could not allocate even its own exception.
    r"|SystemError: .*without (?:setting an )?exception"
)
_REMEDIES = {
    _NO_MEMORY: (
        "this stage needs more memory than there is: run the same command again with a smaller "
        "--nprocs, --batch-size or --devices, with a coarser --output-resolution, or on a machine "
        "with more memory"
    ),
    r"No space left|quota exceeded|File too large": (
        "free some space or raise the quota and run the same command again: it resumes from here"
    ),
    r"Permission denied|Read-only file system|Operation not permitted": (
        "ask the owner of the folder for permission, or give another OUTPUT_DIR or --work-dir"
    ),
}
"""What helps where a machine, not the data, is short of something."""


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
        Last exception of the traceback: our sentence, or class, message and, where one is known,
        remedy of any other error.
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
    """Keep what a person needs of a traceback: kind and whole message of its last exception."""
    *_, last = [None, *_TRACEBACK.finditer(text)]
    if last is not None:
        # Frames are indented deeper than the line Traceback; the first line that is not names the
        # exception, and all that follows is its message.
        exception = re.search(
            rf"^{last[1]}((?:\w+\.)*\w+)(?:: |$)([\s\S]*)", text[last.end() :], re.MULTILINE
        )
        if exception:
            return _to_sentence(exception[1], exception[2])
    # A file that was cut: the last line like `package.Kind: message`, except the very first line
    # of the file, which looks like an exception called Node.
    lines = re.findall(r"^\s*((?:\w+\.)*(?!Node:)[A-Z]\w+): (.+)$", text, re.MULTILINE)
    return _to_sentence(*lines[-1]) if lines else "no message in the crash file"


def _to_sentence(name: str, message: str) -> str:
    """Write an exception on one line, with a remedy where one is known."""
    kind, message = name.rsplit(".", 1)[-1], printable(" ".join(message.split()))
    if kind in _OUR_ERRORS:
        return message
    text = f"{kind}: {message}" if message else kind
    remedy = explain_shortage(text)
    return f"{text}. What to do: {remedy}." if remedy else text


def explain_shortage(text: str) -> str | None:
    """Say what helps if an error tells of too little memory, room or permission."""
    for pattern, remedy in _REMEDIES.items():
        if re.search(pattern, text, re.IGNORECASE):
            return remedy
    return None


def tells_of_memory(text: str) -> bool:
    """Whether an error says that memory ran out."""
    return re.search(_NO_MEMORY, text, re.IGNORECASE) is not None
