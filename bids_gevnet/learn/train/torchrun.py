"""Start the training processes: torchrun for several, this process for one."""

from __future__ import annotations

import json
import os
import signal
import subprocess  # nosec B404
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from bids_gevnet.child_processes import hand_on
from bids_gevnet.errors import BidsGevnetError, InputError
from bids_gevnet.learn.train.distributed import STOP_SIGNALS, TrainingInterrupted, device_count
from bids_gevnet.learn.train.loop import TrainingDiverged
from bids_gevnet.learn.train.process import PARENT, error_file, train_all
from bids_gevnet.settings import available_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bids_gevnet.settings import ExecutionSettings, LearningSettings

_KINDS: dict[str, type[BidsGevnetError]] = {
    kind.__name__: kind for kind in (InputError, TrainingInterrupted, TrainingDiverged)
}


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What trains a model: processes on GPUs or on CPU cores.

    Parameters
    ----------
    processes : int
    gpu : bool
        Whether each process has a GPU of its own.
    threads : int
        Threads of each process.
    """

    processes: int
    gpu: bool
    threads: int

    @classmethod
    def choose(cls, learning: LearningSettings, execution: ExecutionSettings) -> Self:
        """Choose by `--devices`, `--nprocs` and `--omp-nthreads`."""
        cpus = execution.processes
        processes, gpu = device_count(learning.devices, cpus=min(cpus, learning.batch_size))
        threads = execution.omp_nthreads or max(1, min(available_cpus(), cpus) // processes)
        return cls(processes=processes, gpu=gpu, threads=threads)


def train(
    jobs_file: Path,
    devices: Devices,
    *,
    test: bool = True,
    first: int = 1,
    total: int | None = None,
) -> None:
    """Train all jobs of a file, and test their models.

    Parameters
    ----------
    jobs_file : Path
    devices : Devices
    test : bool
        Whether to score held-out people too.
    first, total : int
        Number of the file's first job among all jobs of the study, for progress messages.
    """
    error_file(jobs_file).unlink(missing_ok=True)
    processes, gpu, threads = devices.processes, devices.gpu, devices.threads
    if processes == 1 and not gpu:
        # In this process, on a machine that may have GPUs which were not asked for.
        train_all(jobs_file, test=test, threads=threads, first=first, total=total, gpu=False)
        return
    command = [sys.executable, "-m", "bids_gevnet.learn.train.launch", "--standalone"]
    # The machine's own name need not resolve, in a container without a network for instance.
    command += ["--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(processes), "-m", "bids_gevnet.learn.train.process"]
    command += [str(jobs_file), "--threads", str(threads), "--first", str(first)]
    command += ["--total", str(total)] if total is not None else []
    command += [] if test else ["--train-only"]
    surroundings = os.environ | {"OMP_NUM_THREADS": str(threads)}
    # Set or removed, so that a variable of the caller does not decide.
    surroundings.pop("BIDS_GEVNET_DEVICE", None)
    if not gpu:
        surroundings["BIDS_GEVNET_DEVICE"] = "cpu"
    surroundings[PARENT] = str(os.getpid())
    # A session of its own: Ctrl-C reaches it once, passed on from here, and not from the terminal.
    with (
        subprocess.Popen(  # nosec B603  # a list of arguments, no shell
            command, env=surroundings, start_new_session=True
        ) as child,
        _forwarding(child) as forwarded,
    ):
        code = child.wait()
    if code == 0:
        return
    raise _reported(jobs_file) or (
        TrainingInterrupted(
            expected="to train to the end",
            found="a signal to stop",
            remedy="run the same command again with --resume: it resumes from the last checkpoint",
        )
        if forwarded
        else BidsGevnetError(
            expected="the training processes to end well",
            found=f"exit code {code}",
            remedy="see the messages above; --resume resumes from the last checkpoint",
        )
    )


@contextmanager
def _forwarding(child: subprocess.Popen[Any]) -> Iterator[list[int]]:
    """Pass signals on to torchrun, which passes SIGTERM on to its processes."""
    forwarded: list[int] = []

    def forward(number: int, _frame: object) -> None:
        forwarded.append(number)
        if len(forwarded) == 1:
            child.send_signal(signal.SIGTERM)
        else:
            os.killpg(child.pid, signal.SIGKILL)

    if threading.current_thread() is not threading.main_thread():
        yield forwarded
        return
    before = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    try:
        yield forwarded
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if forwarded:
            hand_on(forwarded[0], before)


def _reported(jobs_file: Path) -> BidsGevnetError | None:
    """Return the error that a training process left behind, if it did."""
    try:
        content = json.loads(error_file(jobs_file).read_text(encoding="utf-8"))
        kind = _KINDS.get(content["kind"], BidsGevnetError)
        return kind(expected=content["expected"], found=content["found"], remedy=content["remedy"])
    except (OSError, ValueError, KeyError):
        return None
