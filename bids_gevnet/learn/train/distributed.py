"""Several processes as one: who am I, what do all say, and has anybody been told to stop.

Processes are started by torchrun, one per GPU or CPU process, or by SLURM's srun, whose variables
are translated. Without either there is one process and nothing to agree on. GPUs talk by NCCL,
CPU processes by gloo.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from bids_gevnet.child_processes import hand_on
from bids_gevnet.errors import BidsGevnetError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""What SLURM sends before it takes a node away (--signal=USR1@120) or kills a job, and Ctrl-C."""

PATIENCE_S = 25
"""A step that takes longer than this after a signal is given up; its checkpoint is older."""

_TIMEOUT = timedelta(hours=2)  # the first process fits the harmonisation while others wait


class TrainingInterrupted(BidsGevnetError):  # noqa: N818 - not an error of anybody's
    """A signal ended the training; a checkpoint holds all that was done."""

    exit_code = 1


@dataclass(frozen=True)
class Processes:
    """One process among all.

    Parameters
    ----------
    rank, size : int
        Number of this process, and how many there are.
    device : torch.device
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes files and progress."""
        return self.rank == 0

    def share(self, items: Sequence[Any]) -> Sequence[Any]:
        """Every size-th item, so that shares differ by one at most."""
        return items[self.rank :: self.size]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Add up numbers over processes, in double precision."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def gather(self, items: list[Any]) -> list[Any]:
        """Concatenate lists of plain values of all processes, in order of rank."""
        if self.size == 1:
            return items
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def wait(self) -> None:
        """Wait until everybody is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_processes(*, gpu: bool = True) -> Iterator[Processes]:
    """Join the others that torchrun or srun started; leave them at the end.

    Parameters
    ----------
    gpu : bool
        Whether a GPU may be used where there is one.
    """
    _translate_slurm()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    # The variable says that CPU processes were asked for on a machine that has GPUs.
    gpu = gpu and torch.cuda.is_available() and os.environ.get("BIDS_GEVNET_DEVICE") != "cpu"
    device = torch.device(f"cuda:{local}") if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if size == 1:
        yield Processes(device=device)
        return
    dist.init_process_group("nccl" if gpu else "gloo", timeout=_TIMEOUT)
    try:
        yield Processes(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()


def single_device(*, gpu: bool) -> torch.device:
    """Name the device of a process that works alone."""
    return torch.device("cuda:0" if gpu else "cpu")


def _translate_slurm() -> None:
    """Give torch its variables where srun started the processes, one task each."""
    if "RANK" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) == 1:
        return
    if "SLURM_PROCID" not in os.environ or "SLURM_STEP_NODELIST" not in os.environ:
        return
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ.setdefault("MASTER_ADDR", first_host(os.environ["SLURM_STEP_NODELIST"]))
    # From the job's number, so that two jobs on a node do not meet.
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000))


def first_host(nodes: str) -> str:
    """First name in SLURM's short form of a list of nodes.

    >>> first_host("gpu[007-009,12],cpu3")
    'gpu007'
    """
    head, bracket, rest = nodes.partition("[")
    if "," in head or not bracket:
        return nodes.split(",", 1)[0]
    return head + rest.split("]", 1)[0].split(",", 1)[0].split("-", 1)[0]


def device_count(devices: str, *, cpus: int) -> tuple[int, bool]:
    """How many processes `--devices` asks for, and whether they are on GPUs.

    Parameters
    ----------
    devices : str
        "auto", a number of GPUs, or "cpu:N".
    cpus : int
        Cores we may use.
    """
    gpus = torch.cuda.device_count()
    if devices == "auto":
        return (gpus, True) if gpus else (max(1, cpus), False)
    if devices.startswith("cpu:"):
        return int(devices.removeprefix("cpu:")), False
    if int(devices) > gpus:
        raise InputError(
            expected=f"{devices} GPUs for --devices",
            found=f"{gpus}",
            remedy="give --devices auto, or for instance cpu:2 to train on 2 cores",
        )
    return int(devices), True


class StopRequest:
    """Remembers that a signal asked to stop; the loop looks between two steps.

    A second signal, or a step that does not end in `PATIENCE_S`, stops without waiting.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def _receive(self, number: int, _frame: object) -> None:
        if self.received is not None:
            raise _given_up("a second signal")
        self.received = number
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)

    @staticmethod
    def _give_up(_number: int, _frame: object) -> None:
        raise _given_up(f"a signal and a step that took more than {PATIENCE_S} s")

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Catch the signals inside the block; only the main thread of Python may."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._give_up)
        remaining, interval = signal.getitimer(signal.ITIMER_REAL)  # somebody else's alarm
        try:
            yield self
        finally:
            if self.asked:
                signal.setitimer(signal.ITIMER_REAL, remaining, interval)
            for number, handler in before.items():
                signal.signal(number, handler)
            if self.received is not None:
                hand_on(self.received, before)

    @property
    def asked(self) -> bool:
        """Whether this process has been asked to stop."""
        return self.received is not None

    def agreed(self, processes: Processes) -> bool:
        """Whether any process has been asked to stop; the same answer in all of them."""
        return processes.sum([float(self.asked)])[0] > 0


def _given_up(found: str) -> TrainingInterrupted:
    return TrainingInterrupted(
        expected="to finish the step",
        found=found,
        remedy="run the same command again with --resume: it resumes from the last checkpoint",
    )
