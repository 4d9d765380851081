"""How long a study will train on this machine: a timed sample, times what the plan asks for.

One sample of random signal in the brain of the cohort's first scan goes through the network that
is to be trained, forward and backward, as training would run it: by one process, with its threads,
its number format and its pieces. Nothing is read from the store and nothing is written.

A whole brain of the paper's size would take ten seconds or more. Such a scan is halved along its
longest axis until it is small enough; grid and brain shrink alike, and time is in proportion to
both. What runs side by side in several processes is timed in one of them, so that memory they
would compete for is not accounted for; neither is reading, which goes on meanwhile, nor what
comes before and after training, which takes minutes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F

from bids_gevnet.learn.cohort.store import to_volume
from bids_gevnet.learn.models.files import build_network
from bids_gevnet.learn.train.blocks import BlockOfScan, BlockReader, count_boxes
from bids_gevnet.learn.train.distributed import single_device
from bids_gevnet.learn.train.effort import first_brain
from bids_gevnet.learn.train.loop import autocast
from bids_gevnet.learn.train.mixup import Mixture
from bids_gevnet.learn.train.pieces import choose_pieces
from bids_gevnet.learn.train.process import limited_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.train.effort import Effort
    from bids_gevnet.learn.train.planning import StudyPlan
    from bids_gevnet.learn.train.torchrun import Devices
    from bids_gevnet.nn.compound import CompoundNetwork, ScanNetwork
    from bids_gevnet.settings import LearningSettings

_TIMED_VOXELS = 100_000  # of the grid: about 2 s of one core for a whole brain of this size
_SMALL_VOXELS = 5_000  # for a step that only warms up
DAY_H = 24
"""Hours beyond which it is said what would take fewer."""
_FEWER = 0.5  # of the voxels per step, for the suggestion


@dataclass(frozen=True)
class Pace:
    """Seconds that one process takes for a sample in training, and to score a scan."""

    step: float
    score: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Hours that training takes with some settings, and with others.

    Parameters
    ----------
    hours : float
    others : tuple of (str, float)
        Options that would change it, and the hours with each of them.
    """

    hours: float
    others: tuple[tuple[str, float], ...]


