"""Steps of one training over any number of processes, from its last checkpoint to its end.

What is trained on what is left to the class that inherits: it plans the samples of an epoch,
reads them, and may score what was held out. The samples of an epoch follow from its number, so a
run may end between any two steps and go on later, with any number of processes.

A step over P processes equals one over the joined batch of n samples: process p takes every P-th
sample, statistics are those of all samples (`bids_gevnet.nn.norm`), each process's loss is
P / n times the sum over its samples, and DistributedDataParallel averages gradients over P.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.learn.train.checkpoints import Position, load_checkpoint, save_checkpoint
from bids_gevnet.learn.train.distributed import TrainingInterrupted
from bids_gevnet.learn.train.objectives import CLASSES, Objective
from bids_gevnet.learn.train.outputs import curve_columns
from bids_gevnet.nn.ckn import keep_on_sphere
from bids_gevnet.nn.norm import MomentNorm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from bids_gevnet.learn.train.distributed import Processes, StopRequest
    from bids_gevnet.learn.train.progress import TrainingProgress

    Row = dict[str, float | int | None]


CHECKPOINT_EVERY_S = 300
"""Seconds after which a checkpoint is written within an epoch, whatever happens."""


class TrainingDiverged(BidsGevnetError):  # noqa: N818 - reads as the sentence it is
    """The loss is not a finite number."""

    exit_code = 1


@torch.no_grad()
def standardise_inputs_(layer: nn.Linear, features: Tensor) -> None:
    """Start a layer so that its inputs have mean 0 and variance 1.

    Features are means over a brain or a sphere: they differ by a few per cent of their size, and
    a layer started for unit variance sees next to nothing of that. With m and s their mean and
    standard deviation, W x + b becomes W (x - m) / s + b: another start for the same network.

    Parameters
    ----------
    layer : nn.Linear
    features : (n, n_in) tensor
        Of some training samples.
    """
    spread = features.std(0, correction=0)
    weight = layer.weight / spread.clamp_min(1e-3 * float(spread.max())).to(layer.weight)
    layer.bias.sub_(weight @ features.mean(0).to(weight))
    layer.weight.copy_(weight)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Context in which a network computes: "float32", "bfloat16", or "auto".

    "auto" is float32 on GPUs too: rounding to bfloat16 shifts features by up to 15 % of what
    people differ by (benchmarks/results/precision.md), and finished models predict in float32.
    """
    half = precision == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16) if half else nullcontext()


class StepOptions(Protocol):
    """What the steps of a training need to know; `jobs.TrainOptions` explains each."""

    @property
    def epochs(self) -> int:
        """Times through the plan."""

    @property
    def accumulate(self) -> int:
        """Parts of a share, one after the other."""

    @property
    def learning_rate(self) -> float:
        """Highest rate."""

    @property
    def weight_decay(self) -> float:
        """Adam's."""

    @property
    def precision(self) -> str:
        """Name of the number format, or auto."""


