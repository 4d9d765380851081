"""Train one model: fit the harmonisation, start the filters, take steps, write it.

Everything that is fitted sees the job's training scans and nobody else: gains of the sites,
k-means of the kernel network's filters, weights, running statistics. The same job gives the same
model: samples of an epoch follow from seed and epoch. `loop` does the steps.

Learning rate at step t of T: rate * final_rate^(t / T), the paper's exponential decay.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import replacing, write_json, write_text
from bids_gevnet.equal_steps import at_equal_steps
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.harmonisation.glm import fit_rish_glm
from bids_gevnet.learn.cohort.store import LogRishMaps, StoredScan, mean_log_rish
from bids_gevnet.learn.models.files import GAINS, build_network, write_model
from bids_gevnet.learn.train.batches import ScanReader, read_ahead
from bids_gevnet.learn.train.blocks import (
    BlockOfScan,
    BlockReader,
    count_boxes,
    plan_blocks,
    start_regions,
)
from bids_gevnet.learn.train.device_batches import DeviceReader
from bids_gevnet.learn.train.device_pieces import free_bytes
from bids_gevnet.learn.train.held_out import evaluate_scans
from bids_gevnet.learn.train.initial_model import continue_from_
from bids_gevnet.learn.train.jobs import kept_apart
from bids_gevnet.learn.train.loop import TrainingLoop, standardise_inputs_
from bids_gevnet.learn.train.mixup import (
    Mixture,
    plan_epoch,
    plan_number_epoch,
    samples_per_epoch,
    split_batches,
)
from bids_gevnet.learn.train.objectives import CLASSES, numbers
from bids_gevnet.learn.train.outputs import (
    HELD_OUT,
    curve_text,
    is_trained,
    make_card,
)
from bids_gevnet.learn.train.pieces import choose_pieces
from bids_gevnet.nn.compound import brain_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.train.distributed import Processes, StopRequest
    from bids_gevnet.learn.train.jobs import JobScan, TrainJob
    from bids_gevnet.learn.train.loop import Row
    from bids_gevnet.learn.train.progress import TrainingProgress
    from bids_gevnet.nn.compound import CompoundNetwork, ScanNetwork

STATISTICS_SCANS = 64
"""Training scans for running statistics, at most: enough for means over millions of voxels."""
CURVE_SCANS = 500
"""Test scans that the learning curve is drawn from, at most: they are scored after every epoch."""


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
    if is_trained(job):
        progress.skip(job)
        return
    gains = fit_harmonisation(job, processes)
    trainer = Trainer(job, gains, processes)
    if not trainer.resume():
        trainer.start()
    progress.start(job, trainer.total_steps, trainer.steps_done)
    try:
        trainer.fit(stop, progress)
    finally:
        progress.finish()
    trainer.finish()


def checkpoint_file(job: TrainJob) -> Path:
    """Where the state of a job's training is kept between two steps."""
    return Path(job.work_dir) / "checkpoint.safetensors"


def gains_file(job: TrainJob) -> Path:
    """Where the harmonisation of a job is kept until its model is written."""
    return Path(job.work_dir) / GAINS


def fit_harmonisation(job: TrainJob, processes: Processes) -> RishGains | None:
    """Fit gains to the training scans, in the first process; the others read them.

    What an earlier fit for the same job left is used again.
    """
    if not job.options.harmonise:
        return None
    path = gains_file(job)
    stamp = path.with_suffix(".json")
    if processes.first and not (
        path.is_file() and read_json(stamp) == {"digest": job.digest, "sha256": hash_file(path)}
    ):
        scans = job.training
        groups, covariates = kept_apart(scans, job.labels)
        gains = fit_rish_glm(
            LogRishMaps([StoredScan(Path(scan.folder)) for scan in scans]),
            participants=[scan.participant for scan in scans],
            sites=[scan.site for scan in scans],
            groups=groups,
            covariates=covariates,
            reference=job.options.reference_site,
            nside=job.nside,
            degrees=fit_limits(job.nside)[1],
            b_values=job.b_values,
        )
        with replacing(path) as part, part.open("wb") as stream:
            gains.save(stream)
        write_json(stamp, {"digest": job.digest, "sha256": hash_file(path)})
    processes.wait()
    return load_gains(path)


