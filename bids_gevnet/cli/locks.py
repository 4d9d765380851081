"""One run per participant and output: a second one is refused, never mixed in."""

import fcntl
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
            stream = stack.enter_context((folder / f"{name}.lock").open("w"))
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    expected=f"no other run on {name} in {folder.parent.parent}",
                    found="one that is still going",
                    remedy="wait for it, choose other participants with --participant-label, or "
                    "give another OUTPUT_DIR and --work-dir",
                ) from None
        yield
