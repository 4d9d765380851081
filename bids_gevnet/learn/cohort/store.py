"""Scans on disk as the training loop reads them: brain voxels only, half precision, mapped.

A folder per scan, named by the content it was made from:

    <key>/samples.npy    (n_voxels, k 6 nside^2) float16  S/b0 in the mask, k shells in turn
    <key>/mask.npy       (X, Y, Z) bool
    <key>/rish.npy       (X, Y, Z, k n_degrees) float16   log of smoothed RISH, for harmonisation
    <key>/facts.json     written last: without it the folder is incomplete and made again

S/b0 of 0.5 is kept to 2.4e-4, far below the noise of a scan. Nothing but the scan being converted
is ever in memory; later reads are memory maps, which the system drops when it needs room.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.samples import sample_volumes
from bids_gevnet.bids.writing import replacing, write_json
from bids_gevnet.errors import ParticipantError
from bids_gevnet.harmonisation.features import fit_limits, log_rish_maps
from bids_gevnet.harmonisation.rish import rish_features

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

_LAYOUT = "3"  # part of the key: another layout makes another folder
_RANGE = (-1.0, 4.0)  # S/b0 beyond is an artefact of registration or division
_BLOCK = 2**22


@dataclass(frozen=True)
class StoredScan:
    """One scan of the store; arrays are mapped, not read.

    Parameters
    ----------
    folder : Path
    """

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Shape, nside, fingerprint and mean energies."""
        content: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return content

    @property
    def samples(self) -> NDArray[np.float16]:
        """S/b0 in the mask: (n_voxels, n_shells * 6 nside^2) array."""
        mapped: NDArray[np.float16] = np.load(self.folder / "samples.npy", mmap_mode="r")
        return mapped

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Brain voxels: (X, Y, Z) array."""
        mask: NDArray[np.bool_] = np.load(self.folder / "mask.npy")
        return mask

    @property
    def log_rish(self) -> NDArray[np.float32]:
        """Log of smoothed RISH, NaN away from the brain: (X, Y, Z, n_shells * n_degrees) array."""
        maps: NDArray[np.float16] = np.load(self.folder / "rish.npy", mmap_mode="r")
        return maps.astype(np.float32)

    @property
    def shells(self) -> int:
        """How many shells the scan has."""
        return int(self.samples.shape[1]) // (6 * int(self.facts["nside"]) ** 2)

    @property
    def fingerprint(self) -> str:
        """Hash of samples and mask: the same scan has the same in any store."""
        return str(self.facts["fingerprint"])


class LogRishMaps(Sequence[Any]):
    """The maps of many scans, each read when it is asked for."""

    def __init__(self, scans: Sequence[StoredScan]) -> None:
        self._scans = scans

    def __len__(self) -> int:
        return len(self._scans)

    def __getitem__(self, index: Any) -> Any:
        return self._scans[index].log_rish


def to_volume(samples: NDArray[np.float32], mask: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Put samples (n_voxels, points) back on the grid: (points, X, Y, Z), and the mask."""
    import torch

    volume = torch.zeros((samples.shape[1], mask.size))
    volume[:, torch.from_numpy(np.flatnonzero(mask))] = torch.from_numpy(samples).T
    return volume.view(-1, *mask.shape), torch.from_numpy(mask)


def store_scan(store: Path, image: Path, mask: Path, *, nside: int, voxel_mm: float) -> StoredScan:
    """Put a scan into the store, unless its content is there already.

    Parameters
    ----------
    store : Path
    image : Path
        (X, Y, Z, n) volumes, of which n_shells * 6 nside^2 are samples.
    mask : Path
        (X, Y, Z) brain mask.
    nside : int
    voxel_mm : float
    """
    folder = store / _content_key(image, mask, nside)
    if (folder / "facts.json").is_file():
        return StoredScan(folder)
    samples, brain = _read(image, mask)
    write_scan(folder, samples, brain, nside=nside, voxel_mm=voxel_mm)
    return StoredScan(folder)


def write_scan(
    folder: Path,
    samples: NDArray[np.float16],
    brain: NDArray[np.bool_],
    *,
    nside: int,
    voxel_mm: float,
) -> None:
    """Write one folder of the store.

    Parameters
    ----------
    folder : Path
    samples : (n_voxels, n_shells * 6 nside^2) array of float16
    brain : (X, Y, Z) bool array
    nside : int
    voxel_mm : float
    """
    maps = log_rish_maps(samples, brain, voxel_mm=voxel_mm, nside=nside)
    for name, array in (
        ("samples", samples),
        ("mask", brain),
        ("rish", maps.astype(np.float16)),
    ):
        with replacing(folder / f"{name}.npy") as part, part.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
    facts = {
        "shape": list(brain.shape),
        "nside": nside,
        "fingerprint": fingerprint(samples, brain),
        "mean_log_rish": mean_log_rish(samples, nside=nside),
    }
    write_json(folder / "facts.json", facts)


def stored_bytes(brain: NDArray[np.bool_], *, nside: int, shells: int = 1) -> int:
    """Bytes that the arrays of a scan take in the store.

    Parameters
    ----------
    brain : (X, Y, Z) bool array
    nside, shells : int
    """
    samples = 2 * int(brain.sum()) * 6 * nside**2
    maps = 2 * brain.size * len(fit_limits(nside)[1])
    return shells * (samples + maps) + brain.size


def to_half(samples: NDArray[np.floating[Any]]) -> NDArray[np.float16]:
    """Turn samples into what the store keeps."""
    half: NDArray[np.float16] = np.clip(np.nan_to_num(samples), *_RANGE).astype(np.float16)
    return half


def fingerprint(samples: NDArray[np.float16], mask: NDArray[np.bool_]) -> str:
    """Hash of a scan's content, whatever file it came from."""
    digest = hashlib.sha256(str(mask.shape).encode())
    digest.update(np.packbits(mask).tobytes())
    digest.update(np.ascontiguousarray(samples).tobytes())
    return digest.hexdigest()


def mean_log_rish(samples: NDArray[np.floating[Any]], *, nside: int) -> list[float]:
    """Log of the mean energy of each degree over the brain, shell after shell."""
    lmax, degrees = fit_limits(nside)
    energy = rish_features(samples, nside=nside, degrees=degrees, lmax=lmax)
    return [float(value) for value in np.log(np.maximum(energy.mean(axis=0), 1e-9))]


def _content_key(image: Path, mask: Path, nside: int) -> str:
    digest = hashlib.sha256(f"{_LAYOUT} {nside}".encode())
    for path in (image, mask):
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()[:32]


def _read(image: Path, mask: Path) -> tuple[NDArray[np.float16], NDArray[np.bool_]]:
    """Read samples volume by volume, so that only half-precision values are held at once."""
    import nibabel as nib

    brain: NDArray[np.bool_] = np.asarray(nib.load(mask).dataobj) > 0
    if not brain.any():
        raise ParticipantError(
            expected=f"a brain in {mask}",
            found="an empty mask",
            remedy="run the participant level for this participant again",
        )
    loaded = nib.load(image)
    stored = np.asanyarray(loaded.dataobj.get_unscaled())
    slope, intercept = loaded.dataobj.slope or 1.0, loaded.dataobj.inter or 0.0
    volumes = sample_volumes(image, stored.shape[-1])
    samples = np.empty((int(brain.sum()), len(volumes)), np.float16)
    for column, number in enumerate(volumes):
        volume = stored[..., number][brain].astype(np.float32) * slope + intercept
        samples[:, column] = to_half(volume)
    return samples, brain
