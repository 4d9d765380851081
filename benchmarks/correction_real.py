"""The correction without FSL on real scans: a pair of opposite phase encoding, a whole series.

Displacements are compared with what FSL eddy found (``*_desc-eddy_parameters.tsv`` under
derivatives/fsl); run by ``benchmarks/accuracy.py --only correction --real-data FOLDER``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel
import numpy as np
from correction_scores import alike, corrected_data, rms_vector, unwarp
from scipy.ndimage import binary_erosion, shift
from scipy.spatial.transform import Rotation

from bids_gevnet.bids.gradient_files import read_bval, read_bvec
from bids_gevnet.dwi.conform import Conformed, conform, ras_order
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, rotate_bvecs, voxel_sizes
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.model_corrector.corrector import DiffusionSeries, correct_series
from bids_gevnet.dwi.model_corrector.susceptibility import LEVELS, FieldLevel, estimate_field
from bids_gevnet.dwi.model_corrector.warp import displacement, grid_points, still_warp
from bids_gevnet.dwi.motion import estimate_motion
from bids_gevnet.dwi.polarity import try_both
from bids_gevnet.dwi.shells import find_shells, mean_volume
from bids_gevnet.dwi.tensor import fit_tensor

if TYPE_CHECKING:
    from correction_scores import Show


STIFFNESSES = {
    "two levels fewer (8 mm)": LEVELS[:-2],
    "one level fewer (6 mm)": LEVELS[:-1],
    "the app's (4.5 mm)": LEVELS,
    "a third as stiff": (*LEVELS, FieldLevel(3.0, 3.0, 4.5, 0.00001, 5)),
    "almost free": (
        *LEVELS,
        FieldLevel(3.0, 3.0, 4.5, 0.00001, 5),
        FieldLevel(3.0, 3.0, 4.0, 0.000001, 5),
    ),
}
"""Levels to choose among, from stiff to soft, with the distance of knots on the last one."""


def read_real(
    folder: Path, name: str, label: str = "siemens"
) -> tuple[DiffusionSeries, Conformed, np.ndarray]:
    path = folder / f"sub-{label}" / "dwi" / f"sub-{label}_{name}_dwi.nii.gz"
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
    affine, axis = conformed.affine, series.axis
    pair = [np.asarray(s.data[..., 0]) for s in (series, other)]
    start = time.process_time()
    found = estimate_field(pair[0], pair[1], voxel_sizes(affine), axis)
    seconds = time.process_time() - start

    show(
        "Siemens PA and AP: correlation of the b0s in the brain, before and after",
        f"{alike(pair, mask):.3f}, {alike(unwarp(pair, affine, axis, found), mask):.3f} "
        f"({seconds:.0f} s)",
        "0.957 (topup, in the same mask)",
    )
    # Not seen by the estimate: here a field that fits the noise of the b0s is worse, not better.
    weighted = [
        np.mean(np.asarray(s.data)[..., s.shells.shells[0].volumes], axis=3)
        for s in (series, other)
    ]
    show(
        "Siemens PA and AP: the same of the mean diffusion-weighted images, which the field was "
        "not fitted to",
        f"{alike(weighted, mask):.3f}, {alike(unwarp(weighted, affine, axis, found), mask):.4f}",
        "highest",
    )


def field_stiffness(show: Show, folder: Path) -> None:
    """Compare stiffnesses on both real pairs, so that one chooses and the other is scored."""
    for label in ("uih", "siemens"):
        pair = [read_real(folder, name, label)[0] for name in ("dir-PA", "dir-AP")]
        affine, axis = pair[0].affine, pair[0].axis
        b0s = [mean_volume(s.data, s.shells.b0) for s in pair]
        weighted = [mean_volume(s.data, s.shells.shells[0].volumes) for s in pair]
        brain = brain_mask(b0s[0], affine, weighted[0])
        for name, levels in STIFFNESSES.items():
            found = estimate_field(*b0s, voxel_sizes(affine), axis, levels=levels)
            show(
                f"{label} PA and AP, {name}: correlation of the b0s; of the mean weighted images",
                "; ".join(
                    f"{alike(unwarp(images, affine, axis, found), brain):.4f}"
                    for images in (b0s, weighted)
                ),
                "-; highest",
            )


def unknown_encodings(show: Show, folder: Path) -> None:
    """Try the b0s of both real pairs as equal and as opposite, and one of them with itself."""
    for label in ("uih", "siemens"):
        pair = [read_real(folder, name, label)[0] for name in ("dir-AP", "dir-PA")]
        first, other = (np.asarray(s.data[..., s.shells.b0[0]], np.float32) for s in pair)
        noise = np.random.default_rng(0).normal(scale=0.03 * first.mean(), size=first.shape)
        again = shift(first, (0.3, 0.2, 0.1), order=1, mode="nearest") + noise
        for name, second in {"PA": other, "itself, moved and with noise": again}.items():
            trial = try_both(first, second, pair[0].affine, pair[0].axis)
            show(
                f"{label} AP and {name}: correlation of b0s as equal and as opposite; taken as",
                f"{trial.as_equal:.3f}, {trial.as_opposite:.3f}; {trial.relation.value}",
                "opposite" if name == "PA" else "equal",
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
