"""``python -m bids_gevnet.learn.train.process JOBS.json``: train and test the models of a file.

Started once per process by torchrun, by srun, or alone. All processes work on one model after the
other, together; what is finished is left, what was begun resumes from its checkpoint.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bids_gevnet.bids.writing import write_json
from bids_gevnet.compiled.library import describe
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.learn.train.distributed import StopRequest, join_processes
from bids_gevnet.learn.train.held_out import score_held_out
from bids_gevnet.learn.train.jobs import read_jobs
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.trainer import train_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = logging.getLogger("bids_gevnet.learn")

PARENT = "BIDS_GEVNET_PARENT"
"""Environment variable with the number of the process that all training processes belong to."""


def train_all(
    jobs_file: Path,
    *,
    test: bool = True,
    threads: int | None = None,
    first: int = 1,
    total: int | None = None,
    gpu: bool = True,
) -> None:
    """Train and test every job of a file; join the other processes, if there are any.

    Parameters
    ----------
    jobs_file : Path
    test : bool
        Whether to score held-out people too.
    threads : int, optional
        Threads of this process.
    first, total : int
        Number of the file's first job among all jobs of the study, for progress messages.
    gpu : bool
        Whether a GPU may be used where there is one.
    """
    jobs = read_jobs(jobs_file)
    with limited_threads(threads), join_processes(gpu=gpu) as processes:
        if processes.first:
            log.info("On a CPU the networks run on %s.", describe())
        progress = TrainingProgress(total or len(jobs), done=first - 1, active=processes.first)
        for job in jobs:
            with StopRequest().listening() as stop:
                train_job(job, processes, stop, progress)
            if test:
                score_held_out(job, processes)


@contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Let PyTorch use so many threads inside the block; all it would use if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def end_with_parent() -> None:
    """End this process when the program that started torchrun has died, however it did.

    Otherwise the processes of a program that was killed would train on, beside those of the next.
    """
    parent = os.environ.get(PARENT)
    if parent is not None:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(1)
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            return  # another user's process has taken the number


def error_file(jobs_file: Path) -> Path:
    """Where a process leaves the error that ended it, for the one that started it."""
    return jobs_file.with_suffix(".error.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bids_gevnet.learn.train.process")
    parser.add_argument("jobs", type=Path, metavar="JOBS.json", help="training jobs")
    parser.add_argument("--threads", type=int, help="threads of each process")
    parser.add_argument("--first", type=int, default=1, help="number of the first job")
    parser.add_argument("--total", type=int, help="jobs of the whole study")
    parser.add_argument("--train-only", action="store_true", help="score nobody")
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("bids_gevnet").setLevel(logging.INFO)
    end_with_parent()
    try:
        train_all(
            options.jobs,
            test=not options.train_only,
            threads=options.threads,
            first=options.first,
            total=options.total,
        )
    except BidsGevnetError as error:
        if PARENT not in os.environ:  # else whoever started all processes says it, once
            sys.stderr.write(f"{error}\n")
        clauses = {"expected": error.expected, "found": error.found, "remedy": error.remedy}
        write_json(
            error_file(options.jobs),
            clauses | {"kind": type(error).__name__, "code": error.exit_code},
        )
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