def forecast(
    cohort: Cohort,
    plan: StudyPlan,
    effort: Effort,
    settings: LearningSettings,
    devices: Devices,
    *,
    explained: int = 0,
) -> Forecast:
    """Time a step, and say how long the models of a plan will train.

    Parameters
    ----------
    cohort : Cohort
    plan : StudyPlan
    effort : Effort
        Of the plan.
    settings : LearningSettings
    devices : Devices
    explained : int
        Scans of each task that saliency is computed of, by one process.
    """

    def hours(chosen: LearningSettings) -> float:
        paces = {
            name: measure_pace(cohort, name, len(plan.tasks[0].labels), chosen, devices)
            for name in plan.networks
        }
        samples = -(-chosen.batch_size // devices.processes)  # of a step, one after the other
        seconds = sum(
            steps * samples * paces[model.network].step
            + scored * paces[model.network].score / devices.processes
            for model, steps, scored in zip(plan.models, effort.steps, effort.scored, strict=True)
        )
        # A forward pass with all it holds, and a backward one: three times a score.
        slowest = max(pace.score for pace in paces.values())
        return (seconds + 3 * explained * len(plan.tasks) * slowest) / 3600

    now, others = hours(settings), []
    other = _other_part(settings.voxels_per_step)
    changed = dataclasses.replace(settings, voxels_per_step=other)
    if _boxes(cohort, plan, changed) != _boxes(cohort, plan, settings):
        others.append((f"--voxels-per-step {other}", hours(changed)))
    if now > DAY_H and settings.epochs > 1:
        fewer = max(1, int(settings.epochs * DAY_H / now))
        others.append((f"--epochs {fewer}", now * fewer / settings.epochs))
    return Forecast(hours=now, others=tuple(others))


def _other_part(part: float | str) -> float:
    return 0.1 if isinstance(part, str) else part * _FEWER


def _boxes(cohort: Cohort, plan: StudyPlan, settings: LearningSettings) -> list[int]:
    voxels = float(first_brain(cohort).sum())
    networks = [
        build_network(name, 2, cohort.nside, settings.strides, shells=cohort.shells)
        for name in plan.networks
    ]
    return [count_boxes(settings.voxels_per_step, voxels, network) for network in networks]


def measure_pace(
    cohort: Cohort, name: str, classes: int, settings: LearningSettings, devices: Devices
) -> Pace:
    """Time a sample of random signal in the cohort's first brain.

    Parameters
    ----------
    cohort : Cohort
    name : str
        Of the network.
    classes : int
    settings : LearningSettings
    devices : Devices
    """
    brain = first_brain(cohort)
    network = build_network(name, classes, cohort.nside, settings.strides, shells=cohort.shells)
    device = single_device(gpu=devices.gpu)
    share = -(-settings.batch_size // devices.processes)
    voxels = int(brain.sum())
    network.pieces = choose_pieces(cohort, network, voxels, share)
    boxes = count_boxes(settings.voxels_per_step, voxels, network)
    if boxes > 1:
        cast("CompoundNetwork", network).block_pieces = choose_pieces(
            cohort, network, voxels, share, boxes=boxes
        )
    network.to(device)
    reader = RandomScans(brain, cohort.shells * 6 * cohort.nside**2)
    with ExitStack() as stack:
        stack.enter_context(limited_threads(devices.threads))
        stack.enter_context(autocast(settings.precision, device))
        timer = _Timer(network, device)
        small, _ = reader.whole(_SMALL_VOXELS)
        timer.step(*small)  # the first one also reads libraries and takes memory
        whole, scale = reader.whole(_TIMED_VOXELS)
        score = scale * timer.score(*whole)
        if boxes == 1:
            return Pace(step=scale * timer.step(*whole), score=score)
        stride, reach = network.stride, network.reach or 0
        middle = BlockOfScan(Mixture(0, 0, 1.0, 0), boxes, boxes // 2, (0,))
        block, _ = BlockReader(reader, stride, reach).batch([middle])
        return Pace(step=timer.step(block), score=score)


class _Timer:
    """Time a network; parameters are left as they are, and so are statistics in the end."""

    def __init__(self, network: ScanNetwork, device: torch.device) -> None:
        self.network, self.device = network, device

    def step(self, *inputs: object) -> float:
        """Seconds of a forward and a backward pass."""
        self.network.train()
        moved = [tensor.to(self.device) for tensor in inputs]  # type: ignore[attr-defined]
        label = torch.zeros(1, dtype=torch.long, device=self.device)

        def run() -> None:
            loss = F.cross_entropy(self.network(*moved).float(), label)
            torch.autograd.backward(loss)

        return self._seconds(run)

    @torch.no_grad()
    def score(self, scan: Tensor, mask: Tensor) -> float:
        """Seconds of a forward pass after training."""
        self.network.eval()
        scan, mask = scan.to(self.device), mask.to(self.device)
        return self._seconds(lambda: self.network(scan, mask))

    def _seconds(self, run: Callable[[], object]) -> float:
        self._wait()
        start = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class RandomScans:
    """Stands in for a `ScanReader`: random signal in one brain, whatever is asked for.

    Parameters
    ----------
    brain : (X, Y, Z) bool array
    points : int
        Samples of a voxel.
    """

    def __init__(self, brain: NDArray[np.bool_], points: int) -> None:
        self.brain, self.points = brain, points

    def mask(self, _mixture: Mixture) -> NDArray[np.bool_]:
        """Brain of any mixture."""
        return self.brain

    def mix(
        self, _mixture: Mixture, window: tuple[slice, ...] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Make samples and mask of a window of any mixture."""
        inside = self.brain
        if window is not None:
            inside = np.zeros_like(self.brain)
            inside[window] = self.brain[window]
        draws = np.random.default_rng(0)
        return draws.random((int(inside.sum()), self.points), np.float32), inside

    def batch(self, _mixtures: object) -> tuple[Tensor, Tensor, Tensor]:
        """One scan, its mask and its class."""
        (scans, masks), _ = self.whole(self.brain.size)
        return scans, masks, torch.zeros(1, dtype=torch.long)

    def whole(self, voxels: int) -> tuple[tuple[Tensor, Tensor], float]:
        """Make a scan of at most so many voxels; say how often the grid holds it."""
        part = self.brain
        while part.size > voxels:
            axis = int(np.argmax(part.shape))
            half = part.shape[axis] // 2
            halves = [part.take(range(half), axis), part.take(range(half, part.shape[axis]), axis)]
            part = max(halves, key=np.sum)
        reader = RandomScans(np.ascontiguousarray(part), self.points)
        volume, mask = to_volume(*reader.mix(Mixture(0, 0, 1.0, 0)))
        scale = math.sqrt(self.brain.size / part.size * self.brain.sum() / max(1, part.sum()))
        return (volume[None], mask[None]), scale
