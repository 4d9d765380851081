r"""Slices that lost their signal: found against the prediction of their volume, and replaced.

Slice z of volume k has the relative loss

.. math:: l_{kz} = \frac{\sum_{v \in z} (y_{kv} - \hat y_{kv})}{\sum_{v \in z} \hat y_{kv}}

over the brain voxels v of the raw slice, with the prediction :math:`\hat y_k` of the volume from
the others, carried back to where the volume saw it. Less the median over the volumes of the shell
(what is wrong with slice z in every volume is no outlier) and over a robust standard deviation,
that of all slices or that of slice z, whichever is larger, it is a z-score. As in FSL's eddy
(Andersson et al. 2016) a slice below -4 is an outlier; here it must also have lost a tenth of its
signal, because with little noise 4 standard deviations are nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.ndimage import maximum_filter, minimum_filter

from bids_gevnet.dwi.model_corrector.splines import (
    Sampler,
    inside_grid,
    sample_linear,
    sample_spline,
)
from bids_gevnet.dwi.model_corrector.warp import eddy_shift, pull, push

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import Lattice, Workers
    from bids_gevnet.dwi.model_corrector.warp import Field, Warp

    Replacements = dict[tuple[int, int], NDArray[np.float32]]

THRESHOLD = 4.0
SMALLEST_LOSS = 0.1
SMALLEST_AREA_MM2 = 1000.0
"""FSL's default of 250 voxels, at 2 mm."""

_SPACING_MM = 4.0
"""Sums over a slice need not look at every voxel."""


@dataclass(frozen=True)
class Losses:
    """Sums over the brain in every slice of the volumes of one shell.

    Attributes
    ----------
    observed, predicted : (n, slices) array
    area_mm2 : (n, slices) array
        Of the brain in the slice.
    """

    observed: NDArray[np.float64]
    predicted: NDArray[np.float64]
    area_mm2: NDArray[np.float64]


