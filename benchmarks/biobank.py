"""Ten thousand participants: time, memory and size of every stage of the group level.

    python benchmarks/biobank.py --participants 100 1000 10000 --folder FOLDER --write
    python benchmarks/biobank.py --participants 60 120        # a minute: shows that it runs

Derivatives are tiny and simulated (biobank_cohort.py), so that what is measured is what comes with
every scan, whatever its size: files that are opened, rows of tables, lines of reports. Every stage
is a process of its own; time is processor time of it and its children, memory the peak of its
largest process. Growth is an exponent: 1 is linear. With --folder a run that was stopped goes on
where it was.

Networks are not trained: held-out scores are made up and written as training writes them. One
short training, and readers of the store, are measured apart; so is what one scan of full size
(77 x 95 x 77 voxels, 96 directions) costs where all of its voxels are read.
"""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pages import RESULTS, current_commit, write_page

PAGE = RESULTS / "biobank.md"
SEED = 0
NETWORK = "ckn2"
OPTIONS = ("--network", NETWORK, "--strides", "1", "1", "1", "1", "--folds", "5")
FULL_SHAPE, FULL_SCANS = (77, 95, 77), 6

Extra = dict[str, float | str]


def start(_: Path) -> Extra:
    """Start: what a process holds that has done nothing."""
    import torch

    import bids_gevnet.learn.evaluate.collection
    import bids_gevnet.report.group.page  # noqa: F401

    return {"note": f"torch {torch.__version__.split('+')[0]}"}


def cohort(folder: Path) -> Extra:
    """Read the cohort."""
    from bids_gevnet.bids.writing import write_json
    from bids_gevnet.learn.cohort.members import cohort_to_json, read_cohort

    found = read_cohort(folder / "out", folder / "raw", folds=5)
    write_json(folder / "cohort.json", cohort_to_json(found))
    return {"note": f"{len(found.rows):,} scans, {len(found.left_out)} left out"}


def folds(folder: Path) -> Extra:
    """Plan folds and left-out sites."""
    return {"note": f"{len(_plan(_cohort(folder)).models)} models"}


def store(folder: Path) -> Extra:
    """Put the scans into the store."""
    from bids_gevnet.learn.cohort.store import store_scan

    found = _cohort(folder)
    for row in found.rows:
        options: Any = {"nside": found.nside, "voxel_mm": found.voxel_mm}
        store_scan(folder / "store", row.image, row.mask, **options)
    return {}


def jobs(folder: Path) -> Extra:
    """Do all of this by the command: cohort, checks, store by Nipype, jobs."""
    _command(folder, "-m", "bids_gevnet.cli.group_jobs", "--work-dir", folder / "work", *OPTIONS)
    return {"MB": (folder / "work/group/jobs.json").stat().st_size / 1e6, "note": "jobs.json"}


def harmonise(folder: Path) -> Extra:
    """Fit the harmonisation of one model."""
    from bids_gevnet.learn.train.distributed import Processes
    from bids_gevnet.learn.train.trainer import fit_harmonisation

    job = _jobs(folder)[-1]
    fit_harmonisation(job, Processes())
    return {"note": f"{len(job.training):,} training scans"}


def simple(folder: Path) -> Extra:
    """Fit simple models to two folds: mean RISH, whole maps, confounds."""
    from biobank_models import make_scores

    from bids_gevnet.bids.writing import write_json
    from bids_gevnet.layout import OutputLayout
    from bids_gevnet.learn.evaluate.collection import Study, collect_predictions
    from bids_gevnet.learn.train.outputs import write_held_out
    from bids_gevnet.learn.train.trainer import gains_file

    found = _cohort(folder)
    every = _jobs(folder)
    gains = gains_file(every[-1]).read_bytes()
    part = []
    for job in every[:2]:
        place = folder / "part" / Path(job.model_dir).name
        part.append(dataclasses.replace(job, model_dir=str(place)))
        write_held_out(part[-1], make_scores(job.testing))
        (place / "harmonisation.npz").write_bytes(gains)
    write_json(folder / "part" / "nothing.json", {})
    collect_predictions(
        Study(found, _plan(found), part), OutputLayout(folder / "part"), reference_site=None
    )
    return {"note": f"{len(part[0].training):,} training scans"}


def predictions(folder: Path) -> Extra:
    """Write models, held-out scores and tables as training leaves them; not measured."""
    from biobank_models import write_trained

    write_trained(folder, _cohort(folder), _jobs(folder), NETWORK)
    return {}


def evaluate(folder: Path) -> Extra:
    """Evaluate all predictions: intervals, tests, comparisons."""
    from bids_gevnet.layout import OutputLayout
    from bids_gevnet.learn.evaluate.predictions_table import write_metrics

    output = OutputLayout(folder / "out")
    about = json.loads((folder / "about.json").read_text())
    write_metrics(output.metrics_file, output.predictions_table, about, seed=SEED)
    return {"MB": output.metrics_file.stat().st_size / 1e6, "note": "group_metrics.json"}


