"""Accuracy against processor time when a training step sees a part of the brain.

    python benchmarks/voxels_per_step.py [--folder FOLDER] [--write]

Phantom cohorts with a local effect (fibres disperse in two balls, 3 to 4 % of the brain) and with
a global one (atrophy: larger ventricles, thinner grey matter everywhere), each with two seeds on
which no setting was chosen. A few people of each group are trained on, the others are scored, by
whole scans whatever training saw. Beside parts of the brain stands the rival: all epochs on a grid
of half the resolution, then some on the full grid. With --folder, what was measured is kept.
"""

import argparse
import dataclasses
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import RESULTS, current_commit, write_page
from phantom_cohort import GROUPS, still_settings, write_cohort

from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.learn.cohort.members import Cohort, read_cohort
from bids_gevnet.learn.cohort.store import store_scan
from bids_gevnet.learn.cohort.tasks import choose_tasks
from bids_gevnet.learn.train.distributed import Processes, StopRequest
from bids_gevnet.learn.train.held_out import score_held_out
from bids_gevnet.learn.train.jobs import TrainJob, TrainOptions
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.learn.train.planning import PlannedModel, Split, StudyPlan, make_jobs
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.trainer import train_job
from bids_gevnet.phantom import PhantomSettings

EFFECTS = {"local": ("AD", "PD"), "global": ("AD", "PD")}
PARTS: tuple[float | str, ...] = ("all", 0.25, 0.1, 0.05)


def phantom_settings(effect: str, seed: int, options: argparse.Namespace) -> PhantomSettings:
    """Describe heads that lie still, whose groups differ in one way."""
    settings = still_settings(
        per_group=options.trained + options.tested,
        voxel_mm=options.resolution,
        micro_effect=options.strength if effect == "local" else 0.0,
        seed=seed,
    )
    macro = options.strength if effect == "global" else 0.0
    return dataclasses.replace(settings, macro_effect=macro)


def make_job(
    folder: Path, cohort: Cohort, options: argparse.Namespace, seed: int, name: str, **chosen: Any
) -> TrainJob:
    """Train on the first people of each group, test on the others."""
    labels = np.array([row.label for row in cohort.rows])
    rank = np.array([np.sum(labels[:i] == label) for i, label in enumerate(labels)])
    split = Split(
        name=name,
        fold=1,
        training=tuple(np.flatnonzero(rank < options.trained).tolist()),
        testing=tuple(np.flatnonzero(rank >= options.trained).tolist()),
    )
    tasks, _ = choose_tasks(cohort.labels, "pairs")
    model = PlannedModel(task=tasks[0], network=options.network, split=split, folder=Path(name))
    plan = StudyPlan(tasks=tasks, networks=(options.network,), folds={}, sites={}, models=(model,))
    store = folder / "store"
    folders = [
        store_scan(store, row.image, row.mask, nside=cohort.nside, voxel_mm=cohort.voxel_mm).folder
        for row in cohort.rows
    ]
    how = TrainOptions(
        strides=tuple(options.strides),
        samples_per_class=options.samples_per_class,
        learning_rate=options.learning_rate,
        held_out_curve=False,
        seed=seed,
        **{"epochs": options.epochs, **chosen},
    )
    output, work = OutputLayout(folder / "out"), WorkLayout(folder / "work")
    (job,) = make_jobs(cohort, plan, folders, how, output=output, work=work)
    return job


def train_and_score(job: TrainJob) -> dict[str, float]:
    """Train on one thread; processor seconds, and figures of the people held out."""
    start = time.process_time()
    train_job(job, Processes(), StopRequest(), TrainingProgress(1, active=False))
    seconds = time.process_time() - start
    score_held_out(job, Processes())
    scores = read_held_out(Path(job.model_dir))
    truth = torch.tensor([scan.label for scan in job.testing])
    found = torch.tensor([scores[scan.scan] for scan in job.testing])
    return {"seconds": seconds, **figures(found, truth)}


