r"""Correct a diffusion series from arrays to arrays: motion, eddy currents, outlier slices, field.

`correct` is the whole of it: gradients in FSL's convention in and out, any orientation of the
voxel axes, one interpolation. Inside, everything happens in the conformed pose
(:mod:`bids_gevnet.dwi.conform`), where :mod:`bids_gevnet.dwi.model_corrector` works; with O the
transform from the world of the image to that pose (``old_to_new``), a volume's rigid transform in
the world of the image is :math:`O^{-1} T_k O`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from bids_gevnet.dwi.conform import conform, ras_order
from bids_gevnet.dwi.gradients import (
    bvecs_fsl_to_ras,
    bvecs_ras_to_fsl,
    rotate_bvecs,
    voxel_sizes,
)
from bids_gevnet.dwi.model_corrector.corrector import (
    LEVELS,
    DiffusionSeries,
    correct_series,
    fill_slices,
)
from bids_gevnet.dwi.model_corrector.susceptibility import estimate_field
from bids_gevnet.dwi.model_corrector.warp import resample_warped
from bids_gevnet.dwi.motion import framewise_displacement, rigid_parameters
from bids_gevnet.dwi.phase_encoding import Relation, reorder_phase_encoding
from bids_gevnet.dwi.polarity import try_both
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.dwi.syn_field import estimate_field_from_t1w
from bids_gevnet.errors import InputError
from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from numpy.typing import ArrayLike, NDArray

    from bids_gevnet.dwi.model_corrector.corrector import Correction
    from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import Level
    from bids_gevnet.dwi.model_corrector.outlier_slices import Replacements
    from bids_gevnet.dwi.model_corrector.susceptibility import Susceptibility
    from bids_gevnet.dwi.polarity import Trial


@dataclass(frozen=True)
class Corrected:
    """A corrected series and what was wrong with it.

    Attributes
    ----------
    data : (X, Y, Z, n) array of float32
        On the voxels of the input, in the pose of its first b0.
    bvecs : (n, 3) array
        Gradients turned with the head, in FSL's convention, as the input.
    motion : (n, 6) array
        What leads from each volume back to the first b0: trans_x, trans_y, trans_z in mm and
        rot_x, rot_y, rot_z in rad, about the centre of the volume and along the axes nearest to
        R, A and S.
    framewise_displacement : (n,) array
        mm, after Power et al. (2012); 0 for the first volume.
    transforms : (n, 4, 4) array
        Each volume to the first b0, in the world of the input's affine, mm.
    eddy : (n, 10) array
        Eddy-current displacement along the phase-encoding axis, mm: terms 1, x, y, z, x², y²,
        z², xy, xz, yz at 50 mm from the centre, along the axes nearest to R, A and S.
    outlier_slices : (n, slices) array of bool
        Slices that lost their signal and were replaced by their prediction.
    field_mm : (X, Y, Z) array or None
        Displacement by susceptibility along the positive phase-encoding voxel axis of the input;
        None where no opposite b0 was given or it did not help.
    note : str
        What could not be done; empty when everything was.

    Examples
    --------
    >>> from bids_gevnet.phantom import simulate
    >>> scan = simulate(directions=6, voxel_mm=12)
    >>> corrected = correct(
    ...     scan.data, scan.affine, scan.bvals, scan.bvecs_fsl, levels=LEVELS[:1])
    >>> corrected.field_mm is None, corrected.transforms.shape
    (True, (7, 4, 4))
    """

    data: NDArray[np.float32]
    bvecs: NDArray[np.float64]
    motion: NDArray[np.float64]
    framewise_displacement: NDArray[np.float64]
    transforms: NDArray[np.float64]
    eddy: NDArray[np.float64]
    outlier_slices: NDArray[np.bool_]
    field_mm: NDArray[np.float32] | None
    note: str


@dataclass(frozen=True)
class OppositeB0:
    """A b0 with the opposite phase encoding, conformed.

    Attributes
    ----------
    volume : (X, Y, Z) array or None
        None for an image without b0.
    start : (4, 4) array
        From the conformed world of the series to that of this image, by their headers, mm.
    readout_ratio : float
        Its readout time over that of the series.
    certain : bool
        Whether the encoding is known to be opposite; otherwise equal and opposite are tried.
    name : str
        Of the image, for the record of the trial.
    """

    volume: NDArray[Any] | None
    start: NDArray[np.float64]
    readout_ratio: float = 1.0
    certain: bool = True
    name: str = ""


@dataclass(frozen=True)
class Anatomy:
    """The participant's T1w, for a field where there is no opposite b0.

    Attributes
    ----------
    volume : (X, Y, Z) array
    affine : (4, 4) array
        Voxel to world RAS.
    start : (4, 4) array
        From the conformed world of the series to that of the T1w, by their headers, mm.
    """

    volume: NDArray[Any]
    affine: NDArray[np.float64]
    start: NDArray[np.float64]


FieldOutcome = Literal[
    "corrected", "no_opposite_b0", "same_direction", "another_grid", "no_improvement"
]
"""Whether a susceptibility field was estimated, and if not, why."""

_FIELD_NOTES: Mapping[str, str] = {
    "another_grid": "no b0 of the opposite phase encoding is on the grid of the run; not used",
    "no_improvement": "the susceptibility field did not bring the images closer; not used",
}


@dataclass(frozen=True)
class Estimate:
    """What a correction estimated, not yet applied.

    Attributes
    ----------
    correction : Correction
    field : Susceptibility or None
    outcome : str
        "corrected" where there is a field, else why there is none.
    trials : tuple of (str, Trial)
        Names of images whose encoding was not certain, and how they compare.
    """

    correction: Correction
    field: Susceptibility | None
    outcome: FieldOutcome
    trials: tuple[tuple[str, Trial], ...] = ()

    @property
    def note(self) -> str:
        """What could not be done, for people."""
        return "; ".join(filter(None, (self.correction.note, _FIELD_NOTES.get(self.outcome))))


def correct(
    data: NDArray[Any],
    affine: ArrayLike,
    bvals: ArrayLike,
    bvecs: ArrayLike,
    *,
    phase_encoding: str = "j",
    slice_encoding: str = "k",
    opposite_b0: NDArray[Any] | None = None,
    opposite_affine: ArrayLike | None = None,
    readout_ratio: float = 1.0,
    b0_threshold: float = B0_THRESHOLD,
    n_threads: int = 1,
    levels: Sequence[Level] = LEVELS,
    device: torch.device | str = "cpu",
) -> Corrected:
    """Correct motion, eddy currents, outlier slices and, with an opposite b0, susceptibility.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        The series as it was acquired.
    affine : (4, 4) array
        Voxel to world RAS, mm.
    bvals : (n,) array
        s/mm².
    bvecs : (n, 3) array
        Gradients in FSL's convention, as in bvec files: along the voxel axes, x flipped where
        the affine's determinant is positive. A bvec file holds the transpose.
    phase_encoding, slice_encoding : str
        BIDS PhaseEncodingDirection and SliceEncodingDirection: "i", "j", "k", with "-" where
        reversed.
    opposite_b0 : (X, Y, Z) array, optional
        A b0 with the opposite phase encoding, for the susceptibility field.
    opposite_affine : (4, 4) array, optional
        Its own; that of the series if not given.
    readout_ratio : float
        Its total readout time over that of the series.
    b0_threshold : float
        Largest b-value of a b0.
    n_threads : int
        Volumes at a time; the result does not depend on it.
    levels : sequence of Level
        Resolutions, from coarse to fine.
    device : torch.device
        Where to compute: "cpu", or "cuda" for a GPU.

    Returns
    -------
    corrected : Corrected

    Examples
    --------
    >>> import bids_gevnet
    >>> scan = bids_gevnet.phantom.simulate(directions=8, voxel_mm=9, snr=50)
    >>> corrected = bids_gevnet.dwi.correct(
    ...     scan.data, scan.affine, scan.bvals, scan.bvecs_fsl, phase_encoding="j")
    >>> corrected.data.shape == scan.data.shape
    True
    >>> corrected.motion.shape, corrected.eddy.shape, corrected.outlier_slices.dtype
    ((9, 6), (9, 10), dtype('bool'))
    """
    world = np.asarray(affine, dtype=np.float64)
    b, g = np.asarray(bvals, dtype=np.float64), np.asarray(bvecs, dtype=np.float64)
    _check(data, world, b, g, phase_encoding, slice_encoding)
    image = conform(data, world)
    axes, signs = ras_order(world)
    axis, slice_axis = (
        "ijk".index(reorder_phase_encoding(direction, axes, signs)[0])
        for direction in (phase_encoding, slice_encoding)
    )
    series = DiffusionSeries(
        image.data,
        image.affine,
        b,
        rotate_bvecs(bvecs_fsl_to_ras(g, world), image.old_to_new),
        find_shells(b, b0_threshold=b0_threshold),
        axis,
        slice_axis,
    )
    opposite = []
    if opposite_b0 is not None:
        other = conform(opposite_b0, world if opposite_affine is None else opposite_affine)
        start = other.old_to_new @ np.linalg.inv(image.old_to_new)
        opposite.append(OppositeB0(other.data, start, readout_ratio))
    estimate = estimate_correction(
        series, opposite, n_threads=n_threads, levels=levels, device=device
    )
    correction = estimate.correction
    back = np.linalg.inv(image.old_to_new).astype(np.float64)
    warp = correction.warp
    x, y, z = data.shape[:3]
    corrected = resample_warped(
        fill_series(series.data, correction.replacements, slice_axis),
        series.affine,
        warp,
        back,
        (x, y, z),
        world,
        n_threads=n_threads,
    )
    turned = rotate_bvecs(rotate_bvecs(series.bvecs_ras, warp.transforms), back)
    motion = rigid_parameters(warp.transforms)
    outliers = correction.outliers if signs[slice_axis] > 0 else correction.outliers[:, ::-1]
    return Corrected(
        data=corrected,
        bvecs=bvecs_ras_to_fsl(turned, world),
        motion=motion,
        framewise_displacement=framewise_displacement(motion),
        transforms=np.asarray(back @ warp.transforms @ image.old_to_new),
        eddy=warp.eddy,
        outlier_slices=outliers,
        field_mm=None if warp.field is None else signs[axis] * _to_input(warp.field, axes, signs),
        note=estimate.note,
    )


def estimate_correction(
    series: DiffusionSeries,
    opposite: Iterable[OppositeB0] = (),
    *,
    acquired_b0: NDArray[Any] | None = None,
    anatomy: Anatomy | None = None,
    n_threads: int = 1,
    levels: Sequence[Level] = LEVELS,
    device: torch.device | str = "cpu",
) -> Estimate:
    """Estimate the correction of a conformed series; nothing is interpolated yet.

    Parameters
    ----------
    series : DiffusionSeries
    opposite : iterable of OppositeB0
        The first on the grid of the series serves; those after it are never read.
    acquired_b0 : (X, Y, Z) array, optional
        First b0 of the series as it was acquired, where the series was denoised or unrung: it is
        what opposite b0s are compared with, which were not.
    anatomy : Anatomy, optional
        To estimate the susceptibility field from where no opposite b0 serves.
    n_threads : int
        Volumes at a time; the result does not depend on it.
    levels : sequence of Level
        Resolutions, from coarse to fine.
    device : torch.device
        Where to compute.

    Returns
    -------
    estimate : Estimate
    """
    trials: list[tuple[str, Trial]] = []
    field, outcome = _estimate_field(series, opposite, trials, acquired_b0)
    if anatomy is not None and outcome in {"no_opposite_b0", "same_direction", "another_grid"}:
        field, outcome = _estimate_field_from_anatomy(series, anatomy)
    correction = correct_series(
        series,
        None if field is None else field.field,
        levels=levels,
        n_threads=n_threads,
        device=device,
    )
    return Estimate(correction, field, outcome, tuple(trials))


def fill_series(data: NDArray[Any], replacements: Replacements, slice_axis: int) -> NDArray[Any]:
    """Replace the outlier slices of a raw series; the series itself where none is lost.

    Parameters
    ----------
    data : (X, Y, Z, n) array
    replacements : mapping of (volume, slice) to 2D array
    slice_axis : int

    Returns
    -------
    filled : (X, Y, Z, n) array
        Of the same type.
    """
    if not replacements:
        return data
    filled = np.array(data)
    whole = np.issubdtype(data.dtype, np.integer)
    for k in sorted({volume for volume, _ in replacements}):
        volume = fill_slices(filled[..., k], k, replacements, slice_axis)
        filled[..., k] = np.rint(volume) if whole else volume
    return filled


class _How(TypedDict):
    """What an opposite b0 brings along."""

    readout_ratio: float
    start: NDArray[np.float64]


def _estimate_field(
    series: DiffusionSeries,
    opposite: Iterable[OppositeB0],
    trials: list[tuple[str, Trial]],
    acquired_b0: NDArray[Any] | None,
) -> tuple[Susceptibility | None, FieldOutcome]:
    """Estimate the susceptibility field from the first usable b0, if there is one."""
    b0 = series.shells.b0
    if not b0.size:
        return None, "no_opposite_b0"
    first = np.asarray(
        series.data[..., b0[0]] if acquired_b0 is None else acquired_b0, dtype=np.float32
    )
    outcome: FieldOutcome = "no_opposite_b0"
    for other in opposite:
        if other.volume is None or other.volume.shape != first.shape:
            outcome = "another_grid"
            continue
        volume = np.asarray(other.volume, dtype=np.float32)
        how: _How = {"readout_ratio": other.readout_ratio, "start": other.start}
        if not other.certain:
            trial = try_both(first, volume, series.affine, series.axis, **how)
            trials.append((other.name, trial))
            if trial.relation is not Relation.OPPOSITE:
                outcome = "same_direction"
                continue
        field = estimate_field(first, volume, voxel_sizes(series.affine), series.axis, **how)
        if field.correlation_after > field.correlation_before:
            return field, "corrected"
        return None, "no_improvement"
    return None, outcome


def _estimate_field_from_anatomy(
    series: DiffusionSeries, anatomy: Anatomy
) -> tuple[Susceptibility | None, FieldOutcome]:
    """Estimate the susceptibility field from the T1w."""
    b0 = series.shells.b0
    if not b0.size:
        return None, "no_opposite_b0"
    field = estimate_field_from_t1w(
        np.asarray(series.data[..., b0[0]], dtype=np.float32),
        series.affine,
        series.axis,
        anatomy.volume,
        anatomy.affine,
        anatomy.start,
    )
    if field.correlation_after > field.correlation_before:
        return field, "corrected"
    return None, "no_improvement"


def _to_input(
    volume: NDArray[np.float32], axes: tuple[int, ...], signs: tuple[int, ...]
) -> NDArray[np.float32]:
    """Undo the permutation and the flips of :func:`bids_gevnet.dwi.conform.reorder_axes`."""
    flipped = np.flip(volume, [column for column, sign in enumerate(signs) if sign < 0])
    return np.ascontiguousarray(np.transpose(flipped, np.argsort(axes)))


def _check(
    data: NDArray[Any],
    affine: NDArray[np.float64],
    bvals: NDArray[np.float64],
    bvecs: NDArray[np.float64],
    *directions: str,
) -> None:
    count = data.shape[-1] if data.ndim == 4 else 0
    if not count or bvals.shape != (count,) or bvecs.shape != (count, 3):
        raise InputError(
            expected="a series (X, Y, Z, n) with n b-values and n gradients, (n, 3)",
            found=f"shapes {data.shape}, {bvals.shape} and {bvecs.shape}",
            remedy="transpose the gradients if they come from a bvec file, which has 3 rows",
        )
    if affine.shape != (4, 4):
        raise InputError(
            expected="an affine of shape (4, 4)",
            found=str(affine.shape),
            remedy="give the affine of the image",
        )
    wrong = [d for d in directions if d not in {"i", "j", "k", "i-", "j-", "k-"}]
    if wrong:
        raise InputError(
            expected='a direction in BIDS spelling: "i", "j", "k", "i-", "j-" or "k-"',
            found=repr(wrong[0]),
            remedy="see PhaseEncodingDirection in the sidecar of the scan",
        )
