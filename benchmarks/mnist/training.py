"""One training on spherical MNIST, by the loop of the group level, and its tests."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from pages import current_commit
from safetensors.torch import save_file

from bids_gevnet.bids.writing import replacing, write_json
from bids_gevnet.learn.train.loop import TrainingLoop, standardise_inputs_
from bids_gevnet.learn.train.mixup import split_batches
from bids_gevnet.nn.gevnet import count_parameters
from mnist.data import fingerprint, load_digits
from mnist.networks import build
from mnist.schedule import one_cycle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from bids_gevnet.learn.train.distributed import Processes, StopRequest
    from bids_gevnet.learn.train.loop import Row
    from bids_gevnet.learn.train.progress import TrainingProgress
    from mnist.data import SphericalDigits

_SAVE_EVERY = 50  # steps: a run that is killed repeats less than a minute
_STATISTICS_BATCHES = 20
_TEST_BATCH = 250


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything that decides the weights of a training, but for the data.

    Parameters
    ----------
    network : str
        Name in the zoo, or of one of the larger networks.
    rotated : bool
        Whether the training images are rotated: R, else NR.
    level : int
        Of the icosphere.
    edge : float
        Degrees from the pole to the middles of the image's sides.
    blur : float
        Of the images before projection, in pixels.
    samples : int or None
        N of the regular nonlinearities; None is the limit of infinitely many.
    train_images, test_images : int
        The first so many of the files.
    epochs, batch_size, accumulate, learning_rate, weight_decay, precision, seed
        As for `bids_gevnet.learn.train.jobs.TrainOptions`; the rate is the highest of one cycle.
    curve_images : int
        Test images that the learning curve shows after every epoch.
    """

    network: str = "gevnet-mnist"
    rotated: bool = False
    level: int = 3
    edge: float = 110.0
    blur: float = 0.8
    samples: int | None = 7
    train_images: int = 60_000
    test_images: int = 10_000
    epochs: int = 3
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 6e-3
    weight_decay: float = 0.0
    precision: str = "float32"
    seed: int = 0
    curve_images: int = 1000


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training with its data and its folder.

    Parameters
    ----------
    options : Options
    training, testing : SphericalDigits
    parent : Path
        Folder of all trainings.
    """

    options: Options
    training: SphericalDigits
    testing: SphericalDigits
    parent: Path

    @property
    def name(self) -> str:
        """Network, kind of training images and seed."""
        kind = "R" if self.options.rotated else "NR"
        return f"{self.options.network}_{kind}_seed-{self.options.seed}"

    @property
    def folder(self) -> Path:
        """Folder of checkpoint, weights and result: another one where any option differs."""
        return self.parent / f"{self.name}_{self.digest[:8]}"

    @cached_property
    def digest(self) -> str:
        """Same digest, same weights and tests."""
        data = [fingerprint(digits) for digits in (self.training, self.testing)]
        content = asdict(self.options) | {"data": data}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def make_job(options: Options, data: Path, folder: Path) -> Job:
    """Read the images of a training."""
    digits = partial(load_digits, data, level=options.level, edge=options.edge, blur=options.blur)
    return Job(
        options=options,
        training=digits("train").first(options.train_images),
        testing=digits("test").first(options.test_images),
        parent=folder,
    )


def train(
    job: Job, processes: Processes, stop: StopRequest, progress: TrainingProgress
) -> dict[str, Any]:
    """Train and test, from the last checkpoint; return what `result.json` holds."""
    found = read_result(job.folder)
    if found is not None:
        progress.skip(job)
        return found
    trainer = Trainer(job, processes)
    if not trainer.resume():
        trainer.standardise_head()
    progress.start(job, trainer.total_steps, trainer.steps_done)
    try:
        trainer.fit(stop, progress)
    finally:
        progress.finish()
    return trainer.finish()


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read the result of a finished training; None where there is none."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return result


class Trainer(TrainingLoop):
    """One network on spherical MNIST.

    Parameters
    ----------
    job : Job
    processes : Processes
    """

    going_on = "run the same command again: it resumes from there"

    def __init__(self, job: Job, processes: Processes) -> None:
        self.job, self.options = job, job.options
        options = job.options
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            network = build(options.network, options.level, options.samples)
        super().__init__(
            network.to(processes.device),
            split_batches(len(job.training), max(options.batch_size, processes.size)),
            options,
            processes,
            checkpoint=job.folder / "checkpoint.safetensors",
            name=job.name,
            digest=job.digest,
            save_every=_SAVE_EVERY,
        )
        self._seconds_before, self._start = 0.0, time.process_time()
        self._commit = current_commit()

    @property
    def seconds(self) -> float:
        """Processor time of the first process that led to these weights."""
        return self._seconds_before + time.process_time() - self._start

    @property
    def _clock(self) -> Path:
        return self.job.folder / "processor_time.json"

    def resume(self) -> bool:
        """Go to where the last checkpoint of this job is; say whether there is one."""
        found = super().resume()
        if found:
            self._seconds_before = json.loads(self._clock.read_text(encoding="utf-8"))["seconds"]
        return found

    def save(self) -> None:
        """Write a checkpoint, and the time that it took."""
        if self.processes.first:  # first, because a checkpoint without it would be of no use
            write_json(self._clock, {"seconds": self.seconds})
        super().save()

    def plan(self, epoch: int) -> Sequence[int]:
        """All training images in an order that follows from seed and epoch."""
        order = np.random.default_rng((self.options.seed, epoch)).permutation(
            len(self.job.training)
        )
        return [int(i) for i in order]

    def read(self, parts: Iterable[Sequence[int]]) -> Iterator[tuple[Tensor, ...]]:
        """Signals and labels of each part."""
        return (
            self._tensors(self.job.training, part, rotated=self.options.rotated) for part in parts
        )

    @staticmethod
    def _tensors(
        digits: SphericalDigits, which: Sequence[int], *, rotated: bool
    ) -> tuple[Tensor, Tensor]:
        signals = torch.from_numpy(digits.signals(which, rotated=rotated))
        return signals, torch.from_numpy(digits.labels[np.asarray(which)].astype(np.int64))

    def rate(self) -> float:
        """Learning rate of the next step."""
        done = self.steps_done / max(self.total_steps, 1)
        return self.options.learning_rate * one_cycle(done)

    def settle_statistics(self) -> None:
        """Set the running statistics to their mean over some training images."""
        order = self.plan(0)
        batches = [[order[i] for i in batch] for batch in self.batches[:_STATISTICS_BATCHES]]
        self.settle([self.processes.share(batch) for batch in batches])

    @torch.no_grad()
    def standardise_head(self) -> None:
        """Start the classifier's first layer so that its inputs have mean 0 and variance 1."""
        self.settle_statistics()
        self.network.eval()
        # Every process takes the same images, so that all start with the same weights.
        chosen = self.plan(0)[:_TEST_BATCH]
        signals, _ = self._tensors(self.job.training, chosen, rotated=self.options.rotated)
        features = self.network.features(signals.to(self.processes.device))
        standardise_inputs_(self.network.get_submodule("head.0"), features)

    def held_out(self) -> Row:
        """Score some test images, rotated if those of training are, for the curve only."""
        few = min(self.options.curve_images, len(self.job.testing))
        loss, accuracy = self.score(range(few), rotated=self.options.rotated)
        return {"held_out_loss": loss, "held_out_accuracy": accuracy}

    @torch.no_grad()
    def score(self, which: Sequence[int], *, rotated: bool) -> tuple[float, float]:
        """Mean loss and accuracy of test images, the work shared among processes."""
        self.network.eval()
        loss = correct = 0.0
        own = self.processes.share(which)
        for start in range(0, len(own), _TEST_BATCH):
            part = own[start : start + _TEST_BATCH]
            signals, labels = (
                tensor.to(self.processes.device)
                for tensor in self._tensors(self.job.testing, part, rotated=rotated)
            )
            with self.precision():
                scores = self.network(signals)
            loss += float(F.cross_entropy(scores.float(), labels, reduction="sum"))
            correct += float((scores.argmax(1) == labels).sum())
        loss, correct = self.processes.sum([loss, correct])
        return loss / len(which), correct / len(which)

    def finish(self) -> dict[str, Any]:
        """Test, write weights and result, remove the checkpoint."""
        trained = self.seconds
        self.settle_statistics()
        kinds = ("R",) if self.options.rotated else ("NR", "R")
        everything = range(len(self.job.testing))
        accuracy = {kind: self.score(everything, rotated=kind == "R")[1] for kind in kinds}
        result = {
            "accuracy": accuracy,
            "commit": self._commit,
            "curve": self.position.curve,
            "digest": self.job.digest,
            "options": asdict(self.options),
            "parameters": count_parameters(self.network),
            "processes": self.processes.size,
            "device": self.processes.device.type,
            "trace": self.position.trace,
            "testing_seconds": self.seconds - trained,
            "training_seconds": trained,
        }
        if self.processes.first:
            tensors = {k: v.cpu().contiguous() for k, v in self.network.state_dict().items()}
            with replacing(self.job.folder / "model.safetensors") as part:
                save_file(tensors, part)
            write_json(self.job.folder / "result.json", result)
            self._checkpoint.unlink(missing_ok=True)
            self._clock.unlink(missing_ok=True)
        self.processes.wait()
        return result
