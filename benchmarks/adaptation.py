"""What --adapt buys at a site that nobody trained on, and what it costs where the mix differs.

    python benchmarks/adaptation.py --write

A phantom cohort of two groups at three scanners. Each scanner in turn is left out of training;
its people are then scored as they are, and with gains estimated from unlabelled scans of the same
scanner (`bids_gevnet.harmonisation.adaptation`): those of everybody there, of a few of them, and
of a choice whose mix of diagnoses is not that of the training data. Nobody's label is used for
the gains. A linear model of voxelwise RISH maps, fitted to the same training scans, stands beside
the network. Heads lie still and come to the template by their true pose.
"""

import argparse
import logging
import shlex
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from pages import RESULTS, current_commit
from phantom_cohort import link_scans, still_settings, write_cohort

from bids_gevnet.bids.writing import write_text
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.learn.cohort.members import read_cohort
from bids_gevnet.learn.cohort.store import store_scan
from bids_gevnet.learn.evaluate.voxel_maps import read_voxel_maps
from bids_gevnet.learn.evaluate.voxelwise import predict_from_maps
from bids_gevnet.learn.models.adaptation import adapt_sites, without_labels
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.held_out import evaluate_scans
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions, write_jobs
from bids_gevnet.learn.train.loop import autocast
from bids_gevnet.learn.train.planning import make_jobs, plan_study
from bids_gevnet.learn.train.progress import log
from bids_gevnet.learn.train.torchrun import Devices, train
from bids_gevnet.settings import ExecutionSettings, LearningSettings

PAGE = RESULTS / "harmonisation.md"
HEADING = "## A site that nobody trained on"
GROUPS = ["AD", "PD"]
MAPS = "rish"


def choices(scans: Sequence[JobScan], rng: np.random.Generator) -> dict[str, list[JobScan] | None]:
    """Whose unlabelled scans the gains are estimated from."""
    mixed = [scans[i] for i in rng.permutation(len(scans))]
    groups = [[scan for scan in mixed if scan.label == label] for label in (0, 1)]
    half = min(len(groups[0]), len(groups[1]))
    return {
        "not adapted": None,
        "everybody at the site": mixed,
        "8 of them, 4 and 4": [*groups[0][:4], *groups[1][:4]],
        "4 of them, 2 and 2": [*groups[0][:2], *groups[1][:2]],
        "three quarters AD": [*groups[0][:half], *groups[1][: half // 3]],
        "three quarters PD": [*groups[1][:half], *groups[0][: half // 3]],
        "AD alone": groups[0],
        "PD alone": groups[1],
    }


def train_sites(options: argparse.Namespace, folder: Path) -> list[TrainJob]:
    """Train a network without each site in turn."""
    settings = still_settings(
        per_group=options.per_group,
        voxel_mm=options.voxel_mm,
        micro_effect=options.strength,
        seed=options.seed,
        sites=options.sites,
    )
    write_cohort(folder, settings, GROUPS, resolution_mm=options.resolution, nside=options.nside)
    output = link_scans(folder, "study")
    learning = LearningSettings(
        network=options.network,
        folds=2,
        epochs=options.epochs,
        samples_per_class=options.samples_per_class,
        learning_rate=options.learning_rate,
        leave_site_out=True,
        devices="cpu:1",
        resume=True,
    )
    execution = ExecutionSettings(random_seed=options.seed, nprocs=1)
    layout, work = OutputLayout(output), WorkLayout(output / "work")
    cohort = read_cohort(output, folder / "raw", folds=learning.folds)
    plan = plan_study(cohort, learning, seed=options.seed)
    folders = [
        store_scan(
            work.store, row.image, row.mask, nside=cohort.nside, voxel_mm=cohort.voxel_mm
        ).folder
        for row in cohort.rows
    ]
    start = TrainOptions.from_settings(
        learning, execution, start=TrainOptions(held_out_curve=False)
    )
    jobs = [
        job
        for job in make_jobs(cohort, plan, folders, start, output=layout, work=work)
        if job.held_out_site is not None
    ]
    write_jobs(work.jobs_file, jobs)
    train(work.jobs_file, Devices.choose(learning, execution))
    return jobs


def score(job: TrainJob, gains: RishGains) -> np.ndarray:
    """Which class the network gives everybody of the site that it was not trained on."""
    network = load_model(Path(job.model_dir)).network
    processes = Processes()
    precision = partial(autocast, "float32", processes.device)
    scores = evaluate_scans(network, ScanReader(job.testing, gains), processes, precision)
    return np.array(scores).argmax(axis=1)


def score_linear(job: TrainJob, gains: RishGains) -> np.ndarray:
    """Classify the same people by a linear model of voxelwise maps."""
    maps = read_voxel_maps(job, gains).harmonised[MAPS]
    chances = predict_from_maps(maps, job.training, job.testing, labels=job.labels, combat=False)
    return chances.argmax(axis=1)


def balanced(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean([(predicted[truth == k] == k).mean() for k in np.unique(truth)]))


def measure(options: argparse.Namespace, folder: Path) -> list[str]:
    """Rows of the table: everybody at every left-out site, pooled."""
    jobs = train_sites(options, folder)
    truth: list[int] = []
    found: dict[str, tuple[list[int], list[int], list[int]]] = {}
    for number, job in enumerate(jobs):
        gains = load_model(Path(job.model_dir)).gains
        if gains is None:
            raise ValueError("the models do not harmonise")
        truth += [scan.label for scan in job.testing]
        rng = np.random.default_rng([options.seed, number])
        for name, scans in choices(job.testing, rng).items():
            used = gains if scans is None else adapt_sites(gains, without_labels(scans)).gains
            entry = found.setdefault(name, ([], [], []))
            entry[0].extend(score(job, used).tolist())
            entry[1].extend(score_linear(job, used).tolist())
            entry[2].append(0 if scans is None else len(scans))
            print(".", end="", flush=True)
    print(flush=True)
    labels = np.array(truth)
    rows = []
    for name, (network, linear, counts) in found.items():
        people = "-" if not any(counts) else " / ".join(map(str, counts))
        figures = [balanced(labels, np.array(values)) for values in (network, linear)]
        rows.append(f"| {name} | {people} | {figures[0]:.2f} | {figures[1]:.2f} |")
    return rows


def describe(options: argparse.Namespace, rows: Sequence[str]) -> str:
    words = ["FOLDER" if word == str(options.folder) else word for word in sys.argv[1:]]
    command = shlex.join(["python", "benchmarks/adaptation.py", *words])
    about = (
        f"    {command}\n\nCommit {current_commit()}, seed {options.seed}. Phantoms, not "
        f"patients: {options.per_group} people a group ({' and '.join(GROUPS)}, which "
        "differ in the dispersion of fibres in two "
        f"balls of 20 mm, strength {options.strength:g}) at {options.sites} scanners, "
        f"{options.resolution:g} mm, nside {options.nside}, {options.network}, {options.epochs} "
        f"epochs of {options.samples_per_class} samples a class. Balanced accuracy over everybody "
        "at every left-out scanner, by models of the others."
    )
    purpose = (__doc__ or "").split("\n\n", 2)[2].strip()
    head = [
        "| gains from unlabelled scans of | people per site | network | voxelwise RISH, linear |",
        "|---|---|---|---|",
    ]
    return "\n".join([HEADING, "", about, "", purpose, "", *head, *rows, ""])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--per-group", type=int, default=24)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--strength", type=float, default=1.6, help="of the microscopic effect")
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--resolution", type=float, default=16.0)
    parser.add_argument("--nside", type=int, default=2)
    parser.add_argument("--network", default="ckn2+gevnet")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples-per-class", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the cohort and the models here")
    parser.add_argument("--write", action="store_true", help=f"add to results/{PAGE.name}")
    options = parser.parse_args()
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as temporary:
        text = describe(options, measure(options, options.folder or Path(temporary)))
    print(text)
    if options.write:
        before = PAGE.read_text(encoding="utf-8").split(HEADING, 1)[0].rstrip()
        write_text(PAGE, f"{before}\n\n{text}")


if __name__ == "__main__":
    main()
