"""One run per participant and output: a second one is refused, never mixed in."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bids_gevnet.errors import InputError


@contextmanager
def locked(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Hold a lock on each name, a participant's or "group", while the block runs.

    The operating system frees the locks of a process that dies, however it dies, so nothing
    has to be cleaned up after a kill.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in names:
            lock = _open(folder / f"{name}.lock")
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    expected=f"no other run on {name} in {folder.parent.parent}",
                    found="one that is still going",
                    remedy="wait for it, choose other participants with --participant-label, or "
                    "give another OUTPUT_DIR and --work-dir",
                ) from None
        yield


def _open(path: Path) -> int:
    """Open a lock file, which may belong to somebody else who was here before."""
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY)
