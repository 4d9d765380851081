"""Errors a user can act on.

Every error says what was expected, what was found and what to do about it, and carries the
exit code of the command line: 2 for unusable input or wrong usage, 1 for a participant that
failed while others may go on, 70 for a workflow that could not be built.
"""

import errno
import os
import signal
from collections.abc import Iterable

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NAMED = 8  # people named in an error before "and n more"
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


def printable(text: str) -> str:
    r"""Show text of unknown origin without anything a terminal would obey, on one line.

    White space becomes spaces; control characters, invisible ones that reverse the direction of
    writing, and halves of surrogate pairs become question marks.

    >>> printable("sub-\x1b[31m01\n")
    'sub-?[31m01 '
    """
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def name_people(names: Iterable[str]) -> str:
    """List people, the first few by name.

    >>> name_people(["sub-02", "sub-01"])
    'sub-01, sub-02'
    """
    listed = sorted(set(names))
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def count_people(count: int) -> str:
    """Say how many participants.

    >>> count_people(1), count_people(3)
    ('1 participant', '3 participants')
    """
    return f"{count} participant{'' if count == 1 else 's'}"


def describe_unreadable(error: Exception) -> str:
    r"""Say why a text file cannot be read, without the words of Python's own messages.

    >>> describe_unreadable(UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte"))
    'it is not text in UTF-8, from byte 2 on'
    """
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text in UTF-8, from byte {error.start + 1} on"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if str(error).startswith("Exceeds the limit"):
        return "a number of more digits than can be read"
    return str(error)


class BidsGevnetError(Exception):
    """Base of all errors that are reported as a sentence, without a traceback.

    Parameters
    ----------
    expected, found, remedy : str
        Clauses without closing full stop, for instance "a file dataset_description.json",
        "none in /data", "point BIDS_DIR at the top folder of the dataset".
    """

    exit_code = 1

    def __init__(self, *, expected: str, found: str, remedy: str) -> None:
        self.expected = printable(expected)
        self.found = printable(found)
        self.remedy = printable(remedy)
        super().__init__(
            f"Expected {self.expected}; found {self.found}. What to do: {self.remedy}."
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the three clauses when an error crosses a process boundary."""
        return _rebuild, (type(self), self.expected, self.found, self.remedy)


def _rebuild(
    kind: type[BidsGevnetError], expected: str, found: str, remedy: str
) -> BidsGevnetError:
    return kind(expected=expected, found=found, remedy=remedy)


class InputError(BidsGevnetError):
    """The dataset, an option or a file given by the user cannot be used at all."""

    exit_code = 2


class ParticipantError(BidsGevnetError):
    """One participant cannot be processed; the others go on."""

    exit_code = 1


class StoppedError(BaseException):
    """A signal asked the program to stop; everything that was finished is kept.

    Not an `Exception`: what handles failures of single stages must not take it for one.

    Parameters
    ----------
    message : str
        What was stopped and how to resume.
    signal_number : int
        Which signal it was.
    """

    def __init__(self, message: str, signal_number: int = signal.SIGTERM) -> None:
        self.signal_number = signal_number
        super().__init__(message)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal ended."""
        return 128 + self.signal_number


class WorkflowBuildError(BidsGevnetError):
    """The workflow could not be built from usable input."""

    exit_code = 70


def explain_disk_error(error: OSError, path: str | os.PathLike[str]) -> ParticipantError | None:
    """Turn a full disk, a missing permission or a folder in the way into a sentence, or None."""
    if error.errno in _DISK_FULL:
        return ParticipantError(
            expected=f"room on the disk for {path}",
            found=f"none left ({error.strerror})",
            remedy="free some space or raise the quota and run the same command again: it "
            "resumes from here",
        )
    if error.errno in _NOT_ALLOWED:
        return ParticipantError(
            expected=f"permission to read and write {path}",
            found=f"none ({error.strerror})",
            remedy="ask the owner of the folder for it, or give another OUTPUT_DIR or --work-dir",
        )
    if error.errno == errno.EISDIR:
        return ParticipantError(
            expected=f"a file, or nothing yet, at {path}",
            found="a folder of that name",
            remedy="move it away and run the same command again",
        )
    return None
