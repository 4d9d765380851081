"""How well motion, eddy currents, lost slices and susceptibility are corrected without FSL.

    python benchmarks/accuracy.py --only correction [--real-data FOLDER] [--voxel-mm 3]

Phantoms have known truth: displacements are compared at brain voxels, as vectors in mm. Real data
are compared with what FSL eddy found (``*_desc-eddy_parameters.tsv`` under derivatives/fsl).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel
import numpy as np
from scipy.ndimage import binary_erosion
from scipy.spatial.transform import Rotation

from bids_gevnet.bids.gradient_files import read_bval, read_bvec
from bids_gevnet.dwi.conform import Conformed, conform, ras_order
from bids_gevnet.dwi.correction import Correction, DiffusionSeries, correct_series, fill_slices
from bids_gevnet.dwi.distortion import (
    RADIUS_MM,
    Warp,
    displacement,
    grid_points,
    resample_warped,
    still_warp,
)
from bids_gevnet.dwi.gradients import (
    bvecs_fsl_to_ras,
    direction_angle_deg,
    rotate_bvecs,
    voxel_sizes,
)
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.motion import estimate_motion
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.dwi.susceptibility import estimate_field
from bids_gevnet.dwi.tensor import TensorFit, fit_tensor
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulate import simulate_participant

if TYPE_CHECKING:
    from collections.abc import Callable

    from bids_gevnet.phantom.simulate import Scan

    Show = Callable[[str, str, str], None]


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def rms_vector(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(np.square(values), axis=-1))))


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


def corrected_data(data: np.ndarray, affine: np.ndarray, found: Correction, slice_axis: int):
    filled = [
        fill_slices(data[..., k], k, found.replacements, slice_axis) for k in range(data.shape[3])
    ]
    return resample_warped(
        np.stack(filled, axis=-1), affine, found.warp, np.eye(4), data.shape[:3], affine
    )


def clean_data(case: Case) -> np.ndarray:
    """Return the same head, still, undistorted and without noise."""
    settings = replace(
        case.settings, snr=np.inf, motion_mm=0.0, motion_deg=0.0, eddy=0.0, outliers=0.0
    )
    scan = simulate_participant(settings, plan_cohort(settings)[0])
    return conform(scan.data, scan.affine).data


def tensor_errors(case: Case, truth: TensorFit, data: np.ndarray, bvecs: np.ndarray) -> str:
    found = fit_tensor(data[white_matter(case)], case.scan.bvals, bvecs)
    coherent = truth.fa > 0.3
    angle = direction_angle_deg(found.direction[coherent], truth.direction[coherent])
    return f"FA {rms(found.fa - truth.fa):.4f}, {np.median(angle):.2f} deg"


def white_matter(case: Case) -> np.ndarray:
    return binary_erosion(to_conformed(case.scan, "tissue")[..., 0] > 0.7)


def compare(show: Show, name: str, case: Case, *, tensors: bool = True) -> None:
    """Correct one phantom with the model and with ANTs, and score both."""
    weighted, points = case.weighted, case.points
    count = len(case.scan.bvals)
    start = time.process_time()
    found = correct_series(case.series)
    ours_s = time.process_time() - start
    truth = displacement(case.truth, points, case.sizes)
    ours = displacement(found.warp, points, case.sizes)
    distance, angle = motion_left(case, found.warp.motion)
    show(f"{name}: motion left, RMS", f"{distance:.3f} mm, {angle:.3f} deg", "0.3 mm, 0.3 deg")
    still = still_warp(count, case.truth.axis)
    along = case.truth.axis
    eddy = displacement(replace(case.truth, motion=still.motion), points, case.sizes)[..., along]
    mine = displacement(replace(found.warp, motion=still.motion), points, case.sizes)[..., along]
    before, after = rms(eddy[weighted]), rms((mine - eddy)[weighted])
    if before > 0:
        total = rms((ours - truth)[weighted][..., along])
        show(
            f"{name}: eddy displacement in the brain, RMS before and after (motion and eddy "
            "together along the encoding)",
            f"{before:.2f}, {after:.3f} mm: {100 * (1 - after / before):.0f} % less ({total:.3f})",
            "80 % less",
        )
    start = time.process_time()
    ants = estimate_motion(case.conformed.data, case.conformed.affine, case.series.shells)
    ants_s = time.process_time() - start
    other = displacement(replace(still, motion=np.linalg.inv(ants.transforms)), points, case.sizes)
    show(
        f"{name}: displacement left in the brain, RMS: model / ANTs / nothing done",
        f"{rms_vector(ours - truth):.3f} / {rms_vector(other - truth):.3f} / "
        f"{rms_vector(truth):.2f} mm",
        "less than ANTs",
    )
    if case.settings.outliers:
        show_outliers(show, name, case, found)
    data, affine = case.conformed.data, case.conformed.affine
    start = time.process_time()
    corrected = corrected_data(data, affine, found, case.series.slice_axis)
    ours_s += time.process_time() - start
    start = time.process_time()
    rigid = resample_series(data, affine, ants.transforms, data.shape[:3], affine)
    ants_s += time.process_time() - start
    show(
        f"{name}: processor time with resampling, model / ANTs",
        f"{ours_s / count:.2f} / {ants_s / count:.2f} s a volume: {ours_s / ants_s:.2f}",
        "at most 2",
    )
    if tensors:
        bvecs = case.conformed.bvecs_ras
        exact = fit_tensor(clean_data(case)[white_matter(case)], case.scan.bvals, bvecs)
        turned = [rotate_bvecs(bvecs, t) for t in (found.warp.transforms, ants.transforms)]
        show(
            f"{name}: error of FA (RMS) and main direction (median): model / ANTs / nothing",
            " / ".join(
                tensor_errors(case, exact, series, table)
                for series, table in (
                    (corrected, turned[0]), (rigid, turned[1]), (data, bvecs)
                )
            ),
            "better than ANTs",
        )  # fmt: skip


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


def still_phantom(show: Show, voxel_mm: float) -> None:
    case = simulate(voxel_mm=voxel_mm, motion_mm=0.0, motion_deg=0.0, eddy=0.0)
    found = correct_series(case.series)
    invented = displacement(found.warp, case.points, case.sizes)
    per_volume = np.sqrt(np.mean(np.sum(invented**2, axis=-1), axis=1))
    show(
        f"still phantom, {voxel_mm:g} mm, 32 directions: invented, RMS (worst volume)",
        f"{rms(per_volume):.3f} ({per_volume.max():.3f}) mm, {found.outliers.sum()} slices",
        "at most 0.1 mm",
    )


def susceptibility_phantom(show: Show, voxel_mm: float) -> None:
    case = simulate(voxel_mm=voxel_mm, directions=6, reverse_b0=True)
    other = conform(case.scan.reverse_b0, case.scan.affine).data
    start = time.process_time()
    found = estimate_field(case.conformed.data[..., 0], other, case.sizes, case.series.axis)
    seconds = time.process_time() - start
    error = (found.field - case.truth.field)[case.mask]
    show(
        f"AP/PA phantom, {voxel_mm:g} mm: error of the displacement field in the brain, RMS",
        f"{rms(error):.3f} mm of {rms(case.truth.field[case.mask]):.2f} ({seconds:.0f} s)",
        "at most 0.5 mm",
    )


def read_real(folder: Path, name: str) -> tuple[DiffusionSeries, Conformed, np.ndarray]:
    path = folder / "sub-siemens" / "dwi" / f"sub-siemens_{name}_dwi.nii.gz"
    image = nibabel.load(path)
    stem = str(path).removesuffix(".nii.gz")
    bvals = read_bval(Path(stem + ".bval"))
    bvecs = bvecs_fsl_to_ras(read_bvec(Path(stem + ".bvec")), image.affine)
    conformed = conform(np.asarray(image.dataobj, dtype=np.float32), image.affine, bvecs)
    series = DiffusionSeries(
        conformed.data, conformed.affine, bvals, conformed.bvecs_ras, find_shells(bvals)
    )
    return series, conformed, image.affine


def real_pair(show: Show, folder: Path) -> None:
    """Both b0s of the Siemens pair, corrected, should be the same image."""
    series, conformed, _ = read_real(folder, "dir-PA")
    other, _, _ = read_real(folder, "dir-AP")
    mask = read_mask(folder)
    sizes, axis = voxel_sizes(conformed.affine), series.axis
    pair = [np.asarray(s.data[..., 0]) for s in (series, other)]
    start = time.process_time()
    found = estimate_field(pair[0], pair[1], sizes, axis)
    seconds = time.process_time() - start
    motions = (np.eye(4), found.motion)
    corrected = [
        resample_warped(
            image[..., None],
            conformed.affine,
            Warp(motion[None], np.zeros((1, 10)), axis, (sign * found.field).astype(np.float32)),
            np.eye(4),
            image.shape,
            conformed.affine,
        )[..., 0]
        for image, motion, sign in zip(pair, motions, (1, -1), strict=True)
    ]
    before, after = (np.corrcoef(a[mask], b[mask])[0, 1] for a, b in (pair, corrected))
    show(
        "Siemens PA and AP: correlation of the b0s in the brain, before and after",
        f"{before:.3f}, {after:.3f} ({seconds:.0f} s)",
        "0.93 (topup: 0.679, 0.957)",
    )


def read_mask(folder: Path) -> np.ndarray:
    name = "sub-siemens_dir-PA_desc-bet2_mask.nii.gz"
    image = nibabel.load(folder / "derivatives" / "fsl" / name)
    return conform(np.asarray(image.dataobj) > 0, image.affine).data


def fsl_displacement(
    folder: Path, points: np.ndarray, hz_to_mm: float, *, inverse: bool, flip: np.ndarray
) -> np.ndarray:
    """Return what FSL eddy's parameters do to points of the brain, (n, v, 3) mm.

    FSL counts mm along the voxel axes as stored, of which `flip` says how they run here; its
    field is in Hz: x, y, z, x², y², z², xy, xz, yz, constant.
    """
    name = "sub-siemens_dir-PA_desc-eddy_parameters.tsv"
    table = np.genfromtxt(folder / "derivatives" / "fsl" / name, skip_header=1)
    stored = points * flip
    found = []
    for row in table:
        matrix = np.eye(4)
        matrix[:3, :3] = Rotation.from_euler("xyz", row[3:6]).as_matrix()
        matrix[:3, 3] = row[:3]
        matrix = np.linalg.inv(matrix) if inverse else matrix
        moved = stored @ matrix[:3, :3].T + matrix[:3, 3]
        x, y, z = moved.T
        terms = np.stack([x, y, z, x * x, y * y, z * z, x * y, x * z, y * z, np.ones_like(x)])
        moved[:, 1] += hz_to_mm * (row[6:] @ terms)
        found.append((moved - stored) * flip)
    return np.stack(found)


def real_series(show: Show, folder: Path) -> None:
    """Compare the Siemens PA series with FSL eddy, ANTs and itself."""
    series, conformed, raw_affine = read_real(folder, "dir-PA")
    mask, affine = read_mask(folder), conformed.affine
    sizes = voxel_sizes(affine)
    start = time.process_time()
    found = correct_series(series)
    corrected = corrected_data(series.data, affine, found, series.slice_axis)
    ours_s = time.process_time() - start
    start = time.process_time()
    ants = estimate_motion(series.data, affine, series.shells)
    rigid = resample_series(series.data, affine, ants.transforms, mask.shape, affine)
    ants_s = time.process_time() - start
    points = grid_points(mask.shape, affine)[np.flatnonzero(mask)][::13]
    ours = displacement(found.warp, points, sizes)
    still = still_warp(len(series.bvals), series.axis)
    theirs = displacement(replace(still, motion=np.linalg.inv(ants.transforms)), points, sizes)
    axes, signs = ras_order(raw_affine)
    assert axes == (0, 1, 2)
    # Which way FSL's matrices point is not in their file: the way that fits ANTs is taken.
    candidates = [
        fsl_displacement(folder, points, 0.0475693 * sizes[1], inverse=way, flip=np.array(signs))
        for way in (False, True)
    ]
    fsl = min(candidates, key=lambda c: rms_vector(c - theirs))
    weighted = series.shells.shells[0].volumes

    def against_fsl(found: np.ndarray) -> str:
        # This eddy does not align the shell with the b0, so what all volumes of the shell have
        # in common is not compared in the second number.
        apart = (found - fsl)[weighted]
        own, other = (d[weighted] - d[weighted].mean(axis=0) for d in (found, fsl))
        alike = np.corrcoef(own[..., 1].ravel(), other[..., 1].ravel())[0, 1]
        common = rms_vector(apart - apart.mean(axis=0))
        return f"{rms_vector(apart):.2f}, {common:.2f} mm, {alike:.2f}"

    show(
        "Siemens PA: displacement in the brain against FSL eddy: RMS difference, without what the "
        "shell has in common, correlation of that along the encoding: model / ANTs / nothing",
        f"{against_fsl(ours)} / {against_fsl(theirs)} / {rms_vector(fsl[weighted]):.2f}, "
        f"{rms_vector(fsl[weighted] - fsl[weighted].mean(axis=0)):.2f} mm",
        "-",
    )
    lost = [f"volume {k} slice {z}" for k, z in np.argwhere(found.outliers)]
    show("Siemens PA: lost slices", ", ".join(lost) or "none", "-")
    show_residual(show, series, mask, {
        "model": (corrected, rotate_bvecs(series.bvecs_ras, found.warp.transforms)),
        "ANTs": (rigid, rotate_bvecs(series.bvecs_ras, ants.transforms)),
        "before": (series.data, series.bvecs_ras),
    })  # fmt: skip
    show(
        "Siemens PA: processor time with resampling, model / ANTs",
        f"{ours_s:.0f} / {ants_s:.0f} s: {ours_s / ants_s:.2f}",
        "at most 2",
    )


def show_residual(
    show: Show,
    series: DiffusionSeries,
    mask: np.ndarray,
    ways: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    """Compare the misfit of the tensor in the same white-matter voxels."""
    inner = binary_erosion(mask, iterations=2)
    fits = {name: fit_tensor(d[inner], series.bvals, b) for name, (d, b) in ways.items()}
    fa = np.mean([fit.fa for fit in fits.values()], axis=0)
    white = (fa > 0.4) & (fa < 0.95)
    show(
        "Siemens PA: misfit of the tensor in white matter, median: " + " / ".join(fits),
        " / ".join(f"{np.median(fit.residual[white]):.4f}" for fit in fits.values()),
        "lowest",
    )


def correction_figures(
    show: Show, voxel_mm: float, real_data: Path | None, parts: tuple[str, ...] = ()
) -> None:
    """Print all figures, or those of some parts: 32, 64, noise, still, pair, real."""

    def wanted(part: str) -> bool:
        return not parts or part in parts

    for directions in (32, 64):
        if wanted(str(directions)):
            case = simulate(
                voxel_mm=voxel_mm, directions=directions, outliers=0.3, seed=directions
            )
            compare(show, f"phantom, {voxel_mm:g} mm, {directions} directions, SNR 20", case)
    if wanted("noise"):
        for snr in (10.0, 40.0):
            case = simulate(voxel_mm=5.0, directions=24, snr=snr, seed=1)
            compare(show, f"phantom, 5 mm, 24 directions, SNR {snr:g}", case)
    if wanted("still"):
        still_phantom(show, 4.0)
    if wanted("pair"):
        susceptibility_phantom(show, voxel_mm)
        if real_data is not None:
            real_pair(show, real_data)
    if wanted("real") and real_data is not None:
        real_series(show, real_data)
