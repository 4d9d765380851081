"""The corrector on scans of the second simulator, which nothing was ever tuned on.

    python benchmarks/accuracy.py --only held-out [--cases "b 1000" ...] [--seeds 71 72]
    python benchmarks/accuracy.py --only held-out --cases large "a quarter of large" --seeds 1

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
from scipy.ndimage import zoom

from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.model_corrector.corrector import Correction, correct_series
from bids_gevnet.dwi.model_corrector.warp import displacement
from bids_gevnet.dwi.motion import estimate_motion

if TYPE_CHECKING:
    from correction_scores import Show

    from bids_gevnet.dwi.model_corrector.corrector import DiffusionSeries

LARGE = Setting(
    b_values=(1000.0, 3000.0), directions=46, voxel_mm=3.0, field_of_view_mm=(210.0, 210.0, 138.0)
)
"""92 weighted volumes and 8 b0s; read on a grid of 140 x 140 x 92 voxels of 1.5 mm."""

LARGE_CASES = {"large": LARGE, "a quarter of large": replace(LARGE, directions=11)}
_FINER = 2

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
        for name, setting in LARGE_CASES.items():
            if name in names:
                large_scan(show, setting, seed)
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


def large_scan(show: Show, setting: Setting, seed: int) -> None:
    """Print time and memory of a scan of the largest usual size, corrected in its own process."""
    scan = simulate(setting, seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        path = Path(folder) / "data.npy"
        shape = write_finer(path, scan.series.data)
        series = replace(
            scan.series, data=np.empty((0, 0, 0, 0)), affine=finer_affine(scan.series.affine)
        )
        correction, seconds, gigabytes = pool.submit(correct_from_file, path, series).result()
        mapped = path.stat().st_size / 1e9
    found = displacement(correction.warp, scan.points, voxel_sizes(series.affine))
    show(
        f"second simulator {seed}, {' x '.join(map(str, shape))} at "
        f"{setting.voxel_mm / _FINER:g} mm: processor time of the estimate in one thread; largest "
        "memory of its process (mapped data); displacement left",
        f"{seconds / 60:.1f} min; {gigabytes:.2f} GB ({mapped:.2f}); "
        f"{describe(scan, found)}; {slices_of_both(scan, correction)}",
        "-",
    )


def write_finer(path: Path, data: np.ndarray) -> tuple[int, ...]:
    """Write a series with voxels half as long, by linear interpolation; return its shape.

    Time and memory do not ask where an image comes from, and to simulate one of this size takes
    longer than to correct it.
    """
    shape = (*(_FINER * size for size in data.shape[:3]), data.shape[3])
    finer = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for k in range(shape[3]):
        finer[..., k] = zoom(data[..., k], _FINER, order=1, mode="nearest", grid_mode=True)
    finer.flush()
    return shape


def finer_affine(affine: np.ndarray) -> np.ndarray:
    """Return the affine of the voxels that `write_finer` writes."""
    finer = affine.copy()
    finer[:3, :3] /= _FINER
    finer[:3, 3] += (finer[:3, :3] - affine[:3, :3]) @ np.full(3, 0.5)
    return finer


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


def slices_of_both(scan: Scan, correction: Correction) -> str:
    """Return how many slices were taken for lost, and how many of the finer ones were."""
    return f"{int(correction.outliers.sum())} slices taken for lost of {_FINER * len(scan.lost)}"


def slices(scan: Scan, correction: Correction) -> str:
    """Return how many slices were found, found wrongly, and lost."""
    taken = {(int(k), int(z)) for k, z in np.argwhere(correction.outliers)}
    return f"{len(taken & scan.lost)}, {len(taken - scan.lost)}, {len(scan.lost)}"
