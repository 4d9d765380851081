r"""Clean a series as it was acquired: denoising, Gibbs ringing, bias field. By DIPY and ANTs.

Denoising and the removal of ringing rest on what interpolation destroys, noise that is independent
from voxel to voxel and edges that the k-space was cut at, so they come before everything else, in
that order. The bias field comes last: it needs a mask, and one smooth field for all volumes leaves
S/b0 and every tensor as they are.

A denoiser must remove noise alone. With the residual :math:`r_k` of volume k and a smoothed noise
level :math:`\sigma`, the energy :math:`\sqrt{\sum_k r_k^2 / n} / \sigma` of noise is the same
everywhere; where it rises at the edges of tissue, anatomy was removed. `judge_residual` compares
its correlation with edges with that of simulated noise.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.ants_linear import n4_field
from bids_gevnet.dwi.gradients import voxel_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Volume = NDArray[np.float32]

FEWEST_VOLUMES = 15
"""With fewer volumes hardly any component is noise alone, and signal is lost instead."""

MOST_ANATOMY = 0.1
"""Correlation of residual and edges, beyond that of noise, from which on a person should look."""

_NOISE_DRAWS = 20
_NOISE_SMOOTHING_MM = 10.0
"""Noise varies as slowly as the sensitivity of coils; what varies faster is anatomy."""

_N4_SAMPLING_MM = 8.0
"""Spacing at which N4 sees the image: a bias field is far smoother."""


@dataclass(frozen=True)
class Denoised:
    """A denoised series, and what was taken out of it.

    Attributes
    ----------
    data : (X, Y, Z, n) array of float32
    noise : (X, Y, Z) array of float32
        Standard deviation of the noise, in the units of the data; 0 where it is not known.
    residual : (X, Y, Z) array of float32
        Root mean square over the volumes of what was removed.
    """

    data: Volume
    noise: Volume
    residual: Volume


@dataclass(frozen=True)
class ResidualVerdict:
    """Whether anatomy was removed along with the noise.

    Attributes
    ----------
    correlation : float
        Of the residual's energy with the edges of tissue, in the brain.
    noise_correlation : float
        The same for simulated noise: the 95th percentile.
    """

    correlation: float
    noise_correlation: float

    @property
    def holds_anatomy(self) -> bool:
        """Whether the residual follows edges clearly more than noise does."""
        return self.correlation - self.noise_correlation > MOST_ANATOMY


def patch_radius(n_volumes: int) -> int:
    """Return the radius of the smallest cube with more voxels than volumes, as MP-PCA needs it.

    >>> [patch_radius(n) for n in (20, 33, 125)]
    [1, 2, 3]
    """
    radius = 1
    while (2 * radius + 1) ** 3 <= n_volumes:
        radius += 1
    return radius


def head_region(b0: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return the head with a margin: what is worth denoising, air being a third of the volume."""
    from scipy.ndimage import binary_dilation, binary_fill_holes

    bright = np.asarray(b0 > 0.5 * float(b0.mean()))
    return np.asarray(binary_fill_holes(binary_dilation(bright, iterations=2)))


