"""Shells of a series as samples on the sphere: choose them, divide by b0, resample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.field_of_view import usable_volumes
from bids_gevnet.dwi.shells import (
    choose_shells,
    divide_by_b0,
    find_shells,
    mean_volume,
)
from bids_gevnet.settings import B0_THRESHOLD
from bids_gevnet.sphere.resampling import distinct_directions, resample, resampling_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.dwi.shells import Shell, Shells
    from bids_gevnet.settings import ShellChoice


@dataclass(frozen=True)
class ShellSamples:
    """Brain voxels of one shell on the sphere.

    Parameters
    ----------
    samples : (n_voxels, 6 nside^2) array
        S/b0 at the distinct HEALPix points, see `bids_gevnet.sphere.resampling`.
    shells : Shells
        All that the series has.
    shell : Shell
        The one that was taken.
    residual_rms : float
        Root mean square of S/b0 less what the samples give back in the directions measured.
    """

    samples: NDArray[np.floating[Any]]
    shells: Shells
    shell: Shell
    residual_rms: float


def sample_shell(
    data: NDArray[np.floating[Any]],
    bvals: NDArray[np.floating[Any]],
    bvecs: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    *,
    nside: int = 4,
    wanted: float | None = None,
    b0_threshold: float = B0_THRESHOLD,
) -> ShellSamples:
    """Put one shell on the sphere, brain voxels only.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        Volumes; a mapped file is read volume by volume. Volumes without data in most of the mask
        are left out.
    bvals : (n,) array
        s/mm².
    bvecs : (n, 3) array
        Gradients in the axes the samples shall have.
    mask : (X, Y, Z) bool array
    nside : int
    wanted : float, optional
        b-value of the shell; see `choose_shell`.
    b0_threshold : float
        Highest b-value of a b0 volume.

    Examples
    --------
    >>> from bids_gevnet.phantom import simulate
    >>> scan = simulate(directions=12)
    >>> shell = sample_shell(scan.data, scan.bvals, scan.bvecs_ras, scan.truth.mask, nside=2)
    >>> shell.samples.shape == (scan.truth.mask.sum(), 24)
    True
    """
    (shell,) = sample_shells(
        data,
        bvals,
        bvecs,
        mask,
        nside=nside,
        wanted=None if wanted is None else (wanted,),
        b0_threshold=b0_threshold,
    )
    return shell


def sample_shells(
    data: NDArray[np.floating[Any]],
    bvals: NDArray[np.floating[Any]],
    bvecs: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    *,
    nside: int = 4,
    wanted: ShellChoice = None,
    b0_threshold: float = B0_THRESHOLD,
) -> tuple[ShellSamples, ...]:
    """Put several shells on the same points of the sphere, in increasing order of b.

    Parameters are those of `sample_shell`, but for ``wanted``: see `choose_shells`.

    Examples
    --------
    >>> from bids_gevnet.phantom import simulate
    >>> scan = simulate(directions=12, b_values=(1000.0, 3000.0))
    >>> mask = scan.truth.mask
    >>> shells = sample_shells(scan.data, scan.bvals, scan.bvecs_ras, mask, wanted="all")
    >>> [round(samples.shell.b_value) for samples in shells]
    [1000, 3000]
    """
    usable = usable_volumes(mask, data)
    shells = find_shells(bvals, usable=usable, b0_threshold=b0_threshold)
    chosen = choose_shells(shells, wanted)
    b0, points = mean_volume(data, shells.b0)[mask], distinct_directions(nside)
    on_sphere = []
    for shell in chosen:
        signal = np.stack([data[..., volume][mask] for volume in shell.volumes], axis=-1)
        fraction = divide_by_b0(signal, b0)  # (n_voxels, directions)
        measured = bvecs[shell.volumes]
        samples = resample(fraction, resampling_matrix(measured, points))
        back = resample(samples, resampling_matrix(points, measured))
        residual = float(np.sqrt(np.mean((back - fraction) ** 2)))
        on_sphere.append(ShellSamples(samples, shells, shell, residual))
    return tuple(on_sphere)
