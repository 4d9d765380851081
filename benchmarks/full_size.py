"""Hours of a study at the paper's size on this machine, by the times of its steps.

    python benchmarks/full_size.py [--parts all 0.25 0.1 0.05] [--write]

60 against 60 scans of 2 mm (77 x 95 x 77 voxels, 96 distinct directions), 5 folds and a final
model with the default settings. The store is real: a few scans of the full size, random signal in
a brain of the usual size, read, harmonised, mixed and cut as in training; the 120 participants
share them. A step of each part of the brain is timed, and a whole scan that is scored; the rest
follows from the plan. On two cores two processes share the batch, so hours are half of one
process's. Nothing is trained to its end.
"""

import argparse
import dataclasses
import resource
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import RESULTS, current_commit, write_page

from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.learn.cohort.store import to_half, write_scan
from bids_gevnet.learn.train.blocks import count_boxes
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions
from bids_gevnet.learn.train.mixup import split_batches
from bids_gevnet.learn.train.trainer import STATISTICS_SCANS, Trainer

SHAPE = (77, 95, 77)
BRAIN_VOXELS = 210_000
NSIDE = 4
PER_CLASS = 60
FOLDS = 5
GOAL_H = 12


def brain() -> np.ndarray:
    """Ellipsoid of the size of a brain, in the middle of the grid."""
    axes = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")
    distance = sum(axis**2 for axis in axes)
    mask: np.ndarray = distance <= np.partition(distance.ravel(), BRAIN_VOXELS)[BRAIN_VOXELS]
    return mask


def fill_store(folder: Path, scans: int) -> list[Path]:
    """Write scans of the full size, unless they are there."""
    mask, rng = brain(), np.random.default_rng(0)
    folders = [folder / f"scan-{number}" for number in range(scans)]
    for place in folders:
        if not (place / "facts.json").is_file():
            samples = to_half(rng.random((int(mask.sum()), 6 * NSIDE**2), np.float32))
            write_scan(place, samples, mask, nside=NSIDE, voxel_mm=2.0)
    return folders


def make_job(folders: list[Path], folder: Path, part: float | str) -> TrainJob:
    """Describe one fold: four fifths of 60 against 60 scans, which share the folders."""

    def scan(number: int, label: int) -> JobScan:
        return JobScan(
            folder=str(folders[number % len(folders)]),
            participant=f"{label}-{number}",
            session=None,
            scan=f"sub-{label}{number:02d}",
            label=label,
            site="AB"[number % 2],
            motion=None,
            covariates={},
        )

    everybody = [scan(number, label) for label in (0, 1) for number in range(PER_CLASS)]
    return TrainJob(
        name="full size",
        task="A-v-B",
        fold=1,
        labels=("A", "B"),
        nside=NSIDE,
        shape=SHAPE,
        voxel_mm=2.0,
        affine=tuple(map(tuple, np.diag([2.0, 2.0, 2.0, 1.0]).tolist())),
        training=tuple(s for i, s in enumerate(everybody) if i % FOLDS),
        testing=tuple(everybody[::FOLDS]),
        options=TrainOptions(voxels_per_step=part),
        model_dir=str(folder / "model"),
        work_dir=str(folder / "work"),
    )


def make_gains() -> RishGains:
    """Gains of two sites that change every voxel, as fitted ones do."""
    rng = np.random.default_rng(1)
    degrees = fit_limits(NSIDE)[1]
    gains = rng.uniform(0.9, 1.1, (2, *SHAPE, len(degrees))).astype(np.float32)
    return RishGains(gains, ("A", "B"), degrees=tuple(degrees), nside=NSIDE)


def time_steps(trainer: Trainer, samples: int) -> float:
    """Processor seconds of a step of the default batch, from a step of some samples."""
    plan = trainer.plan(1)[-samples:]  # the last of an epoch are mixtures
    start = time.process_time()
    *inputs, labels = next(iter(trainer.read([plan])))
    trainer.model.train()
    loss = torch.nn.functional.cross_entropy(trainer.model(*inputs), labels)
    torch.autograd.backward(loss)
    trainer.optimiser.step()
    return (time.process_time() - start) * trainer.options.batch_size / samples


def time_score(trainer: Trainer) -> float:
    """Processor seconds to score one whole scan."""
    start = time.process_time()
    with torch.no_grad():
        trainer.network.eval()
        trainer.network(*trainer.reader.single(0))
    return time.process_time() - start


def hours(step: float, score: float, options: TrainOptions) -> float:
    """Hours on two cores of 5 folds and a final model, validation and statistics included."""
    steps = options.epochs * len(split_batches(2 * options.samples_per_class, options.batch_size))
    tested = 2 * PER_CLASS // FOLDS * (options.epochs + 1)
    scored = FOLDS * (3 * STATISTICS_SCANS + tested) + 3 * STATISTICS_SCANS
    return ((FOLDS + 1) * steps * step + scored * score) / 3600 / 2


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Time a step of each part of the brain."""
    folders = fill_store(folder / "store", options.scans)
    trainer = Trainer(make_job(folders, folder, options.parts[0]), make_gains(), Processes())
    rows, score = [], time_score(trainer)
    for part in options.parts:
        chosen = dataclasses.replace(trainer.options, voxels_per_step=part)
        trainer.options = chosen
        trainer.boxes = count_boxes(part, BRAIN_VOXELS, trainer.compound)
        if trainer.boxes > 1:
            trainer.take_blocks(trainer.compound, Processes())
        step = time_steps(trainer, options.samples)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append({"part": part, "step": step, "score": score, "peak": peak})
        rows[-1]["hours"] = hours(step, score, chosen)
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--parts", nargs="+", default=[0.05, 0.1, 0.25, "all"], type=_part)
    add("--samples", type=int, default=2, help="of a step that is timed")
    add("--scans", type=int, default=4, help="of the store")
    add("--folder", type=Path)
    add("--write", action="store_true", help="write the page in benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        rows = measure(options, options.folder or Path(temporary))
    words = ["FOLDER" if word == str(options.folder) else word for word in sys.argv[1:]]
    head = (
        f"`{shlex.join(['python', 'benchmarks/full_size.py', *words])}`, commit "
        f"{current_commit()}, one thread, a step of {options.samples} samples scaled to the "
        f"batch of {TrainOptions().batch_size}. Scoring a whole scan takes {rows[0]['score']:.1f} "
        f"s. Goal: {GOAL_H} hours."
    )
    columns = "processor time of a step | of the whole brain's | 5 folds and a final model"
    lines = [head, "", f"| a step sees | {columns} on two cores | peak memory so far |"]
    lines.append("|---" * 5 + "|")
    whole = next((row["step"] for row in rows if row["part"] == "all"), None)
    for row in rows:
        name = row["part"] if isinstance(row["part"], str) else f"{100 * row['part']:g} %"
        share = "" if whole is None else f"{row['step'] / whole:.2f}"
        lines.append(
            f"| {name} | {row['step']:.1f} s | {share} | {row['hours']:.0f} hours | "
            f"{row['peak']:.2f} GB |"
        )
    text = "\n".join(lines)
    print(text)
    if options.write:
        write_page(RESULTS / "full_size.md", f"# The paper's size\n\n{text}")


def _part(text: str) -> float | str:
    return text if text == "all" else float(text)


if __name__ == "__main__":
    main()
