"""How well motion, eddy currents, lost slices and susceptibility are corrected without FSL.

    python benchmarks/accuracy.py --only correction [--real-data FOLDER] [--voxel-mm 3]
        [--parts 32 64 noise quiet still pair field stiffness encodings real] [--seeds 0 1]

Phantoms have known truth: displacements are compared at brain voxels, as vectors in mm, tensors in
all white matter (more than half of the voxel). Beside the model, ANTs and nothing stands what
perfectly known displacements and no lost slice would give (*truth*): noise and interpolation are
then all that is left. *Misplacement alone* takes the displacements that were found in the noisy
scan and applies them to the same scan without noise and lost slices.
"""

from __future__ import annotations

import cProfile
import math
import pstats
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from correction_scores import (
    TensorTruth,
    corrected_data,
    noise_let_through,
    rms,
    rms_vector,
)
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.conform import Conformed, conform, ras_order
from bids_gevnet.dwi.gradients import rotate_bvecs, voxel_sizes
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.model_corrector.corrector import Correction, DiffusionSeries, correct_series
from bids_gevnet.dwi.model_corrector.susceptibility import estimate_field
from bids_gevnet.dwi.model_corrector.warp import (
    RADIUS_MM,
    Warp,
    displacement,
    grid_points,
    resample_warped,
    still_warp,
)
from bids_gevnet.dwi.motion import estimate_motion
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant

if TYPE_CHECKING:
    from pathlib import Path

    from correction_scores import Show

    from bids_gevnet.phantom.simulation import Scan


