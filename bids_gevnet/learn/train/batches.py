"""From the store to tensors: harmonised, mixed, batched, one batch ahead."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch

from bids_gevnet.learn.cohort.store import StoredScan, to_volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray
    from torch import Tensor

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.train.jobs import JobScan
    from bids_gevnet.learn.train.mixup import Mixture

    Batch = tuple[Tensor, Tensor, Tensor]

T_co = TypeVar("T_co", covariant=True)


class ScanReader:
    """Read scans of the store, harmonise and mix them; holds none of them.

    Parameters
    ----------
    scans : sequence of JobScan
    gains : RishGains or None
        Harmonisation fitted to the training scans.
    """

    def __init__(self, scans: Sequence[JobScan], gains: RishGains | None) -> None:
        self.scans = tuple(scans)
        self.stored = tuple(StoredScan(Path(scan.folder)) for scan in scans)
        self.gains = gains

    @property
    def largest(self) -> int:
        """Voxels of the largest brain."""
        return max(len(stored.samples) for stored in self.stored)

    def read(
        self, index: int, window: tuple[slice, ...] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Harmonised samples in the mask, (n_voxels, points), and the mask, (X, Y, Z).

        Of a window of the scan only, if one is given: then the mask is empty elsewhere.
        """
        stored = self.stored[index]
        mask, samples = stored.mask, stored.samples
        if window is not None:
            inside = np.zeros_like(mask)
            inside[window] = mask[window]
            samples, mask = samples[np.flatnonzero(inside[mask])], inside
        if self.gains is None:
            return samples.astype(np.float32), mask
        return self.gains.apply(samples, self.scans[index].site, mask), mask

    def mask(self, mixture: Mixture) -> NDArray[np.bool_]:
        """Brain of a mixture: where both scans have theirs."""
        first = self.stored[mixture.first].mask
        return first if mixture.weight == 1.0 else first & self.stored[mixture.second].mask

    def mix(
        self, mixture: Mixture, window: tuple[slice, ...] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Make samples and mask of a mixture, or of a window of it."""
        first, first_mask = self.read(mixture.first, window)
        if mixture.weight == 1.0:
            return first, first_mask
        second, second_mask = self.read(mixture.second, window)
        both = first_mask & second_mask
        first, second = first[both[first_mask]], second[both[second_mask]]
        first *= mixture.weight
        second *= 1 - mixture.weight
        return first + second, both

    def batch(self, mixtures: Sequence[Mixture]) -> Batch:
        """Make scans (n, points, X, Y, Z), masks (n, X, Y, Z) and classes (n,)."""
        pieces = [to_volume(*self.mix(mixture)) for mixture in mixtures]
        volumes, masks = (torch.stack(part) for part in zip(*pieces, strict=True))
        return volumes, masks, torch.tensor([mixture.label for mixture in mixtures])

    def single(self, index: int) -> tuple[Tensor, Tensor]:
        """One scan as a batch of one."""
        volume, mask = to_volume(*self.read(index))
        return volume[None], mask[None]

    def random_volumes(self, seed: int, shells: int = 1) -> Iterator[Tensor]:
        """Single directions of random scans without end: (X, Y, Z), or (shells, X, Y, Z)."""
        rng = np.random.default_rng(seed)
        while True:
            samples, mask = self.read(int(rng.integers(len(self.scans))))
            points = samples.shape[1] // shells
            direction = samples[:, rng.integers(points) :: points]  # (n_voxels, shells)
            volume, _ = to_volume(np.ascontiguousarray(direction), mask)
            yield volume if shells > 1 else volume[0]


class BatchReader(Protocol[T_co]):
    """Whatever makes a batch of a plan."""

    def batch(self, plan: Sequence[Any], /) -> T_co:
        """Make a batch."""
        ...


def read_ahead(
    reader: BatchReader[T_co], plans: Iterable[Sequence[Any]], *, workers: int = 1
) -> Iterator[T_co]:
    """Make batches while those before are computed with: one per worker, and one in use."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        pending: deque[Future[T_co]] = deque()
        for plan in plans:
            pending.append(pool.submit(reader.batch, plan))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
