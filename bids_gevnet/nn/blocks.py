r"""A part of the brain instead of all of it: where it is, and what it says of the whole.

A network that ends in the mean of a feature over the brain's V coarse voxels may be trained on a
part of them. Three things make the part speak for the whole.

Exact values. A block is a box of coarse voxels, read with a margin of the kernel network's
`reach` on every side, as far as the grid goes: inside the box every feature is that of the whole
scan, to rounding.

Every region. A brain is cut into K boxes of (nearly) equally many brain voxels: along its longest
side at a plane that leaves as many as it should on either side, and so on with both parts. The
boxes cover the grid, each voxel once. Samples of training take the boxes in turn, in random
order, and the cuts are drawn anew for each round. So each voxel is seen with probability 1 / K,
and sums over the voxels of a box, such as the moments of a normalisation, are in expectation
1 / K of those of the whole.

A small variance. Regions of one brain differ by much more than brains of two people do in one
region. All scans share one grid, so with m_v the mean feature of training scans at voxel v,

.. math:: \hat f = \frac{1}{V} \sum_v m_v + \frac{K}{V} \sum_{v \in B} (f_v - m_v)

is without bias for the mean of f over the brain, whatever m is, and without the differences
between regions if m is right. `RegionMeans` keeps m while the weights change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from bids_gevnet.nn.norm import sum_over_processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Cells = NDArray[np.intp]

_RANDOMNESS = 0.3  # how much shorter than the longest a side may be to be cut instead


@dataclass(frozen=True)
class Box:
    """A box of coarse voxels: low[axis] <= i < high[axis]."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    def holds(self, cells: Cells) -> NDArray[np.bool_]:
        """Say which of some coarse voxels, (n, 3), are inside."""
        inside = (cells >= self.low) & (cells < self.high)  # (n, 3)
        return cast("NDArray[np.bool_]", inside.all(1))

    def window(self, shape: Sequence[int], *, stride: int, reach: int) -> tuple[slice, ...]:
        """Voxels of the scan that decide the features in the box.

        Starts on a multiple of the stride, so that its coarse voxels are those of the scan.

        Parameters
        ----------
        shape : 3 int
            Of the scan.
        stride : int
            Voxels per coarse voxel along each axis.
        reach : int
            Voxels on each side of a coarse voxel that it depends on.
        """
        margin = stride * -(-reach // stride)
        return tuple(
            slice(max(0, stride * low - margin), min(n, stride * (high - 1) + reach + 1))
            for low, high, n in zip(self.low, self.high, shape, strict=True)
        )


def draw_box(
    cells: Cells, shape: Sequence[int], *, boxes: int, number: int, draws: NDArray[np.float64]
) -> Box:
    """Cut a brain into boxes of nearly equally many voxels, and give one of them.

    Parameters
    ----------
    cells : (n, 3) int array
        Coarse voxels of the brain.
    shape : 3 int
        Coarse voxels of the grid.
    boxes : int
        How many.
    number : int
        Which of them, from 0.
    draws : (boxes, 4) array
        Numbers between 0 and 1, which decide along which axis is cut, and how many boxes come to
        lie on either side: a third to two thirds of them.
    """
    low, high = np.zeros(3, int), np.array(shape)
    node = 0
    while boxes > 1:
        sides = np.ptp(cells, axis=0) + 1.0 if len(cells) else (high - low).astype(float)
        axis = int(np.argmax(sides * (1 - _RANDOMNESS * draws[node, :3])))
        first = min(max(1, round(boxes * (1 + draws[node, 3]) / 3)), boxes - 1)
        plane = _plane(cells[:, axis], first / boxes, low[axis], high[axis])
        below = cells[:, axis] < plane
        if number < first:
            high[axis], cells, boxes, node = plane, cells[below], first, node + 1
        else:
            low[axis], cells = plane, cells[~below]
            # Nodes are numbered in the order in which a full walk would meet them.
            number, boxes, node = number - first, boxes - first, node + first
    return Box(tuple(low.tolist()), tuple(high.tolist()))


def _plane(places: Cells, share: float, low: int, high: int) -> int:
    """Choose the plane that leaves nearest to a share of the voxels below it."""
    counts = np.bincount(places - low, minlength=high - low)
    below = np.concatenate([[0], counts.cumsum()])  # below plane low, low + 1, ..., high
    return int(low + np.argmin(np.abs(below - share * len(places))))


@dataclass(frozen=True)
class BlockBatch:
    """Blocks of several scans, each of its own shape.

    Parameters
    ----------
    signals : tuple of (shells * directions, x, y, z) tensors
        Windows of the scans.
    masks : tuple of (x, y, z) bool tensors
        Brain voxels of the blocks, without those of their margins.
    insides : tuple of pairs of 3 int
        Place of each block in its window: first coarse voxel, and the one after its last.
    cells : tuple of (n,) int64 tensors
        Place in the coarse grid of each coarse voxel in the masks.
    brains : tuple of (V,) int64 tensors
        Those of the whole brain.
    boxes : int
        How many blocks a brain has.
    """

    signals: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]
    insides: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    cells: tuple[Tensor, ...]
    brains: tuple[Tensor, ...]
    boxes: int

    def to(self, device: torch.device) -> Self:
        """Copy to a device; masks stay, so that nobody waits there for how much they hold."""
        signals, cells, brains = (
            tuple(tensor.to(device) for tensor in tensors)
            for tensors in (self.signals, self.cells, self.brains)
        )
        return type(self)(signals, self.masks, self.insides, cells, brains, self.boxes)


