"""Batches that are made on a GPU: the host reads, the device does all arithmetic.

Per scan the host copies what the store holds, brain voxels in half precision with their places
(42 MB at the paper's size), from the disk into pinned memory; the device copies that, and turns it
into numbers of float32, harmonises, mixes, and puts voxels back on the grid. `batches` does the
same on the host: 206 MB of float32 a scan, and over a second for one that is mixed and harmonised.

Several workers read ahead, since one cannot keep a GPU busy; they hold a batch each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from bids_gevnet.harmonisation.device_gains import DeviceGains
from bids_gevnet.learn.train.batches import read_ahead
from bids_gevnet.learn.train.mixup import Mixture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from bids_gevnet.learn.train.batches import Batch, ScanReader

WORKERS = 4
"""Batches that are read at a time: their pinned memory adds up."""


@dataclass(frozen=True)
class HostScan:
    """One scan of a mixture on the host, as it is copied to the device.

    Parameters
    ----------
    samples : (n_voxels, points) float16 tensor
    places : (n_voxels,) int32 tensor
        Number of each voxel in the flattened grid.
    shared : (n_shared,) int32 tensor or None
        Which of the voxels the other scan has as well; None where there is no other.
    site : str
    weight : float
    """

    samples: Tensor
    places: Tensor
    shared: Tensor | None
    site: str
    weight: float

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device."""
        shared = 0 if self.shared is None else self.shared.nbytes
        return self.samples.nbytes + self.places.nbytes + shared


@dataclass(frozen=True)
class HostBatch:
    """What the workers leave for the device.

    Parameters
    ----------
    mixtures : list of tuples of one or two HostScan
    masks : (n, X, Y, Z) bool tensor
    labels : (n,) tensor
    """

    mixtures: list[tuple[HostScan, ...]]
    masks: Tensor
    labels: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device, without the masks."""
        return sum(scan.nbytes for mixture in self.mixtures for scan in mixture)


class DeviceReader:
    """Read scans of the store and make batches on a device; same numbers as `ScanReader`.

    Parameters
    ----------
    reader : ScanReader
        What to read, with its harmonisation.
    device : torch.device
    masks_on_host : bool
        Whether masks stay where they are; see `bids_gevnet.nn.ScanNetwork`.
    """

    def __init__(
        self, reader: ScanReader, device: torch.device, *, masks_on_host: bool = True
    ) -> None:
        self._reader, self._device = reader, device
        self._masks_on_host = masks_on_host
        self._pinned = device.type == "cuda"
        self._gains = None if reader.gains is None else DeviceGains(reader.gains, device)

    def batches(self, plans: Iterable[Sequence[Mixture]]) -> Iterator[Batch]:
        """Make scans (n, points, X, Y, Z), masks (n, X, Y, Z) and classes (n,) of each plan."""
        return (self.place(batch) for batch in read_ahead(self, plans, workers=WORKERS))

    def singles(self, indices: Iterable[int]) -> Iterator[Batch]:
        """Make a batch of each scan, as it is."""
        return self.batches([Mixture(index, index, 1.0, 0)] for index in indices)

    def batch(self, mixtures: Sequence[Mixture]) -> HostBatch:
        """Do the host's part; in a worker."""
        read = [self._read(mixture) for mixture in mixtures]
        masks = torch.stack([torch.from_numpy(mask) for _, mask in read])
        labels = torch.tensor([mixture.label for mixture in mixtures])
        return HostBatch([scans for scans, _ in read], masks, labels)

    def place(self, batch: HostBatch) -> Batch:
        """Do the device's part."""
        shape = batch.masks.shape[1:]
        n_points = batch.mixtures[0][0].samples.shape[1]
        grid = torch.zeros(
            len(batch.mixtures), math.prod(shape), n_points, device=self._device
        )  # (n, voxels, points): rows of the store are rows of it
        for rows, scans in zip(grid, batch.mixtures, strict=True):
            places, values = self._mix(scans)
            rows.index_copy_(0, places, values)
        volumes = grid.transpose(1, 2).contiguous().view(len(grid), n_points, *shape)
        masks = batch.masks if self._masks_on_host else self._copy(batch.masks)
        return volumes, masks, self._copy(batch.labels)

    def _read(self, mixture: Mixture) -> tuple[tuple[HostScan, ...], NDArray[np.bool_]]:
        """Read the scans of a mixture, and make its mask."""
        mask = self._reader.stored[mixture.first].mask
        if mixture.weight == 1.0:
            return (self._take(mixture.first, 1.0, mask, None),), mask
        other = self._reader.stored[mixture.second].mask
        both = mask & other
        first = self._take(mixture.first, mixture.weight, mask, both)
        return (first, self._take(mixture.second, 1 - mixture.weight, other, both)), both

    def _take(
        self, index: int, weight: float, mask: NDArray[np.bool_], both: NDArray[np.bool_] | None
    ) -> HostScan:
        stored = self._reader.stored[index]
        return HostScan(
            self._pin(stored.samples),
            self._pin(np.flatnonzero(mask).astype(np.int32)),
            None if both is None else self._pin(np.flatnonzero(both[mask]).astype(np.int32)),
            self._reader.scans[index].site,
            weight,
        )

    def _pin(self, array: NDArray[np.generic]) -> Tensor:
        """Copy an array, mapped or not, to memory that a GPU reads by itself."""
        kind = {"f": torch.float16, "i": torch.int32}[array.dtype.kind]
        pinned = torch.empty(array.shape, dtype=kind, pin_memory=self._pinned)
        np.copyto(pinned.numpy(), array)
        return pinned

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _mix(self, scans: tuple[HostScan, ...]) -> tuple[Tensor, Tensor]:
        """Places and values of the voxels of a mixture."""
        mixed: Tensor | None = None
        places = torch.empty(0)
        for scan in scans:
            places = self._copy(scan.places).long()
            values = self._copy(scan.samples).float()
            if self._gains is not None:
                values = self._gains.apply(values, scan.site, places)
            if scan.shared is not None:
                shared = self._copy(scan.shared).long()
                places, values = places[shared], values[shared] * scan.weight
            mixed = values if mixed is None else mixed + values
        if mixed is None:
            raise ValueError("a mixture of no scans")
        return places, mixed
