"""Models and tables of a study whose networks were not trained: for biobank.py."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.layout import OutputLayout
from bids_gevnet.learn.cohort.members import write_cohort
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.evaluate.baselines import BASELINES, baselines_for
from bids_gevnet.learn.evaluate.predictions_table import TaskResult, calibrate, write_predictions
from bids_gevnet.learn.models.files import build_network, write_model
from bids_gevnet.learn.train.outputs import make_card, read_held_out, write_held_out
from bids_gevnet.learn.train.trainer import gains_file

SEED = 0


def write_trained(folder: Path, found: Any, every: Any, network_name: str) -> None:
    """Write models, held-out scores and tables as training leaves them."""
    output = OutputLayout(folder / "out")
    gains = load_gains(gains_file(every[-1]))
    prints = {s.folder: StoredScan(Path(s.folder)).fingerprint for s in every[-1].training}
    curve = "epoch,learning_rate,train_loss,train_accuracy,held_out_loss,held_out_accuracy\n"
    for number, job in enumerate(every):
        place = Path(job.model_dir)
        own = dataclasses.replace(gains, gains=gains.gains * (1 + 1e-4 * number))
        network = build_network(network_name, 2, job.nside, job.options.strides)
        names = [prints[scan.folder] for scan in job.training]
        write_model(place, network, make_card(job, own, names, np.zeros((2, 2))), own)
        write_text(place / "learning_curve.csv", curve + "1,0.001,0.7,0.5,0.69,0.52\n")
        if job.fold is not None:
            write_held_out(job, make_scores(job.testing))
    rows = {row.scan: row for row in found.rows}
    results = []
    for scheme, by_site in (("folds", False), ("leave-site-out", True)):
        chosen = [j for j in every if j.fold is not None and bool(j.held_out_site) == by_site]
        entries = sorted(
            (scan, job.fold, values)
            for job in chosen
            for scan, values in read_held_out(Path(job.model_dir)).items()
        )
        results += _results(rows, entries, every[0], scheme, network_name)
    write_predictions(output.predictions_table, results)
    in_fold = {s.participant: j.fold for j in every if not j.held_out_site for s in j.testing}
    write_cohort(output.cohort_table, found, {every[0].task: in_fold})
    about: dict[str, Any] = {
        "target": "diagnosis",
        "unit": "",
        "remarks": [],
        "training": [],
        "warnings": [],
    }
    about |= {"left_out": [dataclasses.asdict(entry) for entry in found.left_out]}
    write_json(folder / "about.json", about | {"leave_site_out": []})


def make_scores(scans: Any) -> list[list[float]]:
    """Made-up scores: right somewhat more often than not, the same for a scan every time."""
    rows = []
    for scan in scans:
        rng = np.random.default_rng((SEED, int(scan.participant), len(scan.scan)))
        first, second = rng.normal(size=2) + 0.5 * np.eye(2)[scan.label]
        rows.append([float(first), float(second)])
    return rows


def _results(rows: Any, entries: Any, job: Any, scheme: str, network: str) -> list[Any]:
    """Results of the network and, from noise of their own, of every simple model."""
    labels = job.labels
    scores = np.array([values for *_, values in entries])
    chosen = tuple(rows[scan] for scan, *_ in entries)
    truth = np.array([labels.index(row.label) for row in chosen])
    parts = np.array([fold for _, fold, _ in entries])
    rng = np.random.default_rng(SEED)
    results = []
    for name in (network, *baselines_for(chosen, "diagnosis")):
        noise = rng.normal(0, 1.5, scores.shape)
        seen = scores + noise
        if name == network or BASELINES[name].confound:
            seen = scores if name == network else noise
        chances, temperature = calibrate(seen, truth, parts)
        results.append(
            TaskResult(
                task=job.task, title=" v. ".join(labels),
                kind="network" if name == network else "baseline",
                model=name, scheme=scheme, labels=labels, rows=chosen, folds=parts,
                outputs=chances, temperature=temperature,
            )
        )  # fmt: skip
    return results
