"""Accuracy of the participant level's functions, on phantoms with known truth and on real scans.

    python benchmarks/accuracy.py [--real-data FOLDER] [--voxel-mm 3] [--heads 2]
    python benchmarks/accuracy.py --only correction [--parts 32 noise ...] [--real-data FOLDER]
    python benchmarks/accuracy.py --only held-out [--cases "b 1000" ...]
    python benchmarks/accuracy.py --only masks [--real-data FOLDER]
    python benchmarks/accuracy.py --only registration [--real-data FOLDER]

FOLDER is a BIDS dataset with reference masks under derivatives/fsl (``*_desc-bet2_mask`` and
``*_desc-mrtrix_mask``). Prints one table in Markdown: what, found, wanted.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import nibabel
import numpy as np

from bids_gevnet.dwi.coherence import CANDIDATES, check_coherence
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.mask import brain_mask, dice
from bids_gevnet.dwi.motion import estimate_motion
from bids_gevnet.dwi.registration import register_to_template
from bids_gevnet.dwi.registration_quality import Volume
from bids_gevnet.dwi.shells import find_shells, mean_volume
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant
from bids_gevnet.sphere.harmonics import real_harmonics
from bids_gevnet.sphere.resampling import distinct_directions, resample, resampling_matrix


def show(what: str, found: str, wanted: str) -> None:
    print(f"| {what} | {found} | {wanted} |", flush=True)


def spread_directions(count: int) -> np.ndarray:
    from dipy.core.sphere import HemiSphere, disperse_charges

    start = np.random.default_rng(count).normal(size=(count, 3))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    return disperse_charges(HemiSphere(xyz=start), 2000)[0].vertices


def noise_figures() -> None:
    """RMSE against truth of b = 1000 single fibres at SNR 20, as in maths.md."""
    targets = distinct_directions(4)
    axes = np.random.default_rng(1).normal(size=(2000, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)

    def signal(directions: np.ndarray) -> np.ndarray:
        return np.exp(-(0.3 + 1.4 * (axes @ directions.T) ** 2))

    for count, wanted in ((30, "0.040 / 0.046 / 0.044"), (64, "0.028 / 0.040 / 0.024")):
        directions = spread_directions(count)
        real, imaginary = np.random.default_rng(2).normal(scale=0.05, size=(2, 2000, count))
        noisy = np.hypot(signal(directions) + real, imaginary)
        basis = real_harmonics(directions, 4)
        ridge = np.linalg.solve(basis.T @ basis + 0.01 * np.eye(15), basis.T)
        matrices = (
            resampling_matrix(directions, targets),
            resampling_matrix(directions, targets, smoothing=0.0),
            real_harmonics(targets, 4) @ ridge,
        )
        found = " / ".join(
            f"{np.sqrt(np.mean((noisy @ m.T - signal(targets)) ** 2)):.3f}" for m in matrices
        )
        show(f"RMSE, {count} directions: smoothed / exact thin-plate / SH 4", found, wanted)


def resampling_speed() -> None:
    matrix = resampling_matrix(spread_directions(64), distinct_directions(4))
    signal = np.random.default_rng(0).random((235_000, 64), dtype=np.float32)
    operator = np.ascontiguousarray(matrix.T, dtype=np.float32)
    out = np.empty((235_000, 96), np.float32)
    bare, ours = [], []
    for _ in range(9):
        start = time.perf_counter()
        np.matmul(signal, operator, out=out)
        bare.append(time.perf_counter() - start)
        start = time.perf_counter()
        resample(signal, matrix, out=out)
        ours.append(time.perf_counter() - start)
    ratio = np.median(ours) / np.median(bare)
    show(
        "whole brain (235k voxels, 64 directions) over the bare product",
        f"{ratio:.2f} ({1000 * np.median(ours):.0f} ms)",
        "at most 3",
    )


def load_template() -> Volume:
    from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

    image, mask = load_mni152_template(resolution=2), load_mni152_brain_mask(resolution=2)
    data = np.asarray(image.dataobj, dtype=np.float32)
    return Volume(data, image.affine, np.asarray(mask.dataobj) > 0)


def error_mm(found: np.ndarray, truth: np.ndarray, points: np.ndarray) -> float:
    return float(np.linalg.norm((points @ (found - truth).T)[:, :3], axis=1).mean())


def phantoms(voxel_mm: float, heads: int, template: Volume) -> None:
    for seed in range(heads):
        settings = PhantomSettings(
            per_group=1,
            voxel_mm=voxel_mm,
            directions=16,
            eddy=0.0,
            pose_deg=20.0,
            pose_size=0.15,
            seed=seed,
        )
        scan = simulate_participant(settings, plan_cohort(settings)[0])
        image = conform(scan.data, scan.affine)
        shells = find_shells(scan.bvals)
        b0 = mean_volume(image.data, shells.b0)
        dwi = mean_volume(image.data, shells.shells[0].volumes)
        index = np.argwhere(scan.truth.mask)[::37]
        points = np.c_[index, np.ones(len(index))] @ (image.old_to_new @ scan.affine).T
        name = f"phantom {seed}, {voxel_mm:g} mm"

        mask = brain_mask(b0, image.affine, dwi)
        truth = conform(scan.truth.mask, scan.affine).data
        show(f"{name}: Dice of the mask", f"{dice(mask, truth):.3f}", "at least 0.95")

        start = time.process_time()
        found = register_to_template(Volume(b0, image.affine, mask), template)
        seconds = time.process_time() - start
        to_mni = np.linalg.inv(image.old_to_new @ scan.truth.pose)
        show(
            f"{name}: error of the affine to MNI, mm",
            f"{error_mm(found.moving_to_fixed, to_mni, points):.2f} ({seconds:.0f} s CPU; "
            f"overlap {found.dice:.3f}, information {found.information:.3f})",
            "at most 1.5",
        )

        start = time.process_time()
        motion = estimate_motion(image.data, image.affine, shells)
        seconds = (time.process_time() - start) / len(scan.bvals)
        there = image.old_to_new
        still = there @ np.linalg.inv(scan.truth.motion_matrices) @ np.linalg.inv(there)
        after = [error_mm(a, b, points) for a, b in zip(motion.transforms, still, strict=True)]
        before = [error_mm(np.eye(4), b, points) for b in still]
        show(
            f"{name}: motion left, mm (mean, largest; before)",
            f"{np.mean(after[1:]):.2f}, {np.max(after):.2f}; {np.mean(before[1:]):.2f} "
            f"({seconds:.1f} s CPU a volume)",
            "0.24 to 0.38, 1.3 s",
        )


def real_scans(folder: Path, template: Volume) -> None:
    for path in sorted(folder.glob("sub-*/dwi/*_dwi.nii.gz")):
        image = nibabel.load(path)
        data = np.asarray(image.dataobj, dtype=np.float32)
        name = path.name.removesuffix("_dwi.nii.gz")
        bvals = np.loadtxt(str(path).replace(".nii.gz", ".bval"))
        bvecs = np.loadtxt(str(path).replace(".nii.gz", ".bvec")).T
        shells = find_shells(bvals)
        b0 = mean_volume(data, shells.b0)
        mask = brain_mask(b0, image.affine, mean_volume(data, shells.shells[0].volumes))
        for reference in ("bet2", "mrtrix"):
            other = folder / "derivatives" / "fsl" / f"{name}_desc-{reference}_mask.nii.gz"
            if other.exists():
                overlap = dice(mask, np.asarray(nibabel.load(other).dataobj) > 0)
                show(f"{name}: Dice against {reference}", f"{overlap:.3f}", "at least 0.90")

        start = time.process_time()
        found = check_coherence(data, mask, image.affine, bvals, bvecs)
        seconds = time.process_time() - start
        runner_up = np.sort(found.scores)[-2]
        show(
            f"{name}: best of 24 gradient tables",
            f"{found.best} ({found.scores.max():.3f}, next {runner_up:.3f}; {seconds:.1f} s CPU)",
            "as it stands",
        )
        right, tried = 0, CANDIDATES[1::5]
        for wrong in tried:
            repair = check_coherence(data, mask, image.affine, bvals, bvecs @ wrong.matrix.T)
            undone = repair.best.matrix @ wrong.matrix
            same = np.allclose(undone, np.eye(3)) or np.allclose(undone, -np.eye(3))
            right += bool(same and repair.outcome == "wrong")
        show(f"{name}: wrong tables named with their repair", f"{right} of {len(tried)}", "all")

        moved = conform(b0, image.affine)
        brain = conform(mask, image.affine).data
        registration = register_to_template(Volume(moved.data, moved.affine, brain), template)
        show(
            f"{name}: overlap and information with MNI",
            f"{registration.dice:.3f}, {registration.information:.3f}"
            f"{' (warns)' if registration.is_poor else ''}",
            "-",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real-data", type=Path)
    parser.add_argument("--voxel-mm", type=float, default=3.0)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--only", choices=["correction", "held-out", "masks", "registration"])
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="*", type=int)
    options = parser.parse_args()
    print("| what | found | wanted |\n|---|---|---|")
    if options.only == "correction":
        from correction import correction_figures

        parts, seeds = tuple(options.parts), tuple(options.seeds or [100])
        correction_figures(show, options.voxel_mm, options.real_data, parts, seeds)
        return
    if options.only == "held-out":
        from ball_and_sticks import HELD_OUT
        from held_out import held_out_figures

        held_out_figures(show, tuple(options.cases), tuple(options.seeds or HELD_OUT))
        return
    if options.only == "masks":
        from masks import phantom_masks, real_masks

        if options.real_data is not None:
            real_masks(show, options.real_data, tuple(options.cases))
        phantom_masks(show, options.voxel_mm, options.heads)
        return
    if options.only == "registration":
        from planted_registrations import HELD_OUT, registration_verdicts

        names, parts = tuple(options.cases), tuple(options.parts)
        seeds = tuple(options.seeds or HELD_OUT)
        registration_verdicts(show, options.real_data, options.voxel_mm, names, parts, seeds)
        return
    noise_figures()
    resampling_speed()
    template = load_template()
    if options.real_data is not None:
        real_scans(options.real_data, template)
    phantoms(options.voxel_mm, options.heads, template)


if __name__ == "__main__":
    main()
