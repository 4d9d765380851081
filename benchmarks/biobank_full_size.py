"""What a scan of full size costs the group level where all voxels are read: for biobank.py."""

import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bids_gevnet.bids.writing import write_image
from bids_gevnet.harmonisation.glm import fit_rish_glm
from bids_gevnet.learn.cohort.store import LogRishMaps, StoredScan, mean_log_rish, store_scan
from bids_gevnet.learn.evaluate.baselines import rish_table
from bids_gevnet.learn.evaluate.voxel_maps import read_voxel_maps
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions
from bids_gevnet.sphere.resampling import distinct_directions

NSIDE, VOXEL_MM = 4, 2.0


def measure_full_size(folder: Path, shape: tuple[int, int, int], scans: int) -> list[str]:
    """Measure on a few synthetic scans; lines of Markdown with seconds of one scan."""
    place = folder / "full"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    affine = np.diag([VOXEL_MM, VOXEL_MM, VOXEL_MM, 1.0])
    brain = _head(shape)
    write_image(place / "mask.nii.gz", brain, affine)
    rows: list[tuple[str, float, str]] = []
    folders: list[Path] = []
    spent = 0.0
    for number in range(scans):
        image = place / "image.nii.gz"
        write_image(image, _signal(brain, number), affine, scale=1 / 16384)
        size = image.stat().st_size
        began = time.process_time()
        found = store_scan(
            place / "store", image, place / "mask.nii.gz", nside=NSIDE, voxel_mm=VOXEL_MM
        )
        spent += time.process_time() - began
        folders.append(found.folder)
    bytes_kept = sum(path.stat().st_size for path in folders[0].iterdir())
    note = f"{int(brain.sum()):,} brain voxels; {size / 1e6:.0f} MB of samples become "
    rows.append(("put into the store", spent / scans, f"{note}{bytes_kept / 1e6:.0f} MB"))
    stored = [StoredScan(path) for path in folders]
    sites = ["A" if i % 2 else "B" for i in range(scans)]
    people = [str(i) for i in range(scans)]
    job_scans = [
        JobScan(
            folder=str(path), participant=people[i], session=None, scan=people[i], label=0,
            site=sites[i], motion=None, covariates={},
        )
        for i, path in enumerate(folders)
    ]  # fmt: skip
    gains = fit_rish_glm(LogRishMaps(stored), participants=people, sites=sites, nside=NSIDE)

    def fit(times: int) -> float:
        names = [str(i) for i in range(times * scans)]
        options: Any = {"participants": names, "sites": sites * times, "nside": NSIDE}
        return _each(lambda: fit_rish_glm(LogRishMaps(stored * times), **options), 1)

    # What a fit takes beyond its scans, the gains of every site, is the same for both.
    rows.append(
        ("fit harmonisation", (fit(3) - fit(1)) / (2 * scans), "per training scan and model")
    )
    table = _each(lambda: rish_table(stored, sites, gains), scans)
    rows.append(("mean RISH features", table, "per scan and model"))
    job = TrainJob(
        name="full size", task="a", fold=1, labels=("a", "b"), nside=NSIDE, shape=shape,
        voxel_mm=VOXEL_MM, affine=tuple(map(tuple, affine.tolist())), training=tuple(job_scans),
        testing=(), options=TrainOptions(), model_dir="", work_dir="",
    )  # fmt: skip
    maps = _each(lambda: read_voxel_maps(job, gains), scans)
    rows.append(("maps for the voxelwise models", maps, "per scan and model"))
    energies = _each(lambda: [mean_log_rish(s.samples, nside=NSIDE) for s in stored], scans)
    rows.append(("mean energies for the model's card", energies, "per training scan and model"))
    reader = ScanReader(job_scans, gains)
    began = time.monotonic()
    read = _each(lambda: [reader.read(i) for i in range(scans)], scans)
    speed = scans * bytes_kept / (time.monotonic() - began) / 1e6
    rows.append(("read for training, harmonised", read, f"{speed:,.0f} MB a second from memory"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shutil.rmtree(place)
    about = (
        f"One scan of full size, {'x'.join(map(str, shape))} voxels and {6 * NSIDE**2} "
        f"directions, mean of {scans} synthetic ones whose files the system still held in "
        f"memory; peak of the process {peak:,.0f} MB:\n"
    )
    return [
        about,
        "| stage | processor s a scan | |",
        "|---|---:|---|",
        *(f"| {name} | {seconds:.2f} | {note} |" for name, seconds, note in rows),
    ]


def _each(work: Callable[[], object], scans: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / scans


def _head(shape: tuple[int, int, int]) -> np.ndarray:
    """Make an ellipsoid of about 40 % of the box, as a brain in MNI space is."""
    axes = [np.linspace(-1, 1, n) for n in shape]
    grid = np.meshgrid(*axes, indexing="ij")
    return np.asarray(np.sqrt(sum(part**2 for part in grid)) < 0.9)


def _signal(brain: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    fibre = rng.normal(size=(int(brain.sum()), 3)).astype(np.float32)
    fibre /= np.linalg.norm(fibre, axis=1, keepdims=True)
    cosine = fibre @ distinct_directions(NSIDE).T.astype(np.float32)
    values = np.exp(-0.3 - 1.4 * cosine**2) + rng.normal(0, 0.03, cosine.shape)
    volume = np.zeros((*brain.shape, values.shape[1]), np.float32)
    volume[brain] = values
    return volume


if __name__ == "__main__":
    print(*measure_full_size(Path(sys.argv[1]), (77, 95, 77), 3), sep="\n")
    print(f"{os.cpu_count()} cores")
