"""Gather what every model said about the people it never saw, and calibrate the final models.

Models and baselines are tested on the same folds and left-out sites. Scores of a network become
probabilities with a temperature fitted to the other folds; the final model gets that of all folds.
Where a number is predicted, scores are turned into it by mean and standard deviation of the job's
training scans, and the final model learns how far those of the folds were off.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bids_gevnet.learn.cohort.members import Cohort, write_cohort
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.evaluate.baselines import (
    BASELINES,
    baselines_for,
    fit_predict,
    read_gains,
    rish_table,
    scan_table,
)
from bids_gevnet.learn.evaluate.confound_warnings import Fact, merge_facts
from bids_gevnet.learn.evaluate.predictions_table import TaskResult, calibrate, write_predictions
from bids_gevnet.learn.evaluate.scoring import ADAPTED
from bids_gevnet.learn.evaluate.voxel_maps import read_voxel_maps
from bids_gevnet.learn.evaluate.voxelwise import predict_from_maps
from bids_gevnet.learn.models.files import read_card, write_card
from bids_gevnet.learn.train.outputs import read_adaptation, read_held_out
from bids_gevnet.learn.train.progress import track

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.layout import OutputLayout
    from bids_gevnet.learn.cohort.scan_rows import ScanRow
    from bids_gevnet.learn.cohort.tasks import Task
    from bids_gevnet.learn.models.files import ModelCard
    from bids_gevnet.learn.train.jobs import TrainJob
    from bids_gevnet.learn.train.planning import StudyPlan


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Held-out results of a study.

    Parameters
    ----------
    results : tuple of TaskResult
    models : tuple of Path
        Folders of the final models.
    about : dict
        What the metrics say of the training beside their figures: target, who is left out and
        why, models, left-out sites, warnings.
    """

    results: tuple[TaskResult, ...]
    models: tuple[Path, ...]
    about: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What is collected from: the cohort, its plan and the jobs that were trained."""

    cohort: Cohort
    plan: StudyPlan
    jobs: Sequence[TrainJob]

    def jobs_of(self, task: Task, network: str) -> list[TrainJob]:
        """Jobs of one task and network, in the order of the plan."""
        chosen = (task.slug, network)
        return [job for job in self.jobs if (job.task, job.options.network) == chosen]


def collect_predictions(
    study: Study, output: OutputLayout, *, reference_site: str | None
) -> Collected:
    """Write the tables of cohort and predictions, and calibrate the final models.

    A study may come without the jobs of final models, where only the held-out results matter.

    Parameters
    ----------
    study : Study
    output : OutputLayout
    reference_site : str or None
        Site that harmonisation was asked to bring the others to.
    """
    remove_stale_models(study.jobs)
    results: list[TaskResult] = []
    models: list[Path] = []
    training: list[dict[str, Any]] = []
    facts: list[Fact] = []
    for task in study.plan.tasks:
        for network in study.plan.networks:
            jobs = study.jobs_of(task, network)
            of_network = list(_network_results(study.cohort, task, network, jobs))
            results += of_network
            final = next((Path(job.model_dir) for job in jobs if job.fold is None), None)
            if final is None:
                continue
            write_card(final, _with_experience(read_card(final), of_network[0]))
            models.append(final)
            training.append(_training_facts(output.root, task, network, final))
            facts += _model_facts(task, final, reference_site)
        results += _baseline_results(
            study.cohort, task, study.jobs_of(task, study.plan.networks[0])
        )
    write_cohort(output.cohort_table, study.cohort, _folds_by_person(study))
    write_predictions(output.predictions_table, results)
    about = {
        "target": study.cohort.target,
        "unit": study.cohort.unit,
        "remarks": list(study.cohort.remarks),
        "left_out": [dataclasses.asdict(entry) for entry in study.cohort.left_out],
        "training": training,
        "leave_site_out": [
            {"task": task, "site": split.site, "run": not split.reason, "reason": split.reason}
            for task, splits in study.plan.sites.items()
            for split in splits
        ],
        "warnings": [
            *study.cohort.warnings,
            *study.plan.warnings,
            *merge_facts(facts, len(study.plan.tasks)),
        ],
    }
    adapted = [
        {
            "task": job.task,
            "site": job.held_out_site,
            "what": read_adaptation(Path(job.model_dir)),
        }
        for job in study.jobs
        if job.tests_adapted
    ]
    if adapted:
        about["adapted"] = adapted
    return Collected(results=tuple(results), models=tuple(models), about=about)


def _with_experience(card: ModelCard, folds: TaskResult) -> ModelCard:
    """Add what the models of the folds teach about the final one."""
    if folds.is_regression:
        errors = np.abs(folds.outputs[:, 0] - np.array([row.number for row in folds.rows]))
        return dataclasses.replace(card, typical_error=float(errors.mean()))
    return dataclasses.replace(card, temperature=folds.temperature or 1.0)


def remove_stale_models(jobs: Sequence[TrainJob]) -> None:
    """Remove models of folds and sites that an earlier run had and this one does not.

    A report reads all of a task's models: those of another split would pass for this one's.
    """
    wanted = {Path(job.model_dir) for job in jobs}
    for parent in {folder.parent for folder in wanted}:
        for pattern in ("fold-*", "leave-site-*"):
            for folder in set(parent.glob(pattern)) - wanted:
                shutil.rmtree(folder, ignore_errors=True)


def _model_facts(task: Task, final: Path, reference_site: str | None) -> Iterator[Fact]:
    for text in read_card(final).warnings:
        yield Fact(text, task.title)
    gains = read_gains(final)
    if reference_site != (gains.reference if gains is not None else None):
        yield Fact(f"Sites were brought to their mean, not to {reference_site}.", task.title)


def _training_facts(output_dir: Path, task: Task, network: str, final: Path) -> dict[str, Any]:
    card, gains = read_card(final), read_gains(final)
    return {
        "task": task.slug,
        "network": network,
        "temperature": card.temperature,
        "harmonised": card.harmonised,
        "reference_site": gains.reference if gains is not None else None,
        "model": str(final.relative_to(output_dir)),
    }


def _folds_by_person(study: Study) -> dict[str, dict[str, int]]:
    return {
        task: {
            row.participant: int(fold) + 1
            for row, fold in zip(study.cohort.rows, fold_of, strict=True)
            if fold >= 0
        }
        for task, fold_of in study.plan.folds.items()
    }


def _by_scheme(jobs: Sequence[TrainJob]) -> Iterator[tuple[str, list[TrainJob]]]:
    """Jobs that hold scans out: those of folds, then those of sites."""
    tested = [job for job in jobs if job.fold is not None]
    for scheme, by_site in (("folds", False), ("leave-site-out", True)):
        chosen = [job for job in tested if (job.held_out_site is not None) == by_site]
        if chosen:
            yield scheme, chosen


def _network_results(
    cohort: Cohort, task: Task, network: str, jobs: Sequence[TrainJob]
) -> Iterator[TaskResult]:
    """Held-out scores of all folds, calibrated; then those of all sites."""
    rows = {row.scan: row for row in cohort.rows}
    for scheme, chosen in _by_scheme(jobs):
        entries = sorted(
            (scan, job.fold, _outputs(job, values))
            for job in chosen
            for scan, values in read_held_out(Path(job.model_dir)).items()
        )
        scores = _held_out(task, ("network", network, scheme), rows, entries)
        yield _calibrated(task, scores)
    adapted = sorted(
        (scan, job.fold, _outputs(job, values))
        for job in jobs
        if job.tests_adapted
        for scan, values in read_held_out(Path(job.model_dir), adapted=True).items()
    )
    if adapted:
        scores = _held_out(task, ("network", network, ADAPTED), rows, adapted)
        yield dataclasses.replace(_calibrated(task, scores), temperature=None)


def _calibrated(task: Task, scores: TaskResult) -> TaskResult:
    """Turn scores of classes into probabilities; numbers stay numbers."""
    if task.is_regression:
        return scores
    probabilities, temperature = calibrate(scores.outputs, scores.truth, scores.folds)
    return dataclasses.replace(scores, outputs=probabilities, temperature=temperature)


def _outputs(job: TrainJob, scores: list[float]) -> list[float]:
    """Turn standardised numbers into numbers; scores of classes stay scores."""
    if not job.is_regression:
        return scores
    mean, spread = job.scale
    return [mean + spread * score for score in scores]


def _baseline_results(
    cohort: Cohort, task: Task, jobs: Sequence[TrainJob]
) -> Iterator[TaskResult]:
    """Every baseline on the same folds and sites, fitted to the same training scans."""
    rows = {row.scan: row for row in cohort.rows}
    number = {row.scan: i for i, row in enumerate(cohort.rows)}
    facts, baselines = scan_table(cohort.rows), baselines_for(cohort.rows, cohort.target)
    if task.is_regression:
        truth = np.array([row.number for row in cohort.rows])
    else:
        inside = [(row.label, task.includes(row.label)) for row in cohort.rows]
        truth = np.array([task.output(label) if there else -1 for label, there in inside])
    classes = None if task.is_regression else len(task.labels)
    for scheme, chosen in _by_scheme(jobs):
        entries: dict[str, list[tuple[str, int | None, Any]]] = {}
        for job in track(chosen, "Simple models", len(chosen)):
            training = [number[scan.scan] for scan in job.training]
            testing = [number[scan.scan] for scan in job.testing]
            gains = read_gains(Path(job.model_dir))
            table = _add_rish(job, gains, facts, [*training, *testing])
            scans = [scan.scan for scan in job.testing]
            chances = {
                name: fit_predict(baseline, table, truth, training, testing, classes)
                for name, baseline in baselines.items()
                if not baseline.maps
            }
            chances |= _voxelwise_outputs(job, gains, combat=len(set(facts["site"])) > 1)
            for name, values in chances.items():
                entries.setdefault(name, []).extend(
                    (s, job.fold, p) for s, p in zip(scans, values.tolist(), strict=True)
                )
        for name, of_baseline in entries.items():
            yield _held_out(task, ("baseline", name, scheme), rows, sorted(of_baseline))


def _voxelwise_outputs(
    job: TrainJob, gains: RishGains | None, *, combat: bool
) -> dict[str, NDArray[np.float64]]:
    """Predict by each voxelwise model; by ComBat only where there are several sites."""
    maps = read_voxel_maps(job, gains)
    return {
        name: predict_from_maps(
            (maps.raw if baseline.combat else maps.harmonised)[baseline.maps],
            job.training,
            job.testing,
            labels=job.labels,
            combat=baseline.combat,
        )
        for name, baseline in BASELINES.items()
        if baseline.maps and (combat or not baseline.combat)
    }


def _held_out(
    task: Task,
    origin: tuple[str, str, str],
    rows: Mapping[str, ScanRow],
    entries: Sequence[tuple[str, int | None, Any]],
) -> TaskResult:
    """Put held-out values together.

    Parameters
    ----------
    task : Task
    origin : (str, str, str)
        Kind of model, its name and the scheme.
    rows : mapping
        Scan to its row of the cohort.
    entries : sequence of (str, int, sequence of float)
        Scan, fold and a number per output.
    """
    kind, model, scheme = origin
    return TaskResult(
        task=task.slug,
        title=task.title,
        kind=kind,
        model=model,
        scheme=scheme,
        labels=task.labels,
        rows=tuple(rows[scan] for scan, _, _ in entries),
        folds=np.array([fold for _, fold, _ in entries], dtype=np.intp),
        outputs=np.array([values for _, _, values in entries]),
        is_regression=task.is_regression,
    )


def _add_rish(
    job: TrainJob, gains: RishGains | None, facts: pd.DataFrame, numbers: list[int]
) -> pd.DataFrame:
    """Facts of all scans with RISH features of the job's, harmonised as in its model.

    Parameters
    ----------
    job : TrainJob
    gains : RishGains or None
        Of its model.
    facts : DataFrame
        One row per scan of the cohort.
    numbers : list of int
        Rows of the job's training and test scans, in this order.
    """
    scans = [*job.training, *job.testing]
    stored = [StoredScan(Path(scan.folder)) for scan in scans]
    features = rish_table(stored, [scan.site for scan in scans], gains)
    return facts.join(features.set_index(pd.Index(numbers)))
