"""Train one model: fit the harmonisation, start the filters, step, score the held-out people.

Everything that is fitted sees the job's training scans and nobody else: gains of the sites,
k-means of the kernel network's filters, weights, running statistics. The same job gives the same
model: samples of an epoch follow from seed and epoch, so a run may end between any two steps and
go on later, with any number of processes.

A step over P processes equals one over the joined batch of n samples: process p takes every P-th
sample, statistics are those of all samples (`bids_gevnet.nn.norm`), each process's loss is
P / n times the sum over its samples, and DistributedDataParallel averages gradients over P.

Learning rate at step t of T: rate * final_rate^(t / T), the paper's exponential decay.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from bids_gevnet.bids.writing import replacing, write_json, write_text
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.harmonisation.glm import fit_rish_glm
from bids_gevnet.learn.checkpoints import Position, load_checkpoint, save_checkpoint
from bids_gevnet.learn.distributed import TrainingInterrupted
from bids_gevnet.learn.mixup import Mixture, plan_epoch, split_batches
from bids_gevnet.learn.model_files import build_network, write_model
from bids_gevnet.learn.outcome import CURVE, curve_text, is_finished, make_card
from bids_gevnet.learn.scans import ScanReader, read_ahead
from bids_gevnet.learn.store import LogRishMaps, StoredScan, mean_log_rish
from bids_gevnet.nn.ckn import keep_on_sphere
from bids_gevnet.nn.norm import MomentNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.distributed import Processes, StopRequest
    from bids_gevnet.learn.jobs import JobScan, TrainJob
    from bids_gevnet.learn.progress import TrainingProgress
    from bids_gevnet.nn.compound import CompoundNetwork

_KEPT_VOXELS = 8000  # about 60 kB each: what is kept need not be computed again, a fifth faster
_WHOLE_VOXELS = 2_000_000  # of all volumes of a batch, about 150 bytes each: not cut at all
_STATISTICS_SCANS = 64  # enough for means over millions of voxels


class TrainingDiverged(BidsGevnetError):  # noqa: N818 - reads as the sentence it is
    """The loss is no number any more."""

    exit_code = 1


def train_job(
    job: TrainJob, processes: Processes, stop: StopRequest, progress: TrainingProgress
) -> None:
    """Train a model and write it, from its checkpoint if there is one.

    Parameters
    ----------
    job : TrainJob
    processes : Processes
        This process among those that train this model together.
    stop : StopRequest
        Looked at between steps.
    progress : TrainingProgress
    """
    if is_finished(job):
        progress.skip(job)
        return
    gains = fit_harmonisation(job, processes)
    trainer = Trainer(job, gains, processes)
    if not trainer.resume():
        trainer.standardise_head()
    progress.start(job, trainer.total_steps, trainer.steps_done)
    try:
        trainer.fit(stop, progress)
    finally:
        progress.finish()
    trainer.finish()


def fit_harmonisation(job: TrainJob, processes: Processes) -> RishGains | None:
    """Fit gains to the training scans, in the first process; the others read them."""
    if not job.options.harmonise:
        return None
    path = Path(job.work_dir) / "harmonisation.npz"
    if processes.first:
        scans = job.training
        names = sorted({name for scan in scans for name in scan.covariates})
        gains = fit_rish_glm(
            LogRishMaps([StoredScan(Path(scan.folder)) for scan in scans]),
            participants=[scan.participant for scan in scans],
            sites=[scan.site for scan in scans],
            groups=[job.labels[scan.label] for scan in scans],
            covariates={name: [scan.covariates.get(name) for scan in scans] for name in names},
            reference=job.options.reference_site,
            nside=job.nside,
            degrees=fit_limits(job.nside)[1],
        )
        with replacing(path) as part, part.open("wb") as stream:
            gains.save(stream)
    processes.wait()
    return load_gains(path)


class Trainer:
    """One model in training.

    Parameters
    ----------
    job : TrainJob
    gains : RishGains or None
    processes : Processes
    """

    def __init__(self, job: TrainJob, gains: RishGains | None, processes: Processes) -> None:
        self.job, self.gains, self.processes = job, gains, processes
        self.options = job.options
        self.reader = ScanReader(job.training, gains)
        self.labels = [scan.label for scan in job.training]
        self.network = self._start_network()
        self.model: nn.Module = self.network
        if processes.size > 1:
            on_gpu = [processes.device.index] if processes.device.type == "cuda" else None
            # All parameters fit one bucket, so their only all-reduce comes after those of the
            # normalisations, in the same order in every process.
            self.model = DistributedDataParallel(self.network, device_ids=on_gpu)
        self.optimiser = torch.optim.Adam(
            self.network.parameters(),
            lr=self.options.learning_rate,
            weight_decay=self.options.weight_decay,
        )
        keep_on_sphere(self.optimiser, self.network)
        self.position = Position()
        n_samples = self.options.samples_per_class * len(set(self.labels))
        self.batches = split_batches(n_samples, max(self.options.batch_size, processes.size))

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        return self.options.epochs * len(self.batches)

    @property
    def steps_done(self) -> int:
        """Steps done so far."""
        return self.position.epoch * len(self.batches) + self.position.step

    @property
    def _checkpoint(self) -> Path:
        return Path(self.job.work_dir) / "checkpoint.safetensors"

    def _start_network(self) -> CompoundNetwork:
        """Weights from the seed; the kernel network's filters from training patches."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            network = build_network(
                self.options.network, len(self.job.labels), self.job.nside, self.options.strides
            )
        if self.processes.first:  # others receive the weights of the first
            volumes = self.reader.random_volumes(self.options.seed)
            network.initialise_(volumes, seed=self.options.seed)
        share = -(-self.options.batch_size // self.processes.size)
        coarse = share * math.prod(-(-n // network.stride) for n in self.job.shape)
        if coarse <= _KEPT_VOXELS:
            n_volumes = share * 6 * self.job.nside**2
            whole = n_volumes * math.prod(self.job.shape) <= _WHOLE_VOXELS
            network.pieces = replace(network.pieces, keep_sphere=True, whole=whole)
        return network.to(self.processes.device)

    def resume(self) -> bool:
        """Go to where the last checkpoint of this job is; say whether there is one."""
        found = load_checkpoint(self._checkpoint, self.network, self.optimiser, self.job.digest)
        self.position = found or self.position
        return found is not None

    @torch.no_grad()
    def standardise_head(self) -> None:
        """Start the classifier's first layer so that its inputs have mean 0 and variance 1.

        Features are means over a whole brain: they differ between people by a few per cent of
        their size, and a layer started for unit variance sees next to nothing of that. With m
        and s their mean and standard deviation over training scans, W x + b becomes
        W (x - m) / s + b: another start for the same network.
        """
        head: Any = self.network.get_submodule("head.0")
        chosen = self._some_training_scans()
        self.settle_statistics(chosen)
        features = torch.tensor(self._features([self.job.training[i] for i in chosen]))
        spread = features.std(0, correction=0)
        weight = head.weight / spread.clamp_min(1e-3 * float(spread.max())).to(head.weight)
        head.bias -= weight @ features.mean(0).to(weight)
        head.weight.copy_(weight)

    def _some_training_scans(self) -> list[int]:
        order = np.random.default_rng(self.options.seed).permutation(len(self.labels))
        return [int(index) for index in order[:_STATISTICS_SCANS]]

    def _features(self, scans: Sequence[JobScan]) -> list[list[float]]:
        return self._each(scans, self.network.features)

    def save(self) -> None:
        """Write a checkpoint, in the first process."""
        if self.processes.first:
            save_checkpoint(
                self._checkpoint, self.network, self.optimiser, self.position, self.job.digest
            )
        self.processes.wait()

    def fit(self, stop: StopRequest, progress: TrainingProgress) -> None:
        """Train to the end, or until a signal asks to stop."""
        while self.position.epoch < self.options.epochs:
            asked = self._epoch(stop, progress)
            row = self._close_epoch()
            progress.epoch(row)
            self.save()
            if asked and self.position.epoch < self.options.epochs:
                raise self._interrupted()

    def _interrupted(self) -> TrainingInterrupted:
        return TrainingInterrupted(
            expected="to train to the end",
            found=f"a signal to stop at step {self.steps_done} of {self.total_steps} "
            f"({self.job.name})",
            remedy="run the same command again with --resume: it goes on from there",
        )

    def _epoch(self, stop: StopRequest, progress: TrainingProgress) -> bool:
        """Do the steps of an epoch; return whether a signal asked to stop at the last of them."""
        asked = False
        position, device = self.position, self.processes.device
        samples = plan_epoch(
            self.labels,
            samples_per_class=self.options.samples_per_class,
            seed=self.options.seed,
            epoch=position.epoch,
        )
        steps = [[samples[i] for i in batch] for batch in self.batches[position.step :]]
        shares = [self._parts(step) for step in steps]
        incoming = read_ahead(self.reader, (part for parts in shares for part in parts))
        self.model.train()
        for step, parts in zip(steps, shares, strict=True):
            rate = self._rate()
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.zero_grad(set_to_none=True)
            loss = correct = 0.0
            for number in range(len(parts)):
                batch = tuple(tensor.to(device) for tensor in next(incoming))
                with self._synchronise(last=number == len(parts) - 1):
                    scores, losses = self._forward(*batch)
                    torch.autograd.backward(losses.sum() * (self.processes.size / len(step)))
                loss += float(losses.detach().sum())
                correct += float((scores.argmax(1) == batch[2]).sum())
            self.optimiser.step()
            loss, correct = self.processes.sum([loss, correct])
            self._count(loss, correct, len(step))
            progress.step(loss / len(step))
            asked = stop.agreed(self.processes)
            if asked and self.position.step < len(self.batches):
                self.save()
                raise self._interrupted()
        return asked

    def _parts(self, step: Sequence[Mixture]) -> list[Sequence[Mixture]]:
        """Cut this process's share of a batch into as many parts as everybody else's."""
        share = self.processes.share(step)
        count = min(self.options.accumulate, len(step) // self.processes.size)
        edges = np.linspace(0, len(share), count + 1).round().astype(int)
        return [share[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]  # noqa: RUF007

    def _forward(self, scans: Tensor, masks: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with self._precision():
            scores: Tensor = self.model(scans, masks)
        return scores.float(), F.cross_entropy(scores.float(), labels, reduction="none")

    def _precision(self) -> AbstractContextManager[Any]:
        device = self.processes.device.type
        half = self.options.precision == "bfloat16"
        if self.options.precision == "auto":
            half = device == "cuda"
        return torch.autocast(device, torch.bfloat16) if half else nullcontext()

    def _synchronise(self, *, last: bool) -> AbstractContextManager[Any]:
        """Average gradients over processes at the last part of a batch only."""
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()

    def _rate(self) -> float:
        done = self.steps_done / max(self.total_steps, 1)
        return float(self.options.learning_rate * self.options.final_rate**done)

    def _count(self, loss: float, correct: float, seen: int) -> None:
        if not math.isfinite(loss):
            raise TrainingDiverged(
                expected="a loss that is a number",
                found=f"{loss} at step {self.steps_done} of {self.job.name}",
                remedy="train with --precision float32, or check the scans for impossible values",
            )
        self.position.loss_sum += loss
        self.position.correct += correct
        self.position.seen += seen
        self.position.step += 1

    def _close_epoch(self) -> dict[str, float | int | None]:
        """Add a row to the learning curve and move on to the next epoch."""
        position = self.position
        row: dict[str, float | int | None] = dict.fromkeys(CURVE)
        row["epoch"] = position.epoch + 1
        row["learning_rate"] = self._rate()
        row["train_loss"] = position.loss_sum / position.seen
        row["train_accuracy"] = position.correct / position.seen
        if self.options.held_out_curve and self.job.testing:
            scores = torch.tensor(self.score(self.job.testing))
            truth = torch.tensor([scan.label for scan in self.job.testing])
            row["held_out_loss"] = float(F.cross_entropy(scores, truth))
            row["held_out_accuracy"] = float((scores.argmax(1) == truth).float().mean())
        self.position = Position(epoch=position.epoch + 1, curve=[*position.curve, row])
        return row

    def score(self, scans: Sequence[JobScan]) -> list[list[float]]:
        """Scores of each scan, (n, classes)."""
        return self._each(scans, self.network)

    @torch.no_grad()
    def _each(
        self, scans: Sequence[JobScan], function: Callable[[Tensor, Tensor], Tensor]
    ) -> list[list[float]]:
        """Evaluate a function of each scan and mask, the work shared among processes."""
        reader = ScanReader(scans, self.gains)
        self.network.eval()
        own = []
        for index in self.processes.share(range(len(scans))):
            volume, mask = (tensor.to(self.processes.device) for tensor in reader.single(index))
            with self._precision():
                values = function(volume, mask)[0]
            own.append((index, values.float().tolist()))
        return [values for _, values in sorted(self.processes.gather(own))]

    @torch.no_grad()
    def settle_statistics(self, chosen: Sequence[int]) -> None:
        """Set the running statistics to their mean over some training scans.

        During training they trail behind the weights, and after a few steps they still hold a
        part of their start values.
        """
        norms = [part for part in self.network.modules() if isinstance(part, MomentNorm)]
        kept = [norm.momentum for norm in norms]
        size = max(self.options.batch_size, self.processes.size)
        scans = [Mixture(i, i, 1.0, self.labels[i]) for i in chosen]
        batches = [[scans[i] for i in batch] for batch in split_batches(len(scans), size)]
        # A process without a scan would keep the others waiting for its statistics.
        enough = [batch for batch in batches if len(batch) >= self.processes.size]
        shares = [self.processes.share(batch) for batch in enough]
        self.network.train()
        for number, (volumes, masks, _) in enumerate(read_ahead(self.reader, shares)):
            for norm in norms:
                norm.momentum = 1 / (number + 1)
            with self._precision():
                self.network(volumes.to(self.processes.device), masks.to(self.processes.device))
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum

    def finish(self) -> None:
        """Score the held-out people, write the model, remove the checkpoint."""
        self.settle_statistics(self._some_training_scans())
        scores = self.score(self.job.testing)
        energies = self._training_energies()
        if self.processes.first:
            folder = Path(self.job.model_dir)
            write_text(folder / "learning_curve.csv", curve_text(self.position.curve))
            held_out = [
                {"scan": scan.scan, "scores": values}
                for scan, values in zip(self.job.testing, scores, strict=True)
            ]
            write_json(folder / "held_out.json", {"scans": held_out})
            fingerprints = [stored.fingerprint for stored in self.reader.stored]
            card = make_card(self.job, self.gains, fingerprints, energies)
            write_model(folder, self.network, card, self.gains)
            self._checkpoint.unlink(missing_ok=True)
        self.processes.wait()

    def _training_energies(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Log mean energy of each degree of each training scan, harmonised."""
        own = [
            (index, mean_log_rish(self.reader.read(index)[0], nside=self.job.nside))
            for index in self.processes.share(range(len(self.labels)))
        ]
        return np.array([values for _, values in sorted(self.processes.gather(own))])