class Trainer(TrainingLoop):
    """One model in training.

    Parameters
    ----------
    job : TrainJob
    gains : RishGains or None
    processes : Processes
    """

    def __init__(self, job: TrainJob, gains: RishGains | None, processes: Processes) -> None:
        self.job, self.gains, self.options = job, gains, job.options
        self.reader = ScanReader(job.training, gains)
        self.truth = truth_of(job, job.training)
        self.objective = numbers(job.scale[1]) if job.is_regression else CLASSES
        voxels = float(np.mean([len(stored.samples) for stored in self.reader.stored]))
        n_samples = samples_per_epoch(self.options.samples_per_class, len(job.labels))
        network = self._start_network(processes)
        self.boxes = count_boxes(self.options.voxels_per_step, voxels, network)
        if self.boxes > 1:
            self.take_blocks(cast("CompoundNetwork", network), processes)
        super().__init__(
            network,
            split_batches(n_samples, max(self.options.batch_size, processes.size)),
            self.options,
            processes,
            checkpoint=checkpoint_file(job),
            name=job.name,
            digest=job.digest,
        )
        self.compound: Any = network

    def take_blocks(self, network: CompoundNetwork, processes: Processes) -> None:
        """Make ready what training on blocks needs beside the network itself."""
        network.regions = start_regions(network, self.job.shape, network.n_features)
        network.regions.to(processes.device)
        share = -(-self.options.batch_size // processes.size)
        network.block_pieces = choose_pieces(
            self.job,
            network,
            self.reader.largest,
            share,
            boxes=self.boxes,
            free=free_bytes(processes.device),
        )

    def _start_network(self, processes: Processes) -> ScanNetwork:
        """Weights from the seed, filters of the kernel network from training patches.

        Or all of them from the model that the job starts from.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.options.seed)
            network = build_network(
                self.options.network,
                len(self.job.labels),
                self.job.nside,
                self.options.strides,
                shells=self.job.shells,
            )
        if self.job.init_dir:
            continue_from_(network, self.job)
        elif processes.first:  # others receive the weights of the first
            volumes = self.reader.random_volumes(self.options.seed, self.job.shells)
            network.initialise_(volumes, seed=self.options.seed)
        share = -(-self.options.batch_size // processes.size)
        free = free_bytes(processes.device)
        network.pieces = choose_pieces(self.job, network, self.reader.largest, share, free=free)
        return network.to(processes.device)

    def plan(self, epoch: int) -> Sequence[Mixture | BlockOfScan]:
        """List the samples of an epoch; the same in every process and every run."""
        size, seed = self.options.samples_per_class, self.options.seed
        if self.job.is_regression:
            samples = plan_number_epoch(self.truth, samples_per_half=size, seed=seed, epoch=epoch)
        else:
            classes = [scan.label for scan in self.job.training]
            samples = plan_epoch(classes, samples_per_class=size, seed=seed, epoch=epoch)
        if self.boxes == 1:
            return samples
        turn = len(samples) // size  # one of each class, or of each half of the numbers
        return plan_blocks(samples, classes=turn, boxes=self.boxes, seed=seed, epoch=epoch)

    def read(self, parts: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        """Volumes, masks and labels of each part; or blocks and labels."""
        on_host = self.processes.device.type == "cpu"
        if self.boxes > 1 or on_host:
            reach = self.compound.reach or 0
            ahead = read_ahead(BlockReader(self.reader, self.compound.stride, reach), parts)
            return ahead if on_host else map(super().place, ahead)
        return self._device_reader.batches(parts)

    @cached_property
    def _device_reader(self) -> DeviceReader:
        """Made once: the gains of all sites stay on the device."""
        on_host = self.compound.masks_on_host
        return DeviceReader(self.reader, self.processes.device, masks_on_host=on_host)

    def place(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Leave tensors where `read` made them: on the device, or masks on the host."""
        return tensors

    def rate(self) -> float:
        """Learning rate of the next step."""
        done = self.steps_done / max(self.total_steps, 1)
        return float(self.options.learning_rate * self.options.final_rate**done)

    def start(self) -> None:
        """Start what is fitted to features of whole training scans, before the first step.

        The classifier's first layer, so that its inputs have mean 0 and variance 1, unless it is
        that of another model; and mean features of each region, where training takes blocks.
        """
        if self.job.keeps_classifier and self.boxes == 1:
            return
        chosen = self._some_training_scans()
        self.settle_statistics(chosen)
        features = self._features([self.job.training[i] for i in chosen])
        if not self.job.keeps_classifier:
            head: Any = self.network.get_submodule("head.0")
            standardise_inputs_(head, torch.tensor(features))

    def _some_training_scans(self) -> list[int]:
        order = np.random.default_rng(self.options.seed).permutation(len(self.truth))
        return [int(index) for index in order[:STATISTICS_SCANS]]

    def _features(self, scans: Sequence[JobScan]) -> list[list[float]]:
        if self.boxes == 1:
            return self._each(scans, self.compound.features)
        cells: list[Tensor] = []
        values: list[Tensor] = []

        def noted(volume: Tensor, mask: Tensor) -> Tensor:
            voxels: Tensor = self.compound.features_by_voxel(volume, mask)[0]
            cells.append(brain_index(mask[0], self.compound.stride))
            values.append(voxels.float())
            return voxels.mean(0)[None]

        features = self._each(scans, noted)
        self.compound.regions.update_(cells, values)
        return features

    def held_out(self) -> Row:
        """Loss and figure of the test scans, for the learning curve only."""
        if not (self.options.held_out_curve and self.job.testing):
            return {}
        testing = choose_for_curve(self.job.testing)
        scores = torch.tensor(self.score(testing))
        truth = torch.tensor(truth_of(self.job, testing))
        figure = f"held_out_{self.objective.figure}"
        return {
            "held_out_loss": float(self.objective.losses(scores, truth).mean()),
            figure: float(self.objective.figures(scores, truth).mean()),
        }

    def score(self, scans: Sequence[JobScan]) -> list[list[float]]:
        """Scores of each scan, (n, classes)."""
        return self._each(scans, self.network)

    def _each(
        self, scans: Sequence[JobScan], function: Callable[[Tensor, Tensor], Tensor]
    ) -> list[list[float]]:
        self.network.eval()
        reader = ScanReader(scans, self.gains)
        return evaluate_scans(function, reader, self.processes, self.precision)

    def settle_statistics(self, chosen: Sequence[int]) -> None:
        """Set the running statistics to their mean over some training scans."""
        size = max(self.options.batch_size, self.processes.size)
        scans = [Mixture(i, i, 1.0, self.truth[i]) for i in chosen]
        batches = [[scans[i] for i in batch] for batch in split_batches(len(scans), size)]
        enough = [batch for batch in batches if len(batch) >= self.processes.size]
        self.settle([self.processes.share(batch) for batch in enough])

    def finish(self) -> None:
        """Write the model and remove the checkpoint."""
        self.settle_statistics(self._some_training_scans())
        energies = self._training_energies()
        if self.processes.first:
            folder = Path(self.job.model_dir)
            (folder / HELD_OUT).unlink(missing_ok=True)  # of an earlier model
            write_text(folder / "learning_curve.csv", curve_text(self.position.curve))
            fingerprints = [stored.fingerprint for stored in self.reader.stored]
            card = make_card(self.job, self.gains, fingerprints, energies)
            self.compound.regions = None  # of use in training only
            write_model(folder, self.network, card, self.gains)
            self._checkpoint.unlink(missing_ok=True)
        self.processes.wait()

    def _training_energies(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Log mean energy of each degree of each training scan, harmonised."""
        energies = [
            (index, mean_log_rish(self.reader.read(index)[0], nside=self.job.nside))
            for index in self.processes.share(range(len(self.truth)))
        ]
        return np.array([values for _, values in sorted(self.processes.gather(energies))])


def choose_for_curve(testing: Sequence[JobScan], *, most: int = CURVE_SCANS) -> Sequence[JobScan]:
    """Choose test scans for the learning curve, which nothing is decided by: of many, a part."""
    return at_equal_steps(testing, most)


def truth_of(job: TrainJob, scans: Sequence[JobScan]) -> list[int] | list[float]:
    """Class of each scan, or its number, standardised by the job's training scans."""
    if not job.is_regression:
        return [scan.label for scan in scans]
    mean, spread = job.scale
    return [(scan.value - mean) / spread for scan in scans if scan.value is not None]