def find_outliers(losses: Losses) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Find the slices that lost their signal.

    Parameters
    ----------
    losses : Losses

    Returns
    -------
    outlier : (n, slices) array of bool
    z_score : (n, slices) array
        0 for slices with too little brain.
    """
    usable = (losses.area_mm2 >= SMALLEST_AREA_MM2) & (losses.predicted > 0)
    if len(losses.observed) < 3 or not usable.any():
        return np.zeros(usable.shape, bool), np.zeros(usable.shape)
    relative = np.where(
        usable,
        (losses.observed - losses.predicted) / np.where(usable, losses.predicted, 1),
        np.nan,
    )
    seen = usable.any(axis=0)
    typical = np.zeros(usable.shape[1])
    typical[seen] = np.nanmedian(relative[:, seen], axis=0)
    rest = relative - typical
    # Small slices average over less and scatter more; those at the ends of the brain, where
    # motion brings tissue in and out, scatter more than that.
    steadiness = np.sqrt(losses.area_mm2 / np.median(losses.area_mm2[usable]))
    common = 1.4826 * float(np.nanmedian(np.abs(rest * steadiness)))
    spread = np.full(usable.shape[1], common)
    spread[seen] = 1.4826 * np.nanmedian(np.abs(rest[:, seen]), axis=0)
    expected = np.maximum(common / np.maximum(steadiness, 1e-6), spread)
    z_score = np.where(usable, np.nan_to_num(rest) / np.maximum(expected, 1e-6), 0.0)
    outlier = usable & (z_score < -THRESHOLD) & (np.nan_to_num(rest) < -SMALLEST_LOSS)
    return outlier, z_score


def _slice_points(
    shape: tuple[int, ...],
    sizes: NDArray[np.float64],
    slices: NDArray[np.intp],
    slice_axis: int,
    strides: tuple[int, int] = (1, 1),
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return voxels (slices, points, 3) of some slices of a volume, and their places in mm."""
    axes = [axis for axis in range(3) if axis != slice_axis]
    along = [np.arange(s // 2, shape[axis], s) for axis, s in zip(axes, strides, strict=True)]
    first, second = np.meshgrid(*along, indexing="ij")
    voxels = np.empty((len(slices), first.size, 3), np.intp)
    voxels[..., axes[0]], voxels[..., axes[1]] = first.ravel(), second.ravel()
    voxels[..., slice_axis] = slices[:, None]
    return voxels, (voxels - (np.asarray(shape) - 1) / 2) * sizes


def sum_slices(
    raw: NDArray[np.float32],
    predicted: torch.Tensor,
    inner: NDArray[np.bool_],
    lattice: Lattice,
    sizes: NDArray[np.float64],
    warp: Warp,
    slice_axis: int,
    field: Field | None,
) -> NDArray[np.float64]:
    """Sum a raw volume and its prediction over the brain, slice by slice.

    Parameters
    ----------
    raw : (X, Y, Z) array
    predicted : (X', Y', Z') tensor
        In the reference, on the lattice.
    inner : (X', Y', Z') array of bool
        Brain on the lattice.
    lattice : Lattice
    sizes : (3,) array
        Of raw voxels, mm.
    warp : Warp
        Of this volume alone.
    slice_axis : int
    field : Field or None

    Returns
    -------
    sums : (3, slices) array
        Observed, predicted, area of the brain in mm².
    """
    device = predicted.device
    axes = [axis for axis in range(3) if axis != slice_axis]
    first, second = (max(1, round(_SPACING_MM / sizes[axis])) for axis in axes)
    voxels, places = _slice_points(
        raw.shape, sizes, np.arange(raw.shape[slice_axis]), slice_axis, (first, second)
    )
    seen = torch.as_tensor(places.reshape(-1, 3), dtype=torch.float32, device=device)
    motion = torch.as_tensor(warp.motion[0], dtype=torch.float32, device=device)
    eddy = torch.as_tensor(warp.eddy[0], dtype=torch.float32, device=device)
    # Most of a volume is air: only what the distortions could bring to the brain is looked at.
    farthest = float(eddy_shift(seen, eddy, warp.axis)[0].abs().max())
    farthest += field.largest_mm if field is not None else 0.0
    back = torch.linalg.inv(motion)
    reach = farthest * back[:3, warp.axis].abs().cpu().numpy() / lattice.spacing
    where = lattice.to_voxels(seen @ back[:3, :3].T + back[:3, 3])
    near = torch.as_tensor(_near_mask(where.cpu().numpy(), inner, warp.axis, reach), device=device)
    points, jacobian = push(seen[near], motion, eddy, warp.axis, field)
    where = lattice.to_voxels(points)
    nearest = where.round().long().cpu().numpy()
    inside = np.all((nearest >= 0) & (nearest < lattice.shape), axis=1)
    inside[inside] = inner[tuple(nearest[inside].T)]
    hit = torch.as_tensor(np.flatnonzero(inside), device=device)
    read = sample_linear(predicted[None], where[hit])[0] / jacobian[hit]
    chosen = near[hit].cpu().numpy()
    brain, expected = np.zeros(len(seen), bool), np.zeros(len(seen))
    brain[chosen] = True
    expected[chosen] = read.double().cpu().numpy()
    observed = raw[tuple(voxels.reshape(-1, 3).T)] * brain
    area = float(first * second * sizes[axes[0]] * sizes[axes[1]])
    sums = np.stack([observed.astype(np.float64), expected, area * brain])
    return np.asarray(sums.reshape(3, len(voxels), -1).sum(axis=2))


def _near_mask(
    positions: NDArray[np.float32],
    mask: NDArray[np.bool_],
    axis: int,
    reach: NDArray[np.float64],
) -> NDArray[np.intp]:
    """Return which positions may be in a mask once they are moved by at most `reach` (3,) voxels.

    Each line along the axis knows where the mask begins and ends on it, and on its neighbours.
    """
    count = mask.shape[axis]
    on_line = mask.any(axis=axis)
    first = np.where(on_line, mask.argmax(axis=axis), count)
    last = np.where(on_line, count - 1 - np.flip(mask, axis).argmax(axis=axis), -1)
    across = [i for i in range(3) if i != axis]
    width = [2 * int(np.ceil(reach[i])) + 3 for i in across]
    first, last = minimum_filter(first, width), maximum_filter(last, width)
    lines = np.rint(positions[:, across]).astype(np.intp)
    lines = np.clip(lines, 0, np.array(on_line.shape) - 1)
    along, margin = positions[:, axis], reach[axis] + 1
    first, last = (edge[tuple(lines.T)] for edge in (first, last))
    return np.flatnonzero((along >= first - margin) & (along <= last + margin))


def predict_slices(
    outlier: NDArray[np.bool_],
    volumes: NDArray[np.intp],
    matrix: NDArray[np.float64],
    read_raw: Callable[[int], torch.Tensor],
    sizes: NDArray[np.float64],
    warp: Warp,
    slice_axis: int,
    field: Field | None,
    workers: Workers,
) -> Replacements:
    """Predict lost slices, voxel by voxel, from the other volumes as they are.

    Parameters
    ----------
    outlier : (g, slices) array of bool
    volumes : (g,) array
        Volumes of the shell.
    matrix : (g, g) array
        Predicts each from the others.
    read_raw : callable
        From a volume's number to its raw data.
    sizes : (3,) array
    warp : Warp
        Of the whole series.
    slice_axis : int
    field : Field or None
    workers : Workers

    Returns
    -------
    replacements : mapping of (int, int) to 2D array
        (volume, slice) to the raw slice as it should have been.
    """
    lost = np.flatnonzero(outlier.any(axis=1))
    if not lost.size:
        return {}
    device = workers.device
    motion = torch.as_tensor(warp.motion, dtype=torch.float32, device=device)
    eddy = torch.as_tensor(warp.eddy, dtype=torch.float32, device=device)
    shape = tuple(read_raw(int(volumes[0])).shape)
    scale = torch.as_tensor(1 / sizes, dtype=torch.float32, device=device)
    middle = torch.as_tensor([(n - 1) / 2 for n in shape], dtype=torch.float32, device=device)
    sampler = Sampler(shape, device=device)
    targets = []
    for i in lost:
        k = int(volumes[i])
        _, places = _slice_points(shape, sizes, np.flatnonzero(outlier[i]), slice_axis)
        seen = torch.as_tensor(places.reshape(-1, 3), dtype=torch.float32, device=device)
        points, jacobian = push(seen, motion[k], eddy[k], warp.axis, field)
        targets.append((points, jacobian, None if field is None else field.at(points)))

    def contributions(j: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        coefficients = sampler.coefficients(read_raw(int(volumes[j])))
        parts = []
        for i, (points, _, here) in zip(lost, targets, strict=True):
            k = int(volumes[j])
            _, seen, jacobian = pull(points, motion[k], eddy[k], warp.axis, here)
            where = seen * scale + middle
            weight = float(matrix[i, j]) * inside_grid(where, shape)
            parts.append((weight * sample_spline(coefficients, where) * jacobian, weight))
        return parts

    totals = [[torch.zeros_like(jacobian)] * 2 for _, jacobian, _ in targets]
    for j in range(0, len(volumes), 8):  # a few at a time, added up in one order
        for parts in workers.map(contributions, range(j, min(j + 8, len(volumes)))):
            totals = [
                [sums[0] + value, sums[1] + weight]
                for sums, (value, weight) in zip(totals, parts, strict=True)
            ]
    plane = [n for axis, n in enumerate(shape) if axis != slice_axis]
    replacements: Replacements = {}
    for i, (_, jacobian, _), (value, weight) in zip(lost, targets, totals, strict=True):
        filled = torch.where(weight.abs() > 0.1, value / weight / jacobian, 0.0).clamp(min=0)
        slices = filled.cpu().numpy().reshape(-1, *plane)
        for z, values in zip(np.flatnonzero(outlier[i]), slices, strict=True):
            replacements[int(volumes[i]), int(z)] = values
    return replacements
