"""``python -m bids_gevnet.learn.train.process JOBS.json``: train all models of a run.

Started once per process by torchrun, by srun, or alone. All processes train one model after the
other, together; what is finished is left, what was begun goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bids_gevnet.bids.writing import write_json
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.learn.train.distributed import StopRequest, join_processes
from bids_gevnet.learn.train.jobs import read_jobs
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.trainer import train_job

if TYPE_CHECKING:
    from collections.abc import Sequence


def train_all(jobs_file: Path) -> None:
    """Train every job of a file; join the other processes, if there are any."""
    jobs, threads = read_jobs(jobs_file)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with join_processes() as processes, StopRequest().listening() as stop:
            progress = TrainingProgress(len(jobs), active=processes.first)
            for job in jobs:
                train_job(job, processes, stop, progress)
    finally:
        torch.set_num_threads(before)


def error_file(jobs_file: Path) -> Path:
    """Where a process leaves the error that ended it, for the one that started it."""
    return jobs_file.with_suffix(".error.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m bids_gevnet.learn.train.process JOBS.json\n")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    jobs_file = Path(arguments[0])
    try:
        train_all(jobs_file)
    except BidsGevnetError as error:
        sys.stderr.write(f"{error}\n")
        clauses = {"expected": error.expected, "found": error.found, "remedy": error.remedy}
        write_json(
            error_file(jobs_file),
            clauses | {"kind": type(error).__name__, "code": error.exit_code},
        )
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