class RegionMeans(nn.Module):
    """Mean feature of training scans at each coarse voxel, as the weights change.

    Parameters
    ----------
    n_cells : int
        Coarse voxels of the grid.
    n_features : int
    momentum : float
        Weight of the newest batch, where it has a voxel. Another changes no expectation.

    Examples
    --------
    >>> means = RegionMeans(2, 1)
    >>> means.update_([torch.tensor([0])], [torch.tensor([[3.0]])])
    >>> means.means.flatten().tolist()
    [3.0, 0.0]
    """

    means: Tensor
    seen: Tensor

    def __init__(self, n_cells: int, n_features: int, *, momentum: float = 0.2) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("means", torch.zeros(n_cells, n_features))
        self.register_buffer("seen", torch.zeros(n_cells, dtype=torch.bool))

    def estimate(self, features: Tensor, cells: Tensor, brain: Tensor, boxes: int) -> Tensor:
        """Estimate the mean over a brain from the features of one of its boxes.

        Parameters
        ----------
        features : (n, n_features) tensor
            Of the box's brain voxels.
        cells : (n,) int64 tensor
            Where they are.
        brain : (V,) int64 tensor
            Where the brain's voxels are.
        boxes : int

        Returns
        -------
        mean : (n_features,) tensor
        """
        # People differ by a few per cent of a feature: not for half precision.
        with torch.autocast(features.device.type, enabled=False):
            surprise = (features.to(self.means.dtype) - self.means[cells]).sum(0)
            return self.means[brain].mean(0) + surprise * (boxes / len(brain))

    @torch.no_grad()
    def update_(self, cells: Sequence[Tensor], features: Sequence[Tensor]) -> None:
        """Move towards the features of a batch, of all processes together."""
        sums = self.means.new_zeros(len(self.means), self.means.shape[1] + 1, dtype=torch.float64)
        for place, values in zip(cells, features, strict=True):
            sums[:, :-1].index_add_(0, place, values.double())
            sums[:, -1].index_add_(0, place, torch.ones_like(place, dtype=torch.float64))
        sums = sum_over_processes(sums)
        counts = sums[:, -1:]
        new = (sums[:, :-1] / counts.clamp_min(1)).to(self.means.dtype)
        weight = torch.where(self.seen[:, None], self.momentum, 1.0) * (counts > 0)
        self.means.lerp_(new, weight.to(self.means.dtype))
        self.seen |= counts[:, 0] > 0