def figures(scores: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """Balanced accuracy, area under the curve and cross entropy of two classes."""
    margin = scores[:, 1] - scores[:, 0]
    hits = [((margin > 0).long() == truth)[truth == k].float().mean() for k in (0, 1)]
    pairs = margin[truth == 1][:, None] - margin[truth == 0]
    return {
        "accuracy": float(sum(hits) / 2),
        "auc": float((pairs > 0).float().mean() + (pairs == 0).float().mean() / 2),
        "loss": float(torch.nn.functional.cross_entropy(scores, truth)),
    }


def ways(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name each way of training, with its options."""
    for part in options.parts:
        name = part if isinstance(part, str) else f"{100 * part:g} %"
        yield name, {"voxels_per_step": part}


def measure(effect: str, seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train in every way on one cohort."""
    results: dict[str, Any] = {}
    grids = {"fine": options.resolution, "coarse": 2 * options.resolution}
    cohorts = {}
    for name, mm in grids.items():
        if name == "coarse" and effect not in options.rival:
            continue
        place = folder / f"{effect}-{seed}-{name}"
        write_cohort(
            place,
            phantom_settings(effect, seed, options),
            EFFECTS[effect],
            resolution_mm=mm,
            nside=options.nside,
        )
        cohorts[name] = place, read_cohort(place / "scans", place / "raw", folds=2)
    place, cohort = cohorts["fine"]
    for name, chosen in ways(options):
        slug = name.replace(" %", "")
        results[name] = once(place, cohort, options, seed, slug, **chosen)
        print(effect, seed, name, results[name], flush=True)
    if "coarse" in cohorts:
        results["coarse to fine"] = coarse_to_fine(cohorts, options, seed)
        print(effect, seed, "coarse to fine", results["coarse to fine"], flush=True)
    return results


def once(
    place: Path, cohort: Cohort, options: argparse.Namespace, seed: int, name: str, **chosen: Any
) -> dict[str, float]:
    """Train and score one model, unless that was done before."""
    path = place / f"{name}-{options.epochs}-{options.learning_rate:g}.json"
    if not path.is_file():
        job = make_job(place, cohort, options, seed, name, **chosen)
        path.write_text(json.dumps(train_and_score(job)))
    found: dict[str, float] = json.loads(path.read_text())
    return found


def coarse_to_fine(
    cohorts: dict[str, tuple[Path, Cohort]], options: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Train at half the resolution, then a tenth of the epochs at the full one, whole brains."""
    from bids_gevnet.bids.manifest import hash_file
    from bids_gevnet.learn.models.files import WEIGHTS

    place, cohort = cohorts["coarse"]
    first = make_job(place, cohort, options, seed, "coarse", voxels_per_step="all")
    spent = train_and_score(first)["seconds"]
    place, cohort = cohorts["fine"]
    epochs = math.ceil(options.epochs / 10)
    second = make_job(place, cohort, options, seed, "fine", voxels_per_step="all", epochs=epochs)
    start = Path(first.model_dir)
    second = dataclasses.replace(
        second,
        init_dir=str(start),
        init_sha256=hash_file(start / WEIGHTS),
        init_labels=first.labels,
    )
    found = train_and_score(second)
    return found | {"seconds": found["seconds"] + spent}


def show(results: dict[str, dict[str, Any]]) -> str:
    """Write the figures of every cohort as one Markdown table."""
    columns = "processor time of training | of the whole brain's | balanced accuracy | ROC AUC"
    lines = [f"| cohort | a step sees | {columns} | cross entropy |", "|---" * 7 + "|"]
    for cohort, found in results.items():
        for name, row in found.items():
            share = row["seconds"] / found.get("all", row)["seconds"]
            lines.append(
                f"| {cohort} | {name} | {row['seconds']:.0f} s | {share:.2f} | "
                f"{row['accuracy']:.2f} | {row['auc']:.2f} | {row['loss']:.2f} |"
            )
    return "\n".join(lines)


def describe(options: argparse.Namespace) -> str:
    """Say what was measured and how to repeat it."""
    words = ["FOLDER" if word == str(options.folder) else word for word in sys.argv[1:]]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
    return (
        f"`{command}`, commit {current_commit()}, cohorts of seeds "
        f"{' and '.join(map(str, options.seeds))}, one thread. Phantoms, not patients: "
        f"{options.trained} people a group trained on, {options.tested} held out, two sites, "
        f"still heads, true registration, effect {options.strength:g} times its standard size, of "
        f"{len(GROUPS)} groups the first and the last. {options.resolution:g} mm, nside "
        f"{options.nside}, {options.network}, strides {' '.join(map(str, options.strides))}, "
        f"{options.epochs} epochs of {options.samples_per_class} samples a class, learning rate "
        f"{options.learning_rate:g}."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--effects", nargs="+", choices=EFFECTS, default=list(EFFECTS))
    add("--rival", nargs="*", choices=EFFECTS, default=["local"], help="coarse to fine, too")
    add("--seeds", nargs="+", type=int, default=[301, 302])
    add("--parts", nargs="+", type=_part, default=list(PARTS))
    add("--trained", type=int, default=10)
    add("--tested", type=int, default=20)
    add("--strength", type=float, default=1.0)
    add("--network", default="ckn2+gevnet")
    add("--resolution", type=float, default=8.0)
    add("--nside", type=int, default=2)
    add("--strides", type=int, nargs=4, default=[1, 1, 2, 1])
    add("--epochs", type=int, default=12)
    add("--samples-per-class", type=int, default=64)
    add("--learning-rate", type=float, default=3e-3)
    add("--folder", type=Path)
    add("--write", action="store_true", help="write the page in benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        results = {
            f"{effect}, seed {seed}": measure(effect, seed, folder, options)
            for effect in options.effects
            for seed in options.seeds
        }
    text = f"{describe(options)}\n\n{show(results)}"
    print(text)
    if options.write:
        write_page(RESULTS / "voxels_per_step.md", f"# A part of the brain per step\n\n{text}")


def _part(text: str) -> float | str:
    return text if text == "all" else float(text)


if __name__ == "__main__":
    main()