def denoise_mppca(
    data: NDArray[Any], region: NDArray[np.bool_], *, n_threads: int = 1
) -> Denoised:
    """Denoise by principal components of local patches, cut by the Marchenko-Pastur law.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        Magnitudes as they were acquired, never interpolated.
    region : (X, Y, Z) array of bool
        Where to denoise; the rest stays as it is.
    n_threads : int
        Slabs at a time; the result does not depend on it.

    Returns
    -------
    denoised : Denoised
    """
    radius = patch_radius(data.shape[3])
    noisy = np.asarray(data, dtype=np.float32)
    cleaned, noise = noisy.copy(), np.zeros(noisy.shape[:3], np.float32)
    depth = noisy.shape[2]
    thickness = max(4 * radius, -(-depth // n_threads))

    def clean_slab(start: int) -> None:
        stop = min(start + thickness, depth)
        # Every patch that reaches into the slab is needed.
        first, last = max(start - 2 * radius, 0), min(stop + 2 * radius, depth)
        result, sigma = _mppca(noisy[:, :, first:last], region[:, :, first:last], radius)
        inside = np.zeros(result.shape[:3], bool)
        inside[:, :, start - first : stop - first] = True
        inside &= region[:, :, first:last] & np.isfinite(result).all(axis=3)
        cleaned[:, :, first:last][inside] = result[inside]
        noise[:, :, first:last][inside] = np.nan_to_num(sigma[inside])

    with warnings.catch_warnings(), ThreadPoolExecutor(n_threads) as pool:
        # DIPY divides by zero in patches without any signal; they stay as they are.
        warnings.simplefilter("ignore", RuntimeWarning)
        list(pool.map(clean_slab, range(0, depth, thickness)))
    return Denoised(cleaned, noise, _root_mean_square(noisy, cleaned))


def _mppca(data: Volume, region: NDArray[np.bool_], radius: int) -> tuple[Volume, Volume]:
    from dipy.denoise.localpca import mppca

    with np.errstate(all="ignore"):
        cleaned, sigma = mppca(
            data, mask=region, patch_radius=radius, return_sigma=True, suppress_warning=True
        )
    return cleaned, sigma


def denoise_patch2self(
    data: NDArray[Any], bvals: NDArray[np.float64], *, b0_threshold: float
) -> Denoised:
    """Denoise by predicting every volume linearly from the others, voxel by voxel.

    Parameters
    ----------
    data : (X, Y, Z, n) array
    bvals : (n,) array
        s/mm².
    b0_threshold : float

    Returns
    -------
    denoised : Denoised
        Its noise is the residual: there is no other estimate. A single b0 stays as it is.
    """
    from dipy.denoise.patch2self import patch2self

    noisy = np.asarray(data, dtype=np.float32)
    # The later version draws random voxels.
    cleaned = patch2self(noisy, bvals, model="ols", b0_threshold=b0_threshold, version=1)
    # DIPY 1.12 centres the predictors in place and predicts from these, which loses the level of
    # each volume. Least squares with an intercept keep the mean: that gives it back exactly.
    for volume in range(noisy.shape[3]):
        cleaned[..., volume] += noisy[..., volume].mean() - cleaned[..., volume].mean()
    np.maximum(cleaned, 0, out=cleaned)
    residual = _root_mean_square(noisy, cleaned)
    return Denoised(cleaned, residual, residual)


def _root_mean_square(noisy: Volume, cleaned: Volume) -> Volume:
    """Return the root mean square difference over volumes, without a copy of all of them."""
    total = np.zeros(noisy.shape[:3], np.float64)
    for volume in range(noisy.shape[3]):
        total += np.square(noisy[..., volume] - cleaned[..., volume], dtype=np.float64)
    return np.asarray(np.sqrt(total / noisy.shape[3]), np.float32)


def judge_residual(
    denoised: Denoised, brain: NDArray[np.bool_], affine: NDArray[np.float64]
) -> ResidualVerdict | None:
    """Tell whether anatomy was removed along with the noise.

    Parameters
    ----------
    denoised : Denoised
    brain : (X, Y, Z) array of bool
    affine : (4, 4) array

    Returns
    -------
    verdict : ResidualVerdict or None
        None where nothing was removed from the brain.
    """
    from scipy.ndimage import gaussian_filter, gaussian_gradient_magnitude
    from scipy.stats import spearmanr

    inside = brain & (denoised.noise > 0)
    if inside.sum() < 100:
        return None
    widths = _NOISE_SMOOTHING_MM / voxel_sizes(affine)
    weight = gaussian_filter(inside.astype(np.float32), widths)
    level = gaussian_filter(np.where(inside, denoised.noise, 0), widths)
    energy = denoised.residual[inside] * (weight[inside] / level[inside])
    mean = denoised.data.mean(axis=3)
    edges = gaussian_gradient_magnitude(mean, 0.7)[inside] / max(float(mean[inside].mean()), 1e-9)
    rng = np.random.default_rng(0)
    n = denoised.data.shape[3]
    by_chance = [
        float(spearmanr(np.sqrt(rng.chisquare(n, energy.size) / n), edges).statistic)
        for _ in range(_NOISE_DRAWS)
    ]
    return ResidualVerdict(
        correlation=float(spearmanr(energy, edges).statistic),
        noise_correlation=float(np.quantile(by_chance, 0.95)),
    )


def remove_ringing(data: NDArray[Any], slice_axis: int, *, n_threads: int = 1) -> Volume:
    """Remove Gibbs ringing within slices, by subvoxel shifts; volumes one after the other.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        On the grid that it was reconstructed on, from all of k-space.
    slice_axis : int
        Axis across slices.
    n_threads : int
        Volumes at a time; the result does not depend on it.

    Returns
    -------
    cleaned : (X, Y, Z, n) array of float32
    """
    from dipy.denoise.gibbs import gibbs_removal

    cleaned = np.empty(data.shape, np.float32)

    def clean_volume(volume: int) -> None:
        slices = np.asarray(data[..., volume], dtype=np.float32)
        cleaned[..., volume] = gibbs_removal(slices, slice_axis=slice_axis, inplace=False)

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(clean_volume, range(data.shape[3])))
    return cleaned


def bias_field(
    b0: NDArray[np.floating[Any]], brain: NDArray[np.bool_], affine: NDArray[np.float64]
) -> Volume:
    """Estimate the bias field of a mean b0 with N4.

    Parameters
    ----------
    b0 : (X, Y, Z) array
    brain : (X, Y, Z) array of bool
    affine : (4, 4) array

    Returns
    -------
    field : (X, Y, Z) array of float32
        To divide by; positive, with median 1 in the brain.
    """
    shrink = max(1, round(_N4_SAMPLING_MM / float(voxel_sizes(affine).min())))
    found = n4_field(np.maximum(b0, 0), affine, brain, shrink_factor=min(shrink, 4))
    field = found / np.median(found[brain])
    return np.asarray(np.maximum(field, 0.05), np.float32)
