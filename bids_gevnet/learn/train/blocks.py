"""Which block of a scan each training sample shows, and how it is read from the store.

Samples of an epoch come in turns of one per class (`mixup.plan_epoch`), and all samples of a turn
show the same box of the brain: what differs between them is then not where they were looked at.
Turns take the boxes in random order, all of them before one comes again, and after each such round
the cuts between boxes are drawn anew. Boxes follow from seed, epoch, place in the epoch and the
brain mask of the sample: any process, or a run that was interrupted, makes the same ones.

The mathematics is in `bids_gevnet.nn.blocks`. Of the store, and by the harmonisation, only voxels
of a block and its margin are touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch

from bids_gevnet.learn.cohort.store import to_volume
from bids_gevnet.nn.blocks import BlockBatch, RegionMeans, draw_box

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.learn.train.mixup import Mixture
    from bids_gevnet.nn.compound import ScanNetwork

LEAST_VOXELS = 8
"""Coarse brain voxels of a block, at least: fewer are a poor sample at the price of a margin."""


@dataclass(frozen=True)
class BlockOfScan:
    """A sample of which one block is shown.

    Parameters
    ----------
    mixture : Mixture
    boxes, number : int
        Into how many boxes its brain is cut, and which of them is shown.
    round_seed : tuple of int
        Decides the cuts.
    """

    mixture: Mixture
    boxes: int
    number: int
    round_seed: tuple[int, ...]


def count_boxes(voxels_per_step: float | str, brain_voxels: float, network: ScanNetwork) -> int:
    """Say into how many boxes a brain is cut; 1 if it is shown whole.

    Parameters
    ----------
    voxels_per_step : float or "all"
        A fraction of the brain if at most 1, a number of its voxels otherwise.
    brain_voxels : float
        Of a scan, in the mean.
    network : ScanNetwork
        One whose `reach` is not known gets whole scans.

    Examples
    --------
    >>> from bids_gevnet.nn import build
    >>> count_boxes(0.1, 200_000, build("ckn2+gevnet"))
    10
    """
    if isinstance(voxels_per_step, str) or network.reach is None:
        return 1
    wanted = voxels_per_step if voxels_per_step <= 1 else voxels_per_step / brain_voxels
    most = brain_voxels / network.stride**3 / LEAST_VOXELS
    return max(1, int(min(round(1 / wanted), most)))


def plan_blocks(
    samples: Sequence[Mixture], *, classes: int, boxes: int, seed: int, epoch: int
) -> list[BlockOfScan]:
    """Choose the block of each sample of an epoch.

    Parameters
    ----------
    samples : sequence of Mixture
        In turns of one per class.
    classes, boxes, seed, epoch : int
    """
    planned = []
    order: NDArray[np.intp] = np.arange(boxes)
    for place, mixture in enumerate(samples):
        turn = place // classes
        rounds = (seed, epoch, turn // boxes)
        if place % (classes * boxes) == 0:
            order = np.random.default_rng((*rounds, 1)).permutation(boxes)
        planned.append(BlockOfScan(mixture, boxes, int(order[turn % boxes]), (*rounds, 2)))
    return planned


class BlockSource(Protocol):
    """What blocks are read from; see `batches.ScanReader`."""

    def mask(self, mixture: Mixture, /) -> NDArray[np.bool_]:
        """Brain of a mixture."""

    def mix(
        self, mixture: Mixture, window: tuple[slice, ...], /
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Make samples and mask of a window of a mixture."""

    def batch(self, mixtures: Sequence[Mixture], /) -> tuple[Any, ...]:
        """Make whole scans."""


class BlockReader:
    """Make batches of blocks, or of whole scans where a sample asks for one.

    Parameters
    ----------
    reader : BlockSource
    stride, reach : int
        Of the network.
    """

    def __init__(self, reader: BlockSource, stride: int, reach: int) -> None:
        self.reader, self.stride, self.reach = reader, stride, reach

    def batch(self, samples: Sequence[Mixture | BlockOfScan]) -> tuple[Any, ...]:
        """Make the blocks and classes of some samples, or scans, masks and classes."""
        shown = [sample for sample in samples if isinstance(sample, BlockOfScan)]
        if not shown:
            return self.reader.batch(cast("Sequence[Mixture]", samples))
        blocks = [self.block(sample) for sample in shown]
        signals, masks, insides, cells, brains = zip(*blocks, strict=True)
        labels = torch.tensor([sample.mixture.label for sample in shown])
        return BlockBatch(signals, masks, insides, cells, brains, shown[0].boxes), labels

    def block(self, sample: BlockOfScan) -> tuple[Any, ...]:
        """Signal, mask, place, cells and brain of one sample, as in `BlockBatch`."""
        stride = self.stride
        brain = self.reader.mask(sample.mixture)
        coarse = brain[::stride, ::stride, ::stride]
        cells = np.argwhere(coarse)
        draws = np.random.default_rng(sample.round_seed).random((sample.boxes, 4))
        box = draw_box(cells, coarse.shape, boxes=sample.boxes, number=sample.number, draws=draws)
        window = box.window(brain.shape, stride=stride, reach=self.reach)
        signal, inside = self.reader.mix(sample.mixture, window)
        volume, mask = to_volume(signal, np.ascontiguousarray(inside[window]))
        starts = np.array([part.start // stride for part in window])
        low, high = np.array(box.low) - starts, np.array(box.high) - starts
        own = torch.zeros_like(mask)
        own[tuple(slice(stride * a, stride * b) for a, b in zip(low, high, strict=True))] = True
        places = np.ravel_multi_index(tuple(cells.T), coarse.shape)
        return (
            volume,
            mask & own,
            (tuple(low.tolist()), tuple(high.tolist())),
            torch.from_numpy(places[box.holds(cells)]),
            torch.from_numpy(places),
        )


def start_regions(network: ScanNetwork, shape: Iterable[int], n_features: int) -> RegionMeans:
    """Make room for the mean features of each coarse voxel of a grid."""
    cells = int(np.prod([-(-n // network.stride) for n in shape]))
    return RegionMeans(cells, n_features)