def permutation(folder: Path) -> Extra:
    """Permutation test of one model."""
    from bids_gevnet.learn.evaluate.permutation import permutation_test

    scans = _cohort(folder).rows
    truth = np.array([row.label == "patient" for row in scans], np.intp)
    wrong = np.random.default_rng(SEED).random(len(scans)) < 0.45
    people, sites = [row.participant for row in scans], [row.site for row in scans]
    predicted = np.where(wrong, 1 - truth, truth)
    found = permutation_test(truth, predicted, people, sites, classes=2, count=2000, seed=SEED)
    return {"note": f"2,000 permutations, p {found['balanced_accuracy']['p']:.4f}"}


def quality(folder: Path) -> Extra:
    """Build the page of --qc-only, by the command."""
    _command(folder, "-m", "bids_gevnet.cli.start", "--qc-only")
    return {"MB": (folder / "out/group_qc.html").stat().st_size / 1e6, "note": "group_qc.html"}


def report(folder: Path) -> Extra:
    """Build the group report."""
    from bids_gevnet.report.group.page import build_group_report

    page = build_group_report(folder / "out")
    return {"MB": page.stat().st_size / 1e6, "note": page.name}


def read_1(folder: Path) -> Extra:
    """Read every scan from the store, harmonised, by one process."""
    return _read(folder, 1)


def read_2(folder: Path) -> Extra:
    """Read them by two processes."""
    return _read(folder, 2)


def train_1(folder: Path) -> Extra:
    """Train a fold for one short epoch, by one process."""
    return _train(folder, 1)


def train_2(folder: Path) -> Extra:
    """Train it by two processes."""
    return _train(folder, 2)


STAGES: dict[str, Callable[[Path], Extra]] = {
    stage.__name__: stage
    for stage in (
        start, cohort, folds, store, jobs, harmonise, simple, predictions, evaluate, permutation,
        quality, report, read_1, read_2, train_1, train_2,
    )
}  # fmt: skip
NOT_MEASURED = {"predictions"}


def _cohort(folder: Path) -> Any:
    from bids_gevnet.interfaces.study_files import read_cohort_file

    return read_cohort_file(str(folder / "cohort.json"))


def _plan(found: Any) -> Any:
    from bids_gevnet.learn.train.planning import plan_study
    from bids_gevnet.settings import LearningSettings

    settings = LearningSettings(network=NETWORK, strides=(1, 1, 1, 1), folds=5)
    return plan_study(found, settings, seed=SEED)


def _jobs(folder: Path) -> Any:
    from bids_gevnet.learn.train.jobs import read_jobs

    return read_jobs(folder / "work/group/jobs.json")


def _command(folder: Path, *words: Any) -> None:
    module, options = words[:2], words[2:]
    command = [sys.executable, *module, folder / "raw", folder / "out", "group", *options]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def _read_share(folder: Path, share: int, of: int, speeds: Any) -> None:
    from bids_gevnet.harmonisation.gains import load_gains
    from bids_gevnet.learn.train.batches import ScanReader
    from bids_gevnet.learn.train.trainer import gains_file

    job = _jobs(folder)[-1]
    reader = ScanReader(job.training, load_gains(gains_file(job)))
    mine = range(share, len(job.training), of)
    began = time.monotonic()
    for index in mine:
        reader.read(index)
    speeds.put(len(mine) / (time.monotonic() - began))


