"""The corrector on scans of the second simulator, which nothing was ever tuned on.

    python benchmarks/accuracy.py --only held-out [--cases "b 1000" ...] [--seeds 71 72]

Displacements are compared at brain voxels, as vectors in mm, volume by volume. The standard scan
has 32 directions, SNR 20, voxels of 3 mm, motion to 3 mm and 3 degrees with drift and jumps, eddy
currents with a cubic term and slices without signal (`ball_and_sticks`).
"""

from __future__ import annotations

import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ball_and_sticks import Scan, Setting, simulate
from correction_scores import rms_vector

from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.model_corrector.corrector import Correction, correct_series
from bids_gevnet.dwi.model_corrector.warp import displacement
from bids_gevnet.dwi.motion import estimate_motion

if TYPE_CHECKING:
    from correction_scores import Show

    from bids_gevnet.dwi.model_corrector.corrector import DiffusionSeries

LARGE = Setting(
    b_values=(1000.0, 3000.0),
    directions=46,
    voxel_mm=1.5,
    field_of_view_mm=(210.0, 210.0, 138.0),
)
"""140 x 140 x 92 voxels, 92 weighted volumes and 8 b0s."""

CASES = {
    "b 1000": (Setting(), "at most 0.3"),
    "b 3000": (Setting(b_values=(3000.0,)), "at most 0.35"),
    "two shells": (Setting(b_values=(1000.0, 3000.0)), "at most 0.3 each"),
    "6 directions": (Setting(directions=6), "at most 0.4"),
    "eddy currents times 3": (Setting(eddy=3.0), "at most 0.4"),
    "SNR 8": (Setting(snr=8.0), "-"),
    "SNR 60, b 3000": (Setting(b_values=(3000.0,), snr=60.0), "at most 0.35"),
    "12 mm, 12 degrees": (Setting(motion_mm=12.0, motion_deg=12.0), "-"),
}


def held_out_figures(show: Show, names: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    """Print one line for each case and seed."""
    for seed in seeds:
        for name, (setting, wanted) in CASES.items():
            if not names or name in names:
                scan = simulate(setting, seed)
                start = time.process_time()
                correction = correct_series(scan.series)
                seconds = time.process_time() - start
                found = displacement(correction.warp, scan.points, voxel_sizes(scan.series.affine))
                show(
                    f"second simulator {seed}, {name}: displacement left in the brain, RMS "
                    "(of which a shell has in common; worst volume), nothing done; lost slices "
                    "found, false, lost",
                    f"{describe(scan, found)}; {slices(scan, correction)} ({seconds:.0f} s)",
                    wanted,
                )
        if "large" in names:
            large_scan(show, seed)
        if not names or "ANTs" in names:
            scan = simulate(Setting(), seed)
            series = scan.series
            ants = estimate_motion(series.data, series.affine, series.shells)
            back = np.linalg.inv(ants.transforms)
            moved = np.einsum("nij,vj->nvi", back[:, :3, :3], scan.points) + back[:, None, :3, 3]
            show(
                f"second simulator {seed}, b 1000: the same by rigid registration with ANTs",
                describe(scan, moved - scan.points),
                "-",
            )


def large_scan(show: Show, seed: int) -> None:
    """Print time and memory of a scan of the largest usual size, corrected in its own process."""
    scan = simulate(LARGE, seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        path = Path(folder) / "data.npy"
        np.save(path, scan.series.data)
        series = replace(scan.series, data=np.empty((0, 0, 0, 0)))
        correction, seconds, gigabytes = pool.submit(correct_from_file, path, series).result()
    found = displacement(correction.warp, scan.points, voxel_sizes(scan.series.affine))
    shape = " x ".join(map(str, scan.series.data.shape))
    show(
        f"second simulator {seed}, {shape} at {LARGE.voxel_mm:g} mm: processor time of the "
        "estimate in one thread; largest memory of its process (mapped data); displacement left",
        f"{seconds / 60:.1f} min; {gigabytes:.2f} GB ({scan.series.data.nbytes / 1e9:.2f}); "
        f"{describe(scan, found)}; {slices(scan, correction)}",
        "-",
    )


def correct_from_file(path: Path, series: DiffusionSeries) -> tuple[Correction, float, float]:
    """Correct data that are mapped from a file; return also seconds and gigabytes."""
    start = time.process_time()
    correction = correct_series(replace(series, data=np.load(path, mmap_mode="r")))
    seconds = time.process_time() - start
    return correction, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def describe(scan: Scan, found: np.ndarray) -> str:
    """Return the errors of each shell, in words of the table."""
    error, parts = found - scan.displacement, []
    for shell in scan.series.shells.shells:
        own = error[shell.volumes]
        worst = np.sqrt(np.mean(np.sum(own**2, axis=-1), axis=1)).max()
        parts.append(
            f"b {shell.b_value:.0f}: {rms_vector(own):.2f} ({rms_vector(own.mean(axis=0)):.2f}; "
            f"{worst:.2f}) mm, {rms_vector(scan.displacement[shell.volumes]):.2f}"
        )
    return ", ".join(parts)


def slices(scan: Scan, correction: Correction) -> str:
    """Return how many slices were found, found wrongly, and lost."""
    taken = {(int(k), int(z)) for k, z in np.argwhere(correction.outliers)}
    return f"{len(taken & scan.lost)}, {len(taken - scan.lost)}, {len(scan.lost)}"
