"""One run per participant and output, and no work directory removed under another run."""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bids_gevnet.errors import InputError
from bids_gevnet.layout import WorkLayout

log = logging.getLogger("bids_gevnet")

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


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
                _lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    expected=f"no other run on {name} in {folder.parent.parent}",
                    found="one that is still going",
                    remedy="wait for it, choose other participants with --participant-label, or "
                    "give another OUTPUT_DIR and --work-dir",
                ) from None
        yield


def claim(work: WorkLayout) -> None:
    """Mark a folder as a work directory of ours.

    Raises
    ------
    InputError
        If somebody else keeps a folder there that has the name of one of ours, which
        `--clean-workdir` would remove.
    """
    work.root.mkdir(parents=True, exist_ok=True)
    foreign = [path for path in work.folders if path.exists()]
    if foreign and not work.in_use.exists():  # asked last: another run may just have begun
        raise InputError(
            expected=f"a --work-dir that is new, or that this app has used before, in {work.root}",
            found=f"{foreign[0]}, which it has not made",
            remedy=f"give another folder, for instance {work.root / 'bids_gevnet'}",
        )
    os.close(_open(work.in_use))


@contextmanager
def using(work: WorkLayout) -> Iterator[Callable[[], bool]]:
    """Note that a run uses a work directory, which several may share.

    Yields
    ------
    is_last : callable
        Whether no other run uses it any more, so that it may be removed. Asked once, at the end;
        a run that starts after that waits until this one has ended.
    """
    claim(work)
    lock = _open_to_share(work.in_use)

    def is_last() -> bool:
        try:
            return _lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False

    try:
        yield is_last
    finally:
        os.close(lock)


def _open_to_share(path: Path) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _open(path)
        _lock(lock, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(lock)):
                return lock
        os.close(lock)  # whoever had it removed the work directory


def _lock(file: int, how: int) -> bool:
    """Lock an open file; whether that worked. Some file systems of clusters know no locks."""
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning(
            "this file system knows no locks (%s): take care that no two runs are on the same "
            "participant, or both on the group level",
            error.strerror,
        )
        return False
    return True


def _open(path: Path) -> int:
    """Open a lock file, which may belong to somebody else who was here before."""
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY)
