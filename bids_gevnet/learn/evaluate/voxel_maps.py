r"""Maps for voxelwise models: FA, MD and RISH, raw and harmonised like the network's input.

FA and MD are those of a tensor fitted to the samples of the store, S/b0 on the sphere,

.. math:: -\log S(g) = g^T (b D) g,

by least squares over all sample directions. So they can be harmonised exactly like the network's
input, by gains on the samples, which maps of the participant level could not; and every scan of a
study has them. MD is in units of 1/b. RISH maps are those that harmonisation uses: the logarithm
of smoothed energies, where gain g adds 2 log g. Being smooth, they are taken every few mm. Where a
scan has several shells, each has its own tensor and energies, and a voxel as many values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.sphere.resampling import distinct_directions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.train.jobs import JobScan, TrainJob

    Floats = NDArray[np.float32]

KINDS = ("fa", "md", "rish")

_PRESENCE = 0.8  # share of training scans a voxel must be in, as for harmonisation
_FLOOR = 1e-3  # of S/b0: far below any noise
_SMOOTH_MM = 4.0  # finer than this, maps smoothed by 10 mm hold nothing new
_MOST_VALUES = 60_000_000  # of one map of all scans; FA and MD, raw and harmonised: 1 GB


@dataclass(frozen=True)
class VoxelMaps:
    """Maps of a job's scans, training scans first; NaN outside a scan's brain.

    Parameters
    ----------
    raw, harmonised : dict of str to (n_scans, n_values) array
        By kind, without and with the gains of the job's model.
    """

    raw: dict[str, Floats]
    harmonised: dict[str, Floats]


def read_voxel_maps(job: TrainJob, gains: RishGains | None) -> VoxelMaps:
    """Read the maps of a job's training and test scans, at voxels that training scans share.

    Parameters
    ----------
    job : TrainJob
    gains : RishGains or None
        Of the job's model.
    """
    scans = [*job.training, *job.testing]
    stored = [StoredScan(Path(scan.folder)) for scan in scans]
    shared = _shared_voxels(stored[: len(job.training)], job.shape)
    values = len(scans) * int(shared.sum()) * job.shells
    tensor_at = shared & _every(job.shape, _step(values))
    energies = len(scans) * int(shared.sum()) * stored[0].log_rish.shape[-1]
    coarse = max(round(_SMOOTH_MM / job.voxel_mm), _step(energies))
    rish_at = shared & _every(job.shape, coarse)
    if not rish_at.any():
        rish_at = shared
    sizes = dict.fromkeys(("fa", "md"), int(tensor_at.sum()) * job.shells)
    sizes["rish"] = int(rish_at.sum()) * stored[0].log_rish.shape[-1]
    both = [{k: np.full((len(scans), sizes[k]), np.nan, np.float32) for k in KINDS} for _ in "rh"]
    for row, (scan, files) in enumerate(zip(scans, stored, strict=True)):
        corrected = gains is not None and gains.corrects(scan.site)
        for maps, used in zip(both, (None, gains if corrected else None), strict=True):
            if maps is both[1] and not corrected:
                for kind in KINDS:
                    maps[kind][row] = both[0][kind][row]
                continue
            _fill(maps, row, scan, files, used, tensor_at, rish_at)
    return VoxelMaps(*both)


def _fill(
    maps: dict[str, Floats],
    row: int,
    scan: JobScan,
    stored: StoredScan,
    gains: RishGains | None,
    tensor_at: NDArray[np.bool_],
    rish_at: NDArray[np.bool_],
) -> None:
    mask = stored.mask
    samples: NDArray[np.floating[Any]] = stored.samples
    if gains is not None:
        samples = gains.apply(samples, scan.site, mask)
    inside = tensor_at[mask]  # of the scan's voxels, those that are used
    # Of the voxels used, those that the scan has, as many times as it has shells.
    there = np.repeat(mask[tensor_at], stored.shells)
    fa, md = tensor_maps(samples[inside], nside=int(stored.facts["nside"]))
    maps["fa"][row, there], maps["md"][row, there] = fa.ravel(), md.ravel()
    energy = stored.log_rish[rish_at]
    if gains is not None:
        energy = energy + 2 * np.log(gains.gains[gains.sites.index(scan.site)][rish_at])
    maps["rish"][row] = energy.ravel()


def tensor_maps(samples: NDArray[np.floating[Any]], *, nside: int) -> tuple[Floats, Floats]:
    """FA and b MD of the tensor that fits samples on the sphere best.

    Parameters
    ----------
    samples : (n_voxels, n_shells * 6 nside^2) array
        S/b0 at the distinct HEALPix points, shell after shell.
    nside : int

    Returns
    -------
    fa, md : (n_voxels, n_shells) arrays
    """
    logs = -np.log(np.maximum(np.asarray(samples, dtype=np.float32), _FLOOR))
    logs = logs.reshape(len(logs), -1, 6 * nside**2)
    xx, yy, zz, xy, xz, yz = np.moveaxis(logs @ _tensor_fit(nside), -1, 0)
    mean = (xx + yy + zz) / 3
    off = 2 * (xy**2 + xz**2 + yz**2)
    spread = (xx - mean) ** 2 + (yy - mean) ** 2 + (zz - mean) ** 2 + off
    size = xx**2 + yy**2 + zz**2 + off
    fa = np.sqrt(1.5 * spread / np.maximum(size, 1e-12))
    return np.minimum(fa, 1.0), mean


@cache
def _tensor_fit(nside: int) -> Floats:
    """Least squares from samples to xx, yy, zz, xy, xz, yz: (6 nside^2, 6) array."""
    x, y, z = distinct_directions(nside).T
    columns = np.stack([x * x, y * y, z * z, 2 * x * y, 2 * x * z, 2 * y * z], axis=1)
    return np.asarray(np.linalg.pinv(columns).T, dtype=np.float32)


def _shared_voxels(stored: Sequence[StoredScan], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    count = np.zeros(shape, np.int64)
    for scan in stored:
        count += scan.mask
    shared: NDArray[np.bool_] = count >= max(1.0, _PRESENCE * len(stored))
    return shared


def _step(values: int) -> int:
    """Take every n-th voxel along each axis, so that a map of all scans fits in memory."""
    return max(1, int(np.ceil((values / _MOST_VALUES) ** (1 / 3))))


def _every(shape: tuple[int, ...], step: int) -> NDArray[np.bool_]:
    chosen = np.zeros(shape, np.bool_)
    chosen[::step, ::step, ::step] = True
    return chosen
