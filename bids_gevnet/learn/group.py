"""The group level from derivatives to models and held-out predictions.

`prepare_group` reads the cohort, fills the store, makes folds and writes the training jobs;
`bids_gevnet.learn.launch.train` trains them (or torchrun or srun on several nodes, with the file
of jobs); `collect_group` turns what they left into tables and calibrated final models.
`run_group` does all three.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.cohort import Cohort, read_cohort, write_cohort
from bids_gevnet.learn.distributed import device_count
from bids_gevnet.learn.folds import make_folds
from bids_gevnet.learn.jobs import JobScan, TrainJob, TrainOptions, write_jobs
from bids_gevnet.learn.launch import train
from bids_gevnet.learn.model_files import NETWORKS, build_network, read_card, write_card
from bids_gevnet.learn.outcome import read_held_out
from bids_gevnet.learn.progress import log, track
from bids_gevnet.learn.results import TaskResult, calibrate, write_metrics, write_predictions
from bids_gevnet.learn.scan_facts import dataset_name
from bids_gevnet.learn.store import StoredScan, store_scan
from bids_gevnet.learn.tasks import Task, make_tasks
from bids_gevnet.settings import available_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.settings import ExecutionSettings, LearningSettings

_PAIRED_CLASSES = 5
"""With more classes than this, all at once: the number of pairs grows with the square."""


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """What is to be trained, and what is needed to make sense of it afterwards.

    Parameters
    ----------
    cohort : Cohort
    tasks : tuple of Task
    networks : tuple of str
    folds : mapping of task slug to (n_scans,) array
        Fold each of the cohort's scans is tested in; -1 if it is not in the task.
    jobs : tuple of TrainJob
    jobs_file : Path
    processes, threads : int
    gpu : bool
    """

    cohort: Cohort
    tasks: tuple[Task, ...]
    networks: tuple[str, ...]
    folds: dict[str, NDArray[np.intp]]
    jobs: tuple[TrainJob, ...]
    jobs_file: Path
    processes: int
    threads: int
    gpu: bool


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """What the group level wrote.

    Parameters
    ----------
    cohort : Cohort
    cohort_tsv, predictions_tsv, metrics_json : Path
    metrics : dict
        Content of metrics_json.
    models : tuple of Path
        Folders of the final models.
    results : tuple of TaskResult
    warnings : tuple of str
        For the terminal and the report.
    """

    cohort: Cohort
    cohort_tsv: Path
    predictions_tsv: Path
    metrics_json: Path
    metrics: dict[str, Any]
    models: tuple[Path, ...]
    results: tuple[TaskResult, ...]
    warnings: tuple[str, ...] = field(default=())


def run_group(
    output_dir: Path,
    bids_dir: Path,
    settings: LearningSettings,
    execution: ExecutionSettings,
    *,
    participants: Sequence[str] = (),
    options: TrainOptions | None = None,
) -> GroupResult:
    """Train and test on all participants of a study.

    Parameters
    ----------
    output_dir : Path
        Where the participant level wrote to; models and tables are added.
    bids_dir : Path
    settings : LearningSettings
    execution : ExecutionSettings
    participants : sequence of str
        Only these, if any are given.
    options : TrainOptions, optional
        Batch size, learning rate and the like; what `settings` has comes from there.
    """
    plan = prepare_group(
        output_dir, bids_dir, settings, execution, participants=participants, options=options
    )
    train(plan.jobs_file, processes=plan.processes, gpu=plan.gpu, threads=plan.threads)
    return collect_group(output_dir, plan)


def prepare_group(
    output_dir: Path,
    bids_dir: Path,
    settings: LearningSettings,
    execution: ExecutionSettings,
    *,
    participants: Sequence[str] = (),
    options: TrainOptions | None = None,
) -> GroupPlan:
    """Read the cohort, fill the store and write the jobs; see `run_group`."""
    cohort = read_cohort(
        output_dir,
        bids_dir,
        target=settings.target,
        site=settings.site,
        covariates=settings.covariates,
        folds=settings.folds,
        participants=participants,
    )
    networks = NETWORKS if settings.network == "all" else (settings.network,)
    for name in networks:
        build_network(name, 2, cohort.nside)  # a wrong name ends here, not after an hour
    work = (execution.work_dir or output_dir / "work") / "group"
    stored = _fill_store(cohort, work / "store")
    tasks = make_tasks(cohort.labels, pairs=len(cohort.labels) <= _PAIRED_CLASSES)
    chosen = _options(settings, execution, options)
    factory = _JobFactory(cohort, stored, output_dir, work, dataset_name(bids_dir))
    folds: dict[str, NDArray[np.intp]] = {}
    jobs: list[TrainJob] = []
    for task in tasks:
        folds[task.slug] = _task_folds(cohort, task, settings.folds, execution.random_seed)
        for name in networks:
            own = dataclasses.replace(chosen, network=name)
            jobs += factory.jobs(task, folds[task.slug], own, several=len(networks) > 1)
    if not settings.resume:
        for job in jobs:
            shutil.rmtree(job.model_dir, ignore_errors=True)
            shutil.rmtree(job.work_dir, ignore_errors=True)
    cpus = execution.processes
    processes, gpu = device_count(settings.devices, cpus=min(cpus, chosen.batch_size))
    threads = max(1, min(available_cpus(), cpus) // processes)
    write_jobs(work / "jobs.json", jobs, threads=threads)
    return GroupPlan(
        cohort=cohort,
        tasks=tasks,
        networks=tuple(networks),
        folds=folds,
        jobs=tuple(jobs),
        jobs_file=work / "jobs.json",
        processes=processes,
        threads=threads,
        gpu=gpu,
    )


def collect_group(output_dir: Path, plan: GroupPlan) -> GroupResult:
    """Write tables and metrics from what training left, and calibrate the final models."""
    results, models, warnings = [], [], list(plan.cohort.warnings)
    for task in plan.tasks:
        for network in plan.networks:
            own = [
                job
                for job in plan.jobs
                if job.task == task.slug and job.options.network == network
            ]
            result = _task_result(plan, task, network, own)
            results.append(result)
            final = next(Path(job.model_dir) for job in own if job.fold is None)
            card = read_card(final)
            write_card(final, dataclasses.replace(card, temperature=result.temperature))
            models.append(final)
            warnings += [f"{task.title}: {text}" for text in card.warnings]
    warnings = list(dict.fromkeys(warnings))
    for text in warnings:
        log.warning("%s", text)
    by_person = {
        task: {
            row.participant: int(fold) + 1
            for row, fold in zip(plan.cohort.rows, fold_of, strict=True)
            if fold >= 0
        }
        for task, fold_of in plan.folds.items()
    }
    write_cohort(output_dir / "group_cohort.tsv", plan.cohort, by_person)
    write_predictions(output_dir / "group_predictions.tsv", results)
    about = {"target": plan.cohort.target, "warnings": warnings}
    content = write_metrics(output_dir / "group_metrics.json", results, about)
    return GroupResult(
        cohort=plan.cohort,
        cohort_tsv=output_dir / "group_cohort.tsv",
        predictions_tsv=output_dir / "group_predictions.tsv",
        metrics_json=output_dir / "group_metrics.json",
        metrics=content,
        models=tuple(models),
        results=tuple(results),
        warnings=tuple(warnings),
    )


def _fill_store(cohort: Cohort, store: Path) -> list[StoredScan]:
    return [
        store_scan(store, row.image, row.mask, nside=cohort.nside, voxel_mm=cohort.voxel_mm)
        for row in track(cohort.rows, "Reading scans", len(cohort.rows))
    ]


def _options(
    settings: LearningSettings, execution: ExecutionSettings, options: TrainOptions | None
) -> TrainOptions:
    return dataclasses.replace(
        options or TrainOptions(),
        epochs=settings.epochs,
        samples_per_class=settings.samples_per_class,
        seed=execution.random_seed,
        precision=settings.precision,
        harmonise=settings.harmonisation == "rish",
    )


def _task_folds(cohort: Cohort, task: Task, folds: int, seed: int) -> NDArray[np.intp]:
    """Fold of each scan of the cohort, -1 for scans of other classes."""
    fold = np.full(len(cohort.rows), -1, dtype=np.intp)
    inside = [i for i, row in enumerate(cohort.rows) if row.label in task.labels]
    rows = [cohort.rows[i] for i in inside]
    fold[inside] = make_folds(
        [row.participant for row in rows],
        [row.label for row in rows],
        [row.site for row in rows],
        folds=folds,
        seed=seed,
    )
    return fold


@dataclass(frozen=True)
class _JobFactory:
    """Makes the jobs of one task and network: every fold, then the final model."""

    cohort: Cohort
    stored: Sequence[StoredScan]
    output_dir: Path
    work: Path
    dataset: str

    def jobs(
        self, task: Task, folds: NDArray[np.intp], options: TrainOptions, *, several: bool
    ) -> list[TrainJob]:
        place = Path(task.slug) / options.network if several else Path(task.slug)
        count = int(folds.max()) + 1
        jobs = []
        for fold in [*range(count), None]:
            name = "final" if fold is None else f"fold-{fold + 1}"
            folder = place / name
            inside = np.flatnonzero(folds >= 0)
            testing = [i for i in inside if fold is not None and folds[i] == fold]
            training = [i for i in inside if fold is None or folds[i] != fold]
            jobs.append(
                TrainJob(
                    name=f"{task.title}, {options.network}, {name}",
                    task=task.slug,
                    fold=None if fold is None else fold + 1,
                    labels=task.labels,
                    nside=self.cohort.nside,
                    shape=self.cohort.shape,
                    voxel_mm=self.cohort.voxel_mm,
                    affine=tuple(map(tuple, self.cohort.affine.tolist())),
                    training=tuple(self._scan(i, task) for i in training),
                    testing=tuple(self._scan(i, task) for i in testing),
                    options=options,
                    model_dir=str(self.output_dir / "models" / folder),
                    work_dir=str(self.work / "jobs" / folder),
                    dataset=self.dataset,
                )
            )
        return jobs

    def _scan(self, index: int, task: Task) -> JobScan:
        row = self.cohort.rows[index]
        return JobScan(
            folder=str(self.stored[index].folder),
            participant=row.participant,
            session=row.session,
            scan=row.scan,
            label=task.labels.index(row.label),
            site=row.site,
            motion=row.motion,
            covariates=dict(row.covariates),
        )


def _task_result(
    plan: GroupPlan, task: Task, network: str, jobs: Sequence[TrainJob]
) -> TaskResult:
    """Held-out scores of all folds, calibrated."""
    rows = {row.scan: row for row in plan.cohort.rows}
    scans, folds, scores = [], [], []
    for job in jobs:
        if job.fold is None:
            continue
        for scan, values in read_held_out(Path(job.model_dir)).items():
            scans.append(rows[scan])
            folds.append(job.fold)
            scores.append(values)
    order = sorted(range(len(scans)), key=lambda i: scans[i].scan)
    truth = np.array([task.labels.index(scans[i].label) for i in order])
    fold = np.array([folds[i] for i in order])
    probabilities, temperature = calibrate(np.array([scores[i] for i in order]), truth, fold)
    return TaskResult(
        task=task.slug,
        title=task.title,
        network=network,
        labels=task.labels,
        rows=tuple(scans[i] for i in order),
        folds=fold,
        probabilities=probabilities,
        temperature=temperature,
    )
