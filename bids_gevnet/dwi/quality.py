r"""Numbers that tell a good scan from a bad one, for the report.

- ``snr_b0``: mean over the brain of b0, over the noise of the background,
  :math:`\sigma = \sqrt{\langle S^2 \rangle / 2}` for Rayleigh-distributed air. Scanners that set
  air to zero leave no background; with two or more b0s their difference gives the noise, and
  otherwise the number is missing.
- ``cnr``: how much more the signal of one voxel varies over directions than a tensor leaves
  unexplained, the median over white matter of std over misfit.
- ``tensor_residual``: median misfit of the tensor in white matter, as a fraction of b0. Motion,
  eddy currents, dropouts and a wrong gradient table all raise it.
- neighbouring correlation: mean correlation between volumes with the nearest directions; falls
  with every kind of artefact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.field_of_view import complete_part
from bids_gevnet.dwi.tensor import fit_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.dwi.shells import Shell, Shells

_MOST_VOXELS = 20000
_TENSOR_TERMS = 6
_HIGHEST_SNR = 1000.0
"""No diffusion scan comes near it: a higher number means that the noise was not seen."""


@dataclass(frozen=True)
class Quality:
    """Quality of one scan; ``None`` where it cannot be told.

    Attributes
    ----------
    snr_b0 : float or None
    cnr : float or None
    tensor_residual : float or None
    neighbour_correlation : float or None
    mean_fa_white_matter : float or None
    """

    snr_b0: float | None
    cnr: float | None
    tensor_residual: float | None
    neighbour_correlation: float | None
    mean_fa_white_matter: float | None


def assess_quality(
    data: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    bvals: NDArray[np.floating[Any]],
    bvecs: NDArray[np.floating[Any]],
    shells: Shells,
    shell: Shell,
) -> Quality:
    """Measure the quality of a corrected scan.

    Parameters
    ----------
    data : (X, Y, Z, n) array
    mask : (X, Y, Z) array of bool
        Brain.
    bvals : (n,) array
    bvecs : (n, 3) array
        In any axes, rotated with the correction.
    shells : Shells
    shell : Shell
        The one to look at.

    Returns
    -------
    quality : Quality
    """
    snr = b0_snr(data, mask, shells.b0)
    volumes = np.concatenate([shells.b0, shell.volumes])
    voxels = np.flatnonzero(mask)
    voxels = voxels[:: max(1, len(voxels) // _MOST_VOXELS)]
    signal = data.reshape(-1, data.shape[-1])[voxels][:, volumes]  # (v, k)
    complete, measured = complete_part(signal)
    signal, volumes = signal[complete][:, measured], volumes[measured]
    is_b0 = np.isin(volumes, shells.b0)
    b0_count = int(is_b0.sum())
    if len(volumes) - b0_count < _TENSOR_TERMS or not b0_count or not len(signal):
        return Quality(snr, None, None, None, None)
    threshold = float(np.max(bvals[volumes[is_b0]]))
    fit = fit_tensor(signal, bvals[volumes], bvecs[volumes], b0_threshold=threshold)
    white = fit.white_matter & (fit.residual > 0)
    correlation = neighbour_correlation(signal[:, b0_count:], bvecs[volumes[b0_count:]])
    if not white.any():
        return Quality(snr, None, None, correlation, None)
    base = np.maximum(signal[:, :b0_count].mean(axis=1), 1e-6)
    spread = signal[:, b0_count:].std(axis=1) / base
    return Quality(
        snr_b0=snr,
        cnr=float(np.median(spread[white] / fit.residual[white])),
        tensor_residual=float(np.median(fit.residual[white])),
        neighbour_correlation=correlation,
        mean_fa_white_matter=float(np.mean(fit.fa[white])),
    )


def tensor_misfit(
    signal: NDArray[np.floating[Any]],
    bvals: NDArray[np.floating[Any]],
    bvecs: NDArray[np.floating[Any]],
    *,
    b0_threshold: float,
) -> float | None:
    r"""Return the misfit of a tensor in white matter, to compare series with each other.

    Six of k diffusion-weighted volumes are spent on the tensor: the root mean square is scaled by
    :math:`\sqrt{k / (k - 6)}`, so that few volumes do not look better than many.

    Parameters
    ----------
    signal : (v, n) array
        b0s and one shell, in voxels of the brain.
    bvals : (n,) array
    bvecs : (n, 3) array
    b0_threshold : float

    Returns
    -------
    misfit : float or None
        Median, as a fraction of b0; None without b0, white matter or a volume to spare.
    """
    complete, measured = complete_part(signal)
    signal, bvals, bvecs = signal[complete][:, measured], bvals[measured], bvecs[measured]
    count = int(np.sum(bvals > b0_threshold))
    if count <= _TENSOR_TERMS or count == len(bvals) or not len(signal):
        return None
    fit = fit_tensor(signal, bvals, bvecs, b0_threshold=b0_threshold)
    white = fit.white_matter & (fit.residual > 0)
    if not white.any():
        return None
    return float(np.median(fit.residual[white]) * np.sqrt(count / (count - _TENSOR_TERMS)))


def b0_snr(
    data: NDArray[np.floating[Any]], mask: NDArray[np.bool_], b0: NDArray[np.intp]
) -> float | None:
    """Return the signal-to-noise ratio of b0 in the brain.

    Parameters
    ----------
    data : (X, Y, Z, n) array
    mask : (X, Y, Z) array of bool
    b0 : (k,) array of int

    Returns
    -------
    snr : float or None
        None when neither repeated b0s nor air tell the noise.
    """
    noise = _noise(data, mask, b0)
    return None if noise is None else _above(mean_signal(data, mask, b0[:1]), noise)


def shell_snrs(
    data: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    shells: Shells,
    tensor_residual: float | None,
) -> tuple[list[float | None], bool]:
    """Return the mean signal of the b0s and of each shell in the brain over the noise.

    Where neither repeated b0s nor air tell the noise, the misfit of the tensor stands for it. It
    holds motion and whatever a tensor cannot follow too, so the true ratio is higher.

    Parameters
    ----------
    data : (X, Y, Z, n) array
    mask : (X, Y, Z) array of bool
    shells : Shells
    tensor_residual : float or None
        Misfit of the tensor as a fraction of b0.

    Returns
    -------
    snrs : list of float or None
        Of the b0s and of each shell; None where nothing tells the noise.
    measured : bool
        Whether the noise is that of b0s or air.
    """
    noise = _noise(data, mask, shells.b0)
    parts = [shells.b0, *(shell.volumes for shell in shells.shells)]
    signals = [mean_signal(data, mask, part) if part.size else 0.0 for part in parts]
    measured = noise is not None and _above(signals[0], noise) is not None
    if not measured:
        noise = None if tensor_residual is None else tensor_residual * signals[0]
    return [_above(signal, noise) if noise else None for signal in signals], measured


def mean_signal(
    data: NDArray[np.floating[Any]], mask: NDArray[np.bool_], volumes: NDArray[np.intp]
) -> float:
    """Return the mean of some volumes in the brain."""
    return float(
        np.mean([np.mean(data[..., volume][mask], dtype=np.float64) for volume in volumes])
    )


def _above(signal: float, noise: float) -> float | None:
    # Air that the scanner set to zero is not quite zero once it has been resampled.
    return float(signal / noise) if noise * _HIGHEST_SNR > signal > 0 else None


def _noise(
    data: NDArray[np.floating[Any]], mask: NDArray[np.bool_], b0: NDArray[np.intp]
) -> float | None:
    """Return the standard deviation of the noise, from repeated b0s or from air."""
    if not b0.size or not mask.any():
        return None
    first = np.asarray(data[..., b0[0]], dtype=np.float64)
    if b0.size > 1:
        difference = (first - data[..., b0[1]])[mask]
        # Robust: at edges the difference is motion, not noise.
        spread = float(np.median(np.abs(difference - np.median(difference))))
        return 1.4826 * spread / float(np.sqrt(2))
    air = first[_far_from(mask)]
    air = air[air > 0]
    if air.size < 1000:
        return None
    # Median of a Rayleigh distribution: sigma sqrt(2 log 2); ghosts hardly move it.
    return float(np.median(air) / np.sqrt(2 * np.log(2)))


def _far_from(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the corners of the volume beyond the box of the mask: air, even with ghosts."""
    inside = np.argwhere(mask)
    low, high = inside.min(axis=0), inside.max(axis=0)
    index = np.indices(mask.shape, sparse=True)
    outside = [(index[i] < low[i]) | (index[i] > high[i]) for i in range(2)]
    return np.asarray(np.broadcast_to(outside[0] & outside[1], mask.shape))


def neighbour_correlation(
    signal: NDArray[np.floating[Any]], bvecs: NDArray[np.floating[Any]]
) -> float | None:
    """Return the mean correlation of each volume with that of the nearest direction.

    Parameters
    ----------
    signal : (v, k) array
        Volumes of one shell.
    bvecs : (k, 3) array

    Returns
    -------
    correlation : float or None
    """
    if signal.shape[1] < 2 or signal.shape[0] < 2:
        return None
    closeness = np.abs(bvecs @ bvecs.T)
    np.fill_diagonal(closeness, -1)
    nearest = np.argmax(closeness, axis=1)
    centred = signal - signal.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    products = np.einsum("vk,vk->k", centred, centred[:, nearest])
    lengths = norms * norms[nearest]
    usable = lengths > 0
    return float(np.mean(products[usable] / lengths[usable])) if usable.any() else None