@dataclass(frozen=True)
class Case:
    """A simulated scan in the conformed pose, with its truth there."""

    settings: PhantomSettings
    scan: Scan
    conformed: Conformed
    series: DiffusionSeries
    truth: Warp
    mask: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Voxel size in mm."""
        return voxel_sizes(self.conformed.affine)

    @property
    def points(self) -> np.ndarray:
        """Points of the brain in mm, one voxel in 29."""
        return grid_points(self.mask.shape, self.conformed.affine)[np.flatnonzero(self.mask)][::29]

    @property
    def weighted(self) -> np.ndarray:
        """Diffusion-weighted volumes."""
        return np.flatnonzero(self.scan.bvals > 50)


def simulate(**changes: Any) -> Case:
    standard: dict[str, Any] = {
        "groups": ("AD",),
        "per_group": 1,
        "sites": 1,
        "snr": 20.0,
        "motion_mm": 3.0,
        "motion_deg": 3.0,
    }
    settings = PhantomSettings(**(standard | changes))
    scan = simulate_participant(settings, plan_cohort(settings)[0])
    conformed = conform(scan.data, scan.affine, scan.bvecs_ras)
    axes, _ = ras_order(scan.affine)
    series = DiffusionSeries(
        conformed.data, conformed.affine, scan.bvals, conformed.bvecs_ras,
        find_shells(scan.bvals), axes.index(1), axes.index(2),
    )  # fmt: skip
    mask = to_conformed(scan, "mask")
    return Case(settings, scan, conformed, series, true_warp(scan, conformed), mask)


def to_conformed(scan: Scan, name: str) -> np.ndarray:
    return conform(getattr(scan.truth, name), scan.affine).data


def true_warp(scan: Scan, conformed: Conformed) -> Warp:
    axes, signs = ras_order(scan.affine)
    there, axis = conformed.old_to_new, axes.index(1)
    eddy = np.zeros((len(scan.bvals), 10))
    eddy[:, 0] = scan.truth.eddy[:, 0] * signs[axis]
    for raw in range(3):
        new = axes.index(raw)
        sign = signs[new] * signs[axis]
        eddy[:, 1 + new] = scan.truth.eddy[:, 1 + raw] * sign * RADIUS_MM
    field = None
    if scan.truth.field_hz is not None:
        mm_per_hz = scan.site.polarity * scan.site.readout_s * scan.site.voxel_mm[1] * signs[axis]
        field = conform(scan.truth.field_hz * mm_per_hz, scan.affine).data.astype(np.float32)
    motion = there @ scan.truth.motion_matrices @ np.linalg.inv(there)
    return Warp(motion, eddy, axis, field)


def motion_left(case: Case, motion: np.ndarray) -> tuple[float, float]:
    """Return the error at the centre of the brain in mm and the angle in degrees, RMS."""
    centre = np.append(case.points.mean(axis=0), 1)
    apart = ((motion - case.truth.motion) @ centre)[:, :3]
    turn = motion[:, :3, :3] @ np.swapaxes(case.truth.motion[:, :3, :3], 1, 2)
    return rms_vector(apart), rms(np.degrees(Rotation.from_matrix(turn).magnitude()))


def data_of(case: Case, **changes: Any) -> np.ndarray:
    """Return the same scan with other settings, conformed."""
    settings = replace(case.settings, **changes)
    scan = simulate_participant(settings, plan_cohort(settings)[0])
    return conform(scan.data, scan.affine).data


def compare(show: Show, name: str, case: Case) -> None:
    """Correct one phantom with the model and with ANTs, and score both."""
    count = len(case.scan.bvals)
    data, affine = case.conformed.data, case.conformed.affine
    start = time.process_time()
    found = correct_series(case.series)
    corrected = corrected_data(data, affine, found, case.series.slice_axis)
    ours_s = time.process_time() - start
    start = time.process_time()
    ants = estimate_motion(data, affine, case.series.shells)
    rigid = resample_series(data, affine, ants.transforms, data.shape[:3], affine)
    ants_s = time.process_time() - start
    still = still_warp(count, case.truth.axis)
    warps = {
        "model": found.warp,
        "ANTs": replace(still, motion=np.linalg.inv(ants.transforms)),
        "truth": case.truth,
    }
    show_displacements(show, name, case, warps)
    if case.settings.outliers:
        show_outliers(show, name, case, found)
    else:
        show(f"{name}: slices taken for lost (none is)", str(found.outliers.sum()), "-")
    show(
        f"{name}: processor time with resampling, model / ANTs",
        f"{ours_s / count:.2f} / {ants_s / count:.2f} s a volume: {ours_s / ants_s:.2f}",
        "at most 2",
    )
    show_tensors(show, name, case, warps, {"model": corrected, "ANTs": rigid})


def show_displacements(show: Show, name: str, case: Case, warps: dict[str, Warp]) -> None:
    points, along, weighted = case.points, case.truth.axis, case.weighted
    truth, ours, other = (
        displacement(warps[way], points, case.sizes) for way in ("truth", "model", "ANTs")
    )
    distance, angle = motion_left(case, warps["model"].motion)
    show(f"{name}: motion left, RMS", f"{distance:.3f} mm, {angle:.3f} deg", "0.3 mm, 0.3 deg")
    still = still_warp(len(case.scan.bvals), along).motion
    eddy, mine = (
        displacement(replace(warps[way], motion=still), points, case.sizes)[..., along]
        for way in ("truth", "model")
    )
    before, after = rms(eddy[weighted]), rms((mine - eddy)[weighted])
    total = rms((ours - truth)[weighted][..., along])
    show(
        f"{name}: eddy displacement in the brain, RMS before and after (motion and eddy "
        "together along the encoding)",
        f"{before:.2f}, {after:.3f} mm: {100 * (1 - after / before):.0f} % less ({total:.3f})",
        "80 % less",
    )
    common = rms_vector((ours - truth)[weighted].mean(axis=0))
    show(
        f"{name}: displacement left in the brain, RMS: model (of which all weighted volumes "
        "have in common) / ANTs / nothing done",
        f"{rms_vector(ours - truth):.3f} ({common:.3f}) / {rms_vector(other - truth):.3f} / "
        f"{rms_vector(truth):.2f} mm",
        "less than ANTs",
    )


def show_tensors(
    show: Show, name: str, case: Case, warps: dict[str, Warp], corrected: dict[str, np.ndarray]
) -> None:
    """Score FA and main direction, with noise and without."""
    bvecs, affine = case.conformed.bvecs_ras, case.conformed.affine
    white = to_conformed(case.scan, "tissue")[..., 0] > 0.5
    clean = data_of(case, snr=math.inf, motion_mm=0.0, motion_deg=0.0, eddy=0.0, outliers=0.0)
    exact = TensorTruth(clean, white, case.scan.bvals, bvecs)
    turned = {way: rotate_bvecs(bvecs, warp.transforms) for way, warp in warps.items()}

    def resampled(data: np.ndarray, warp: Warp) -> np.ndarray:
        return resample_warped(data, affine, warp, np.eye(4), data.shape[:3], affine)

    noisy = corrected | {"truth": resampled(data_of(case, outliers=0.0), case.truth)}
    scores = [exact.score(noisy[way], turned[way]) for way in warps]
    show(
        f"{name}: error of FA (RMS) and main direction (median): {' / '.join(warps)} / nothing",
        " / ".join(map(str, [*scores, exact.score(case.conformed.data, bvecs)])),
        "better than ANTs",
    )
    moved = data_of(case, snr=math.inf, outliers=0.0)
    quiet = {way: resampled(moved, warp) for way, warp in warps.items()}
    show(
        f"{name}: the same, of misplacement alone: {' / '.join(warps)}",
        " / ".join(str(exact.score(quiet[way], turned[way])) for way in warps),
        "better than ANTs",
    )
    if not case.settings.outliers:
        sigma = case.scan.truth.noise_sigma
        through = [noise_let_through(noisy[way], quiet[way], white, sigma) for way in warps]
        show(
            f"{name}: variance of the noise that comes through the interpolation: "
            f"{' / '.join(warps)}",
            " / ".join(f"{value:.3f}" for value in through),
            "-",
        )


def show_outliers(show: Show, name: str, case: Case, found: Correction) -> None:
    _, signs = ras_order(case.scan.affine)
    truth = np.zeros_like(found.outliers)
    last = truth.shape[1] - 1
    for volume, k, _ in case.scan.truth.dropped:
        truth[volume, k if signs[case.series.slice_axis] > 0 else last - k] = True
    hits = int((truth & found.outliers).sum())
    show(
        f"{name}: lost slices, recall and precision ({truth.sum()} lost)",
        f"{hits / max(1, truth.sum()):.2f}, {hits / max(1, found.outliers.sum()):.2f}",
        "0.9, 0.9",
    )


def still_phantom(show: Show, voxel_mm: float, seed: int) -> None:
    case = simulate(voxel_mm=voxel_mm, motion_mm=0.0, motion_deg=0.0, eddy=0.0, seed=seed)
    found = correct_series(case.series)
    invented = displacement(found.warp, case.points, case.sizes)
    per_volume = np.sqrt(np.mean(np.sum(invented**2, axis=-1), axis=1))
    show(
        f"still phantom {seed}, {voxel_mm:g} mm, 32 directions: invented, RMS (worst volume)",
        f"{rms(per_volume):.3f} ({per_volume.max():.3f}) mm, {found.outliers.sum()} slices",
        "at most 0.1 mm",
    )


def susceptibility_phantom(show: Show, voxel_mm: float, seed: int) -> None:
    case = simulate(voxel_mm=voxel_mm, directions=6, reverse_b0=True, seed=seed)
    other = conform(case.scan.reverse_b0, case.scan.affine).data
    start = time.process_time()
    found = estimate_field(case.conformed.data[..., 0], other, case.sizes, case.series.axis)
    seconds = time.process_time() - start
    error = (found.field - case.truth.field)[case.mask]
    show(
        f"AP/PA phantom {seed}, {voxel_mm:g} mm: error of the field in the brain, RMS",
        f"{rms(error):.3f} mm of {rms(case.truth.field[case.mask]):.2f} ({seconds:.0f} s)",
        "at most 0.5 mm",
    )


def correction_figures(
    show: Show,
    voxel_mm: float,
    real_data: Path | None,
    parts: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (100,),
) -> None:
    """Print all figures, or those of some parts (see the top of the file)."""

    def wanted(part: str) -> bool:
        return not parts or part in parts

    for seed in seeds:
        cases = [("32", 32, 20.0, 0.3), ("64", 64, 20.0, 0.3)]
        cases += [("noise", 32, snr, 0.3) for snr in (10.0, 40.0)]
        cases += [("quiet", 32, snr, 0.0) for snr in (10.0, 40.0)]
        for part, directions, snr, outliers in cases:
            if wanted(part):
                case = simulate(
                    voxel_mm=voxel_mm, directions=directions, snr=snr, outliers=outliers, seed=seed
                )
                name = f"phantom {seed}, {voxel_mm:g} mm, {directions} directions, SNR {snr:g}"
                compare(show, name if outliers else f"{name}, no lost slices", case)
        for part, figure in {
            "still": still_phantom,
            "pair": susceptibility_phantom,
            "field": field_cost,
        }.items():
            if wanted(part):
                figure(show, voxel_mm, seed)
    if real_data is not None:
        from correction_real import field_stiffness, real_pair, real_series, unknown_encodings

        for part, real_figure in {
            "pair": real_pair,
            "stiffness": field_stiffness,
            "encodings": unknown_encodings,
            "real": real_series,
        }.items():
            if wanted(part):
                real_figure(show, real_data)


def field_cost(show: Show, voxel_mm: float, seed: int) -> None:
    """Time the search for outlier slices and the whole estimate with a field and without."""
    case = simulate(voxel_mm=voxel_mm, reverse_b0=True, outliers=0.3, seed=seed)
    name = f"phantom {seed}, {voxel_mm:g} mm, 32 directions, susceptibility field"
    without, search_without, all_without = timed_correction(case.series, None)
    given, search_with, all_with = timed_correction(case.series, case.truth.field)
    show(
        f"{name}: processor time with the field over without: search for outlier slices / whole "
        "estimate",
        f"{search_with / search_without:.2f} ({search_with:.1f} s) / {all_with / all_without:.2f}",
        "at most 1.3",
    )
    both = (given.outliers & without.outliers).sum()
    show(
        f"{name}: outlier slices with the field / without / with and without / lost",
        f"{given.outliers.sum()} / {without.outliers.sum()} / {both} / "
        f"{len(case.scan.truth.dropped)}",
        "the same",
    )


def timed_correction(
    series: DiffusionSeries, field: np.ndarray | None
) -> tuple[Correction, float, float]:
    """Correct; return also the seconds of the search for outlier slices and of everything."""
    profile = cProfile.Profile(time.process_time)
    correction = profile.runcall(correct_series, series, field)
    statistics = pstats.Stats(profile).get_stats_profile()
    return correction, statistics.func_profiles["_find_lost_slices"].cumtime, statistics.total_tt