class TrainingLoop(ABC):
    """One model in training: the part that does not depend on what it is trained on.

    Parameters
    ----------
    network : nn.Module
        On the device of the process.
    batches : sequence of range
        Places in the plan of an epoch that belong to each step.
    options : StepOptions
    processes : Processes
        This process among those that train this model together.
    checkpoint : Path
    name, digest : str
        Of the job: for messages, and to know its own checkpoint.
    save_every : int or None
        Steps between checkpoints; None for one at the end of each epoch only.

    Attributes
    ----------
    going_on : str
        What to do after an interruption, for its message.
    objective : Objective
        What is minimised.
    """

    objective: Objective = CLASSES
    going_on = "run the same command again with --resume: training resumes from there"

    def __init__(
        self,
        network: nn.Module,
        batches: Sequence[range],
        options: StepOptions,
        processes: Processes,
        *,
        checkpoint: Path,
        name: str,
        digest: str,
        save_every: int | None = None,
    ) -> None:
        self.network, self.batches, self.processes = network, batches, processes
        self._steps, self._checkpoint, self._save_every = options, checkpoint, save_every
        self._name, self._digest = name, digest
        self.model: nn.Module = network
        if processes.size > 1:
            # All parameters fit one bucket, so their only all-reduce comes after those of the
            # normalisations, in the same order in every process.
            # Without device_ids, inputs are left where they are: masks may stay on the host.
            self.model = DistributedDataParallel(network)
        self.optimiser = torch.optim.Adam(
            network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        keep_on_sphere(self.optimiser, network)
        self.position = Position()
        self._saved_at = time.monotonic()

    @abstractmethod
    def plan(self, epoch: int) -> Sequence[Any]:
        """List the samples of an epoch; the same in every process and every run."""

    @abstractmethod
    def read(self, parts: Iterable[Sequence[Any]]) -> Iterator[tuple[Tensor, ...]]:
        """Make the tensors of each part: the network's arguments, and the labels last."""

    def place(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Put what `read` made on the device of this process."""
        return tuple(tensor.to(self.processes.device) for tensor in tensors)

    @abstractmethod
    def rate(self) -> float:
        """Learning rate of the next step."""

    def held_out(self) -> Row:
        """Columns of the learning curve about what is held out; called after every epoch."""
        return {}

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        return self._steps.epochs * len(self.batches)

    @property
    def steps_done(self) -> int:
        """Steps done so far."""
        return self.position.epoch * len(self.batches) + self.position.step

    def resume(self) -> bool:
        """Go to where the last checkpoint of this job is; say whether there is one."""
        position = load_checkpoint(self._checkpoint, self.network, self.optimiser, self._digest)
        self.position = position or self.position
        return position is not None

    def save(self) -> None:
        """Write a checkpoint, in the first process."""
        self._saved_at = time.monotonic()
        if self.processes.first:
            save_checkpoint(
                self._checkpoint, self.network, self.optimiser, self.position, self._digest
            )
        self.processes.wait()

    def fit(self, stop: StopRequest, progress: TrainingProgress) -> None:
        """Train to the end, or until a signal asks to stop."""
        while self.position.epoch < self._steps.epochs:
            asked = self._epoch(stop, progress)
            row = self._close_epoch()
            progress.epoch(row)
            self.save()
            if asked and self.position.epoch < self._steps.epochs:
                raise self._interrupted()

    def _interrupted(self) -> TrainingInterrupted:
        return TrainingInterrupted(
            expected="to train to the end",
            found=f"a signal to stop at step {self.steps_done} of {self.total_steps} "
            f"({self._name})",
            remedy=self.going_on,
        )

    def _epoch(self, stop: StopRequest, progress: TrainingProgress) -> bool:
        """Do the steps of an epoch; return whether a signal asked to stop at the last of them."""
        asked = False
        samples = self.plan(self.position.epoch)
        steps = [[samples[i] for i in batch] for batch in self.batches[self.position.step :]]
        shares = [self._parts(step) for step in steps]
        incoming = self.read(part for parts in shares for part in parts)
        self.model.train()
        for step, parts in zip(steps, shares, strict=True):
            rate = self.rate()
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.zero_grad(set_to_none=True)
            loss, correct = self._gradients(incoming, len(parts), len(step))
            self.optimiser.step()
            self._count(loss, correct, len(step))
            progress.step(loss / len(step))
            asked, overdue = self._agree(asked=stop.asked)
            if self.position.step < len(self.batches):
                due = self._save_every is not None and self.position.step % self._save_every == 0
                if due:
                    self.position.note()
                if asked or due or overdue:
                    self.save()
                if asked:
                    raise self._interrupted()
        return asked

    def _agree(self, *, asked: bool) -> tuple[bool, bool]:
        """Agree over processes whether to stop, and whether a checkpoint is overdue."""
        overdue = self.processes.first and time.monotonic() - self._saved_at > CHECKPOINT_EVERY_S
        sums = self.processes.sum([float(asked), float(overdue)])
        return sums[0] > 0, sums[1] > 0

    def _gradients(
        self, incoming: Iterator[tuple[Tensor, ...]], n_parts: int, n_samples: int
    ) -> tuple[float, float]:
        """Run forward and backward over one batch; give its loss and figure, over processes."""
        loss = correct = 0.0
        for number in range(n_parts):
            *inputs, labels = self.place(next(incoming))
            with self._synchronise(last=number == n_parts - 1):
                scores, losses = self._forward(inputs, labels)
                torch.autograd.backward(losses.sum() * (self.processes.size / n_samples))
            loss += float(losses.detach().sum())
            correct += float(self.objective.figures(scores.detach(), labels).sum())
        loss, correct = self.processes.sum([loss, correct])
        return loss, correct

    def _parts(self, step: Sequence[Any]) -> list[Sequence[Any]]:
        """Cut this process's share of a batch into as many parts as everybody else's."""
        share = self.processes.share(step)
        count = min(self._steps.accumulate, len(step) // self.processes.size)
        edges = np.linspace(0, len(share), count + 1).round().astype(int)
        return [share[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]  # noqa: RUF007

    def _forward(self, inputs: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        with self.precision():
            scores: Tensor = self.model(*inputs)
        return scores.float(), self.objective.losses(scores.float(), labels)

    def precision(self) -> AbstractContextManager[Any]:
        """Context in which the network computes."""
        return autocast(self._steps.precision, self.processes.device)

    def _synchronise(self, *, last: bool) -> AbstractContextManager[Any]:
        """Average gradients over processes at the last part of a batch only."""
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()

    def _count(self, loss: float, correct: float, seen: int) -> None:
        if not math.isfinite(loss):
            raise TrainingDiverged(
                expected="a loss that is a number",
                found=f"{loss} at step {self.steps_done} of {self._name}",
                remedy="train with --precision float32, or check the input for impossible values",
            )
        self.position.loss_sum += loss
        self.position.correct += correct
        self.position.seen += seen
        self.position.step += 1

    def _close_epoch(self) -> Row:
        """Add a row to the learning curve and move on to the next epoch."""
        position = self.position
        row: Row = dict.fromkeys(curve_columns(self.objective.figure))
        row["epoch"] = position.epoch + 1
        row["learning_rate"] = self.rate()
        row["train_loss"] = position.loss_sum / position.seen
        row[f"train_{self.objective.figure}"] = position.correct / position.seen
        row |= self.held_out()
        if self._save_every:
            position.note()
        self.position = Position(
            epoch=position.epoch + 1, curve=[*position.curve, row], trace=position.trace
        )
        return row

    @torch.no_grad()
    def settle(self, shares: Sequence[Sequence[Any]]) -> None:
        """Set the running statistics to their mean over some training batches.

        During training they trail behind the weights, and after a few steps they still hold a
        part of their start values.

        Parameters
        ----------
        shares : sequence
            This process's share of each batch; none may be empty in any process, which would
            keep the others waiting for its statistics.
        """
        norms = [part for part in self.network.modules() if isinstance(part, MomentNorm)]
        kept = [norm.momentum for norm in norms]
        self.network.train()
        for number, tensors in enumerate(self.read(shares)):
            *inputs, _ = self.place(tensors)
            for norm in norms:
                norm.momentum = 1 / (number + 1)
            with self.precision():
                self.network(*inputs)
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum
