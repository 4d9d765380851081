"""Progress of training: bars on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from bids_gevnet.learn.train.objectives import ACCURACY, ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

    from bids_gevnet.learn.train.loop import StepOptions

log = logging.getLogger("bids_gevnet.learn")

_LINE_EVERY = 60.0  # seconds between lines of a log within an epoch


def track(items: Iterable[Any], what: str, total: int) -> Iterator[Any]:
    """Go through items with a bar on a terminal, and two lines elsewhere."""
    from tqdm import tqdm

    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, total=total, leave=False)
        return
    yield from items
    log.info("%s: %d done", what, total)


class Job(Protocol):
    """What progress says of a training."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def training(self) -> Sized:
        """What it learns from."""

    @property
    def testing(self) -> Sized:
        """What it is tested with."""

    @property
    def options(self) -> StepOptions:
        """How many epochs, among others."""


class TrainingProgress:
    """Says how far training is; silent in all processes but the first.

    Parameters
    ----------
    total_jobs : int
    active : bool
        Whether this process is the one that speaks.
    done : int
        Jobs that come before the first one that is started here.
    """

    def __init__(self, total_jobs: int, *, active: bool, done: int = 0) -> None:
        self._total, self._active, self._number = total_jobs, active, done
        self._job: Job | None = None
        self._bar: Any = None
        self._last_line = 0.0

    def start(self, job: Job, steps: int, done: int) -> None:
        """Begin a job of so many steps, of which some were done before."""
        from tqdm import tqdm

        self._number += 1
        self._job = job
        if not self._active:
            return
        text = f"[{self._number}/{self._total}] {job.name}"
        resumed = f", resumed at step {done}" if done else ""
        log.info(
            "%s: %d for training and %d for testing, %d steps%s",
            text,
            len(job.training),
            len(job.testing),
            steps,
            resumed,
        )
        self._last_line = time.monotonic()
        self._bar = tqdm(
            total=steps, initial=done, desc=text, leave=False, disable=not sys.stderr.isatty()
        )

    def skip(self, job: Job) -> None:
        """Say that a job was finished by an earlier run."""
        self._number += 1
        if self._active:
            log.info("[%d/%d] %s: already trained", self._number, self._total, job.name)

    def step(self, loss: float) -> None:
        """Count a step."""
        if self._bar is None or self._job is None:
            return
        self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self._bar.update()
        if self._bar.disable:  # a bar that is not shown does not count either
            self._bar.n += 1
            if time.monotonic() - self._last_line > _LINE_EVERY:
                self._last_line = time.monotonic()
                done = f"{self._bar.n}/{self._bar.total}"
                log.info("%s, step %s: loss %.3f", self._job.name, done, loss)

    def epoch(self, row: dict[str, float | int | None]) -> None:
        """Say how an epoch went."""
        if not self._active or self._job is None:
            return
        figure = next(name for name in (ACCURACY, ERROR) if f"train_{name}" in row)
        text = f"loss {row['train_loss']:.4f}, {figure} {row[f'train_{figure}']:.3f}"
        if row["held_out_loss"] is not None:
            text += f"; held out {row['held_out_loss']:.4f}, {row[f'held_out_{figure}']:.3f}"
        epochs = self._job.options.epochs
        log.info("%s, epoch %d/%d: %s", self._job.name, row["epoch"], epochs, text)

    def finish(self) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
