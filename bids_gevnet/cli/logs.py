"""What a run says: lines on the terminal, and everything in a log file of its own."""

import logging
import os
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from bids_gevnet.layout import OutputLayout

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_ALWAYS = ("bids_gevnet.progress", "bids_gevnet.learn")
"""Loggers whose lines are shown without -v too: one per finished stage or epoch."""


def start_logging(verbose: int) -> None:
    """Send log lines to the terminal; more of them with -v."""
    logging.basicConfig(
        level=_LEVELS[min(verbose, len(_LEVELS) - 1)], format=_FORMAT, stream=sys.stderr
    )
    for name in _ALWAYS:
        logging.getLogger(name).setLevel(logging.INFO)


class _LogFile(logging.FileHandler):
    """A log file on a disk that may become full, which is said by whoever writes results."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - name of the library
        """Drop the line; without this, a traceback is printed for each of them."""


def open_log_file(output: OutputLayout, level: str) -> Path:
    """Write all that is logged from now on to a file of this run; return its path."""
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    path = output.logs / f"{level}-{started}-{os.getpid()}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.getLogger("bids_gevnet").addHandler(handler)
    return path


def close_log_files() -> None:
    """Close the log file of a run."""
    logger = logging.getLogger("bids_gevnet")
    for handler in [h for h in logger.handlers if isinstance(h, logging.FileHandler)]:
        logger.removeHandler(handler)
        handler.close()


def save_traceback(error: BaseException, output: OutputLayout | None) -> Path:
    """Keep the traceback of an unforeseen error where a person can find it."""
    text = "".join(traceback.format_exception(error))
    name = f"error-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    folders = [Path(tempfile.gettempdir())]
    if output is not None and output.root.is_dir():
        folders.insert(0, output.logs)
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return folder / name
    return Path("/dev/null")