def _read(folder: Path, processes: int) -> Extra:
    spawn = multiprocessing.get_context("spawn")
    speeds = spawn.Queue()
    readers = [
        spawn.Process(target=_read_share, args=(folder, share, processes, speeds))
        for share in range(processes)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    total = sum(speeds.get() for _ in readers)
    return {"note": f"{total:,.0f} scans a second by the clock, without the start"}


def _train(folder: Path, processes: int) -> Extra:
    from bids_gevnet.learn.train.jobs import write_jobs

    job = _jobs(folder)[0]
    options = dataclasses.replace(
        job.options, epochs=1, samples_per_class=64, held_out_curve=False
    )
    with tempfile.TemporaryDirectory(dir=folder) as place:
        own = dataclasses.replace(
            job, options=options, model_dir=f"{place}/model", work_dir=f"{place}/work"
        )
        write_jobs(Path(place) / "jobs.json", [own])
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(processes)]
        command += ["-m", "bids_gevnet.learn.train.process", f"{place}/jobs.json"]
        began = time.monotonic()
        surroundings = os.environ | {"OMP_NUM_THREADS": "1", "BIDS_GEVNET_DEVICE": "cpu"}
        subprocess.run(
            [*command, "--threads", "1", "--train-only"],
            check=True, env=surroundings, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return {"note": f"128 samples, {time.monotonic() - began:.0f} s by the clock"}


def full_size(folder: Path) -> list[str]:
    """Cost of one scan of full size where all its voxels are read, as lines of a table."""
    from biobank_full_size import measure_full_size

    return measure_full_size(folder, FULL_SHAPE, FULL_SCANS)


def run_stage(name: str, folder: Path) -> tuple[float, float, Extra]:
    """Run a stage in a process of its own: processor seconds, peak MB, and what it says."""
    command = [sys.executable, __file__, "--stage", name, "--folder", str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"stage {name} ended with exit code {child.returncode}")
    extra: Extra = json.loads(said.splitlines()[-1])
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, extra


def measure(folder: Path, participants: int, stages: list[str], *, again: bool) -> dict[str, Any]:
    """Write a cohort, unless it is there, and measure the stages that were not measured on it."""
    from biobank_cohort import write_dataset

    place = folder / f"{participants}"
    done = place / "scans.txt"
    if not done.is_file():
        began = time.monotonic()
        scans = write_dataset(place, participants, SEED)
        done.write_text(str(scans))
        print(f"{participants}: written in {time.monotonic() - began:.0f} s", flush=True)
    found: dict[str, Any] = {"scans": int(done.read_text())}
    kept = place / "measured.json"
    old = json.loads(kept.read_text()) if kept.is_file() else {}
    for name in STAGES:
        if name in stages and (again or name not in old):
            old[name] = [*run_stage(name, place), current_commit()]
            kept.write_text(json.dumps(old))
            print(participants, name, old[name], flush=True)
    return found | old


def _growth(scans: list[int], seconds: tuple[float, ...]) -> str:
    """Exponent between the two largest sizes, of what they take beyond the smallest."""
    if len(scans) < 3:
        return "-"
    more = [value - seconds[0] for value in seconds[-2:]]
    if more[0] < 0.3 or more[1] <= more[0]:  # too little to tell
        return "-"
    size = [count - scans[0] for count in scans[-2:]]
    return f"{math.log(more[1] / more[0]) / math.log(size[1] / size[0]):.2f}"


def table(found: dict[int, dict[str, Any]]) -> list[str]:
    """Write the stages as lines of Markdown, the sizes beside each other."""
    sizes = sorted(found)
    scans = [found[size]["scans"] for size in sizes]
    heads = ["stage", *(f"{size:,}: s" for size in sizes), "growth"]
    heads += [*(f"{size:,}: peak MB" for size in sizes), "kB a scan", "file", "at the largest"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 3) + "---|---|"]
    for name, stage in STAGES.items():
        if name in NOT_MEASURED or any(name not in found[size] for size in sizes):
            continue
        seconds, memory, extra, _ = zip(*(found[size][name] for size in sizes), strict=True)
        cells = [(stage.__doc__ or name).split("\n")[0].rstrip(".")]
        cells += [f"{value:.1f}" for value in seconds]
        cells.append(_growth(scans, seconds))
        cells += [f"{value:,.0f}" for value in memory]
        spread = 1024 * (memory[-1] - memory[0]) / max(scans[-1] - scans[0], 1)
        cells.append(f"{spread:.0f}" if len(sizes) > 1 else "-")
        mb = [entry.get("MB") for entry in extra]
        cells.append(" / ".join(f"{value:.2f} MB" for value in mb) if None not in mb else "")
        cells.append(str(extra[-1].get("note", "")))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure and print, or run one stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--participants", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--folder", type=Path, help="keep cohorts and measurements here")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--again", action="store_true", help="measure what was measured, too")
    parser.add_argument("--no-full-size", dest="full_size", action="store_false")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=f"write results/{PAGE.name}")
    choices = parser.parse_args()
    if choices.stage:
        print(json.dumps(STAGES[choices.stage](choices.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = choices.folder or Path(temporary)
        found = {
            n: measure(folder, n, choices.stages, again=choices.again)
            for n in choices.participants
        }
        full = full_size(folder) if choices.full_size else []
    words = ["FOLDER" if word == str(choices.folder) else word for word in sys.argv[1:]]
    command = shlex.join(["python", "benchmarks/biobank.py", *words])
    scans = ", ".join(f"{found[n]['scans']:,} scans of {n:,}" for n in sorted(found))
    commits = sorted({found[n][name][3] for n in found for name in STAGES if name in found[n]})
    about = (
        f"`{command}`, commit {' and '.join(commits)}, seed {SEED}: {scans} simulated "
        "participants at 25 sites, two classes; tiny derivatives (9 x 10 x 9 voxels, nside 1), "
        "held-out scores made up. Processor seconds of a stage and its children, on "
        f"{len(os.sched_getaffinity(0))} cores that other programs used, too; memory of its "
        "largest process. Growth is the exponent of what the two largest cohorts take beyond the "
        "smallest, 1 is linear; kB a scan is the slope of memory.\n"
    )
    text = [
        "# Ten thousand participants\n",
        about,
        *table(found),
        *(["", *full] if full else []),
    ]
    print("\n".join(text))
    if choices.write:
        write_page(PAGE, "\n".join(text))


if __name__ == "__main__":
    main()
