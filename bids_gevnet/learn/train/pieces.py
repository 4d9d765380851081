"""How to cut up a batch: as little as the memory of the device allows.

On a CPU everything is held where a batch is small, because then nothing is computed twice, and
pieces are the size of its cache elsewhere; what a GPU holds is decided in `device_pieces`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from bids_gevnet.learn.train.device_pieces import device_pieces

if TYPE_CHECKING:
    from bids_gevnet.nn.compound import Pieces, ScanNetwork

# A batch of this size or less is held and not computed again, at the price in brackets.
_KEPT_POINTS = 1_500_000  # of all spheres, with what lies between two stages (0.6 kB each)
_WHOLE_POINTS = 400_000  # of all spheres, with everything (1.8 kB each): three times as fast
_WHOLE_VOXELS = 2_000_000  # of all volumes, with everything (0.15 kB each)


class Grid(Protocol):
    """What scans are sampled on: a job's, or a cohort's."""

    @property
    def nside(self) -> int:
        """HEALPix resolution."""

    @property
    def shells(self) -> int:
        """How many."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Voxels."""


def choose_pieces(
    grid: Grid,
    network: ScanNetwork,
    brain: int,
    share: int,
    *,
    boxes: int = 1,
    free: int | None = None,
) -> Pieces:
    """Say how to cut up a process's share of a batch: as little as memory allows.

    Parameters
    ----------
    grid : Grid
    network : ScanNetwork
    brain : int
        Voxels of the largest brain.
    share : int
        Samples of a batch that one process has.
    boxes : int
        Into how many boxes a brain is cut, one of which is shown.
    free : int or None
        Bytes of a GPU; None on a CPU, where pieces are the size of its cache.
    """
    directions = share * 6 * grid.nside**2
    points = 2 * directions * -(-brain // (network.stride**3 * boxes))
    sides = [n / boxes ** (1 / 3) + 2 * (network.reach or 0) for n in grid.shape]
    window = math.prod(map(min, sides, grid.shape)) if boxes > 1 else math.prod(grid.shape)
    voxels = int(grid.shells * directions * window)
    if free is not None:
        return device_pieces(
            network.pieces,
            free=free,
            voxels=voxels,
            points=points,
            points_per_sphere=12 * grid.nside**2,
        )
    return replace(
        network.pieces,
        keep_sphere=points <= _KEPT_POINTS,
        whole=points <= _WHOLE_POINTS and voxels <= _WHOLE_VOXELS,
    )
