"""Time and memory of an epoch against participants and processes.

    python benchmarks/scale.py --write

Scans on the grid of the demo (6 mm, 96 directions) are put into a store, and ckn2+gevnet is
trained on them for three epochs of the same number of samples, in one and in several processes of
one thread each. An epoch's time is that between two lines of the log, so neither start-up nor
initialisation count; memory is the largest of any one process. The CPU time of the busiest process
is given beside it, because the clock also counts what else the machine does.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from pages import RESULTS, write_page

from bids_gevnet.learn.cohort.store import to_half, write_scan
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions, write_jobs
from bids_gevnet.sphere.resampling import distinct_directions

SHAPE = (27, 33, 29)
PAGE = RESULTS / "scale.md"


def synthetic_scan(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    axes = [np.linspace(-1, 1, n) for n in SHAPE]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    mask = np.linalg.norm(grid, axis=-1) < 0.88
    fibre = np.sin(2 * grid[mask] + rng.normal(0, 0.1, 3)) + 1e-3
    fibre /= np.linalg.norm(fibre, axis=-1, keepdims=True)
    cosine = fibre @ distinct_directions(4).T
    values = np.exp(-0.3 - 1.4 * cosine**2) + rng.normal(0, 0.03, cosine.shape)
    return to_half(values), mask


def make_job(root: Path, participants: int, options: TrainOptions) -> TrainJob:
    scans = []
    for number in range(participants):
        folder = root / "store" / f"{number:05d}"
        if not (folder / "facts.json").exists():
            write_scan(folder, *synthetic_scan(number), nside=4, voxel_mm=6.0)
        scans.append(
            JobScan(
                folder=str(folder),
                participant=f"{number}",
                session=None,
                scan=f"sub-{number}",
                label=number % 2,
                site="AB"[number // 2 % 2],
                motion=0.1,
                covariates={},
            )
        )
    return TrainJob(
        name=f"{participants} participants",
        task="a-v-b",
        fold=1,
        labels=("a", "b"),
        nside=4,
        shape=SHAPE,
        voxel_mm=6.0,
        affine=tuple(map(tuple, np.diag([6.0, 6, 6, 1]).tolist())),
        training=tuple(scans),
        testing=(),
        options=options,
        model_dir="",
        work_dir="",
    )


def run(root: Path, job: TrainJob, processes: int) -> Iterator[tuple[float, str]]:
    """Train in processes of one thread; yield every line of the log with its time."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        own = replace(job, model_dir=f"{folder}/model", work_dir=f"{folder}/work")
        write_jobs(Path(folder) / "jobs.json", [own])
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(processes)]
        command += ["-m", "bids_gevnet.learn.train.process", f"{folder}/jobs.json"]
        surroundings = os.environ | {"OMP_NUM_THREADS": "1", "BIDS_GEVNET_DEVICE": "cpu"}
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=surroundings
        ) as child:
            assert child.stderr is not None
            for line in child.stderr:
                yield time.monotonic(), line.rstrip()
                for pid in _family(child.pid):
                    yield _peak_mb(pid), "memory"
                if ", epoch " in line:
                    yield max(map(_cpu_seconds, _family(child.pid))), "work"
        if child.returncode:
            raise SystemExit(f"training ended with exit code {child.returncode}")


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        own = [int(word) for word in children.read_text().split()]
    except OSError:
        own = []
    return [pid, *(member for child in own for member in _family(child))]


def _peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(root: Path, job: TrainJob, processes: int) -> tuple[float, float, float]:
    """Seconds of the fastest epoch by the clock and on the busiest core; peak MB of a process."""
    times, work, memory = [], [], 0.0
    for value, line in run(root, job, processes):
        if line == "memory":
            memory = max(memory, value)
        elif line == "work":
            work.append(value)
        elif ", epoch " in line:
            times.append(value)
    return float(np.min(np.diff(times))), float(np.min(np.diff(work))), memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--participants", type=int, nargs="+", default=[12, 48, 192])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", type=int, default=16, help="samples per class and epoch")
    parser.add_argument("--network", default="ckn2+gevnet")
    parser.add_argument("--write", action="store_true", help=f"write results/{PAGE.name}")
    choices = parser.parse_args()
    options = TrainOptions(
        network=choices.network, epochs=4, samples_per_class=choices.samples, harmonise=True
    )
    load = os.getloadavg()[0]
    lines = [
        "| participants | processes | s per epoch | of one | CPU s each | of one | MB each |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for participants in choices.participants:
            job = make_job(Path(folder), participants, options)
            first: tuple[float, float] | None = None
            for processes in choices.processes:
                seconds, work, memory = measure(Path(folder), job, processes)
                first = first or (seconds, work)
                lines.append(
                    f"| {participants} | {processes} | {seconds:.1f} "
                    f"| {first[0] / seconds:.2f} x faster "
                    f"| {work:.1f} | {first[1] / work:.2f} x less | {memory:.0f} |"
                )
                print(lines[-1], flush=True)
    text = (
        "# Group level: time and memory\n\n"
        f"`python benchmarks/scale.py {' '.join(sys.argv[1:])}`: "
        f"{choices.network}, {2 * choices.samples} samples "
        f"per epoch on a grid of {'x'.join(map(str, SHAPE))} voxels, 96 directions; "
        f"{len(os.sched_getaffinity(0))} cores, one thread per process, load of the machine at "
        f"the start {load:.1f}.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    if choices.write:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
