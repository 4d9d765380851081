r"""What every voxel adds to the score of a held-out scan, compared with the mean training scan.

With F_k the margin of class k (`bids_gevnet.nn.attribution.margin`), or the number that is
predicted, x the scan, b the mean of
training scans and g the gradient halfway between the two,

.. math:: c_k(v) = \sum_p (x_p(v) - b_p(v)) \, g_{k,p}(v), \qquad
          g_k = \frac{\partial F_k}{\partial x} \Bigl(\frac{x + b}{2}\Bigr),

the integrated gradients of Sundararajan (2017) by one midpoint: exact for networks of second
order, so that contributions add up to F_k(x) - F_k(b) or nearly so. A plain gradient, or its
product with x itself, is large where any change of the signal would matter or where the signal is
large, in every network alike, also an untrained one. The product with x - b is not yet free of
that: it grows where people differ. `bids_gevnet.learn.evaluate.significance` divides by it.

The same contributions are summed by the angle between the direction p of the gradient and the
local fibre, the main direction of the tensor of b, where b is anisotropic. ``sensitivity`` is the
root mean square of g over directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.learn.cohort.store import to_volume
from bids_gevnet.learn.models.files import build_network
from bids_gevnet.nn.attribution import attribute, margin
from bids_gevnet.nn.norm import MomentNorm
from bids_gevnet.sphere.resampling import distinct_directions

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from bids_gevnet.learn.train.batches import ScanReader
    from bids_gevnet.learn.train.jobs import TrainJob
    from bids_gevnet.nn.compound import ScanNetwork

    Floats = NDArray[np.floating[Any]]

SMOOTH_MM = 8.0
"""Full width at half maximum that contributions are smoothed by: registration is no better."""
ANGLE_BINS = 6
"""Of 15 degrees each, from along the fibre to across it."""
LEAST_FA = 0.2
"""Anisotropy of the mean scan below which a voxel has no fibre direction worth the name."""
_BASELINE_SCANS = 32  # enough for a mean over people
_SETTLING_SCANS = 4
_VOXELS_AT_ONCE = 20_000
_NOMINAL_B = 1000.0  # neither main direction nor anisotropy depends on the unit of b


@dataclass(frozen=True)
class Baseline:
    """The mean training scan of a fold.

    Attributes
    ----------
    mean : (shells * 6 nside^2, X, Y, Z) tensor
    present : (X, Y, Z) bool tensor
        Where any training scan has brain.
    angle_bin : (6 nside^2, X, Y, Z) array of uint8
        Bin of the angle between direction and fibre; ANGLE_BINS where there is no fibre.
    """

    mean: Tensor
    present: Tensor
    angle_bin: NDArray[np.uint8]


@dataclass(frozen=True)
class Explanation:
    """What the score of one scan rests on.

    Attributes
    ----------
    voxels : (n_classes, X, Y, Z) array of float32
        Contributions.
    angles : (n_classes, ANGLE_BINS) array
        Contributions by angle to the fibre.
    sensitivity : (X, Y, Z) array of float32
    shells : (n_shells,) array
        Share of each shell in the squared gradient.
    accounts : (float, float)
        Sum of the contributions to the last class, and the difference in score that it stands for.
    """

    voxels: NDArray[np.float32]
    angles: NDArray[np.float64]
    sensitivity: NDArray[np.float32]
    shells: NDArray[np.float64]
    accounts: tuple[float, float]


def mean_scan(reader: ScanReader, nside: int, shells: int = 1) -> Baseline:
    """Average training scans, harmonised, each voxel over those that have it.

    Parameters
    ----------
    reader : ScanReader
        Of the training scans.
    nside, shells : int
    """
    count = len(reader.scans)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _BASELINE_SCANS)).round().astype(int))
    shape = reader.stored[0].mask.shape
    total = torch.zeros((shells * 6 * nside**2, *shape))
    seen = torch.zeros(shape)
    for index in chosen:
        volume, mask = to_volume(*reader.read(int(index)))
        total += volume
        seen += mask
    mean = total / seen.clamp_min(1)
    present = seen > 0
    first = mean[: 6 * nside**2][:, present].T.numpy()
    bins = np.full((6 * nside**2, *shape), ANGLE_BINS, np.uint8)
    bins[:, present.numpy()] = fibre_angle_bins(first, nside).T
    return Baseline(mean, present, bins)


def fibre_angle_bins(samples: Floats, nside: int) -> NDArray[np.uint8]:
    """Sort directions by their angle to the local fibre.

    Parameters
    ----------
    samples : (n_voxels, 6 nside^2) array
        S/b0 of one shell.
    nside : int

    Returns
    -------
    bins : (n_voxels, 6 nside^2) array of uint8
        0 along the fibre to ANGLE_BINS - 1 across it; ANGLE_BINS where there is none.
    """
    from bids_gevnet.dwi.tensor import fit_tensor

    directions = distinct_directions(nside)
    bvals = np.array([0.0, *[_NOMINAL_B] * len(directions)])
    bvecs = np.concatenate([np.zeros((1, 3)), directions])
    bins = np.full(samples.shape, ANGLE_BINS, np.uint8)
    for start in range(0, len(samples), _VOXELS_AT_ONCE):
        part = samples[start : start + _VOXELS_AT_ONCE]
        signal = np.concatenate([np.ones((len(part), 1)), part], axis=1)
        fit = fit_tensor(signal, bvals, bvecs, weighted=False)
        cosine = np.clip(np.abs(fit.direction @ directions.T), 0, 1)
        place = np.rad2deg(np.arccos(cosine)) // (90 / ANGLE_BINS)
        fibre = (fit.fa >= LEAST_FA)[:, None]
        bins[start : start + len(part)] = np.where(
            fibre, np.minimum(place, ANGLE_BINS - 1), ANGLE_BINS
        )
    return bins


def explain(
    network: ScanNetwork,
    scan: Tensor,
    mask: Tensor,
    baseline: Baseline,
    *,
    classes: int,
) -> Explanation:
    """Split the score of a scan into contributions.

    Parameters
    ----------
    network : ScanNetwork
    scan : (shells * 6 nside^2, X, Y, Z) tensor
    mask : (X, Y, Z) bool tensor
    baseline : Baseline
    classes : int
        Scores of the network; 1 where a number is predicted.
    """
    device = scan.device
    known = mask & baseline.present.to(device)
    start = torch.where(known, baseline.mean.to(device), scan)
    difference, middle = scan - start, torch.lerp(start, scan, 0.5)
    inside = known.cpu().numpy()
    voxels, angles = [], []
    squares = torch.zeros_like(scan)
    # Margins of all classes add up to zero, and so do the contributions to them.
    targets = range(1, classes) if classes > 1 else range(1)
    for target in targets:
        gradient, _, _ = attribute(
            network, lambda x: network(x, mask[None]), middle[None].float(), target
        )
        squares += gradient.square()
        contribution = (gradient * difference).cpu().numpy()
        added = float(contribution.sum(dtype=np.float64))
        voxels.append(np.where(inside, contribution.sum(axis=0), 0))
        angles.append(_by_angle(contribution[:, inside], baseline.angle_bin[:, inside]))
    with torch.no_grad():
        scores = [margin(network(x[None], mask[None]), -1) for x in (scan, start)]
    stacked, binned = np.stack(voxels), np.stack(angles)
    if classes > 1:
        stacked = np.concatenate([-stacked.sum(axis=0)[None], stacked])
        binned = np.concatenate([-binned.sum(axis=0)[None], binned])
    by_shell = squares[:, known].double().reshape(network.shells, -1).sum(1).cpu().numpy()
    return Explanation(
        stacked.astype(np.float32),
        binned,
        np.where(inside, (squares.mean(0) / len(targets)).sqrt().cpu().numpy(), 0.0),
        by_shell / max(float(by_shell.sum()), 1e-30),
        (added, float(scores[0] - scores[1])),
    )


def smooth(values: Floats, voxel_mm: float) -> NDArray[np.float32]:
    """Smooth a map, (X, Y, Z), by SMOOTH_MM."""
    from scipy.ndimage import gaussian_filter

    sigma = SMOOTH_MM / voxel_mm / np.sqrt(8 * np.log(2))
    return np.asarray(
        gaussian_filter(values, sigma, mode="constant", truncate=3.0), dtype=np.float32
    )


def _by_angle(contribution: Floats, bins: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Sum contributions, (shells * points, voxels), by bins, (points, voxels)."""
    total = np.zeros(ANGLE_BINS + 1)
    for number, values in enumerate(contribution):
        place = bins[number % len(bins)]
        total += np.bincount(place, weights=values, minlength=ANGLE_BINS + 1)
    return total[:ANGLE_BINS]


def count_by_angle(baseline: Baseline) -> NDArray[np.float64]:
    """Count pairs of voxel and direction in each bin: (ANGLE_BINS,) array."""
    counts = np.bincount(baseline.angle_bin.ravel(), minlength=ANGLE_BINS + 1)
    return counts[:ANGLE_BINS].astype(float)


def untrained_network(job: TrainJob, reader: ScanReader, device: torch.device) -> ScanNetwork:
    """Start the network of a job with other random weights, as training would, and stop there.

    Parameters
    ----------
    job : TrainJob
    reader : ScanReader
        Of its training scans.
    device : torch.device
    """
    seed = job.options.seed + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(
            job.options.network,
            len(job.labels),
            job.nside,
            job.options.strides,
            shells=job.shells,
        )
    network.initialise_(reader.random_volumes(seed, job.shells), seed=seed)
    network.to(device).train()
    norms = [part for part in network.modules() if isinstance(part, MomentNorm)]
    with torch.no_grad():
        for number in range(min(_SETTLING_SCANS, len(reader.scans))):
            for norm in norms:
                norm.momentum = 1 / (number + 1)
            network(*(tensor.to(device) for tensor in reader.single(number)))
    network.eval()
    return network
