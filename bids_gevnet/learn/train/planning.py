"""Plan the group level: cohort, store, folds, sites to leave out, and the jobs that follow.

For every task and network there is one job per fold, one per site that can be left out, and one
for the final model, which is trained on everybody.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.folds import make_folds
from bids_gevnet.learn.cohort.members import Cohort, read_cohort
from bids_gevnet.learn.cohort.scan_rows import dataset_name
from bids_gevnet.learn.cohort.site_splits import SiteSplit, plan_sites
from bids_gevnet.learn.cohort.store import StoredScan, store_scan
from bids_gevnet.learn.cohort.tasks import Task, choose_tasks, slug
from bids_gevnet.learn.models.files import build_network
from bids_gevnet.learn.train.distributed import device_count
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions, write_jobs
from bids_gevnet.learn.train.progress import track
from bids_gevnet.nn.registry import ALL, scan_networks
from bids_gevnet.settings import available_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.settings import ExecutionSettings, LearningSettings


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """What is to be trained, and what is needed to make sense of it afterwards.

    Parameters
    ----------
    cohort : Cohort
    stored : tuple of StoredScan
        Of each of the cohort's scans.
    tasks : tuple of Task
    networks : tuple of str
    folds : mapping of task slug to (n_scans,) array
        Fold each of the cohort's scans is tested in; -1 if it is not in the task.
    sites : mapping of task slug to tuple of SiteSplit
        Every site of the task: left out, or why not.
    jobs : tuple of TrainJob
    jobs_file : Path
    processes, threads : int
    gpu : bool
    seed : int
    reference_site : str or None
        Site that harmonisation was asked to bring the others to.
    warnings : tuple of str
    """

    cohort: Cohort
    stored: tuple[StoredScan, ...]
    tasks: tuple[Task, ...]
    networks: tuple[str, ...]
    folds: dict[str, NDArray[np.intp]]
    sites: dict[str, tuple[SiteSplit, ...]]
    jobs: tuple[TrainJob, ...]
    jobs_file: Path
    processes: int
    threads: int
    gpu: bool
    seed: int
    reference_site: str | None = None
    warnings: tuple[str, ...] = ()


def prepare_group(
    output_dir: Path,
    bids_dir: Path,
    settings: LearningSettings,
    execution: ExecutionSettings,
    *,
    participants: Sequence[str] = (),
    options: TrainOptions | None = None,
) -> GroupPlan:
    """Read the cohort, fill the store and write the jobs; see `evaluate.collection`."""
    cohort = read_cohort(
        output_dir,
        bids_dir,
        target=settings.target,
        site=settings.site,
        covariates=settings.covariates,
        folds=settings.folds,
        participants=participants,
    )
    check_reference(cohort, settings.reference_site)
    networks = scan_networks() if settings.network == ALL else (settings.network,)
    for name in networks:
        build_network(
            name, 2, cohort.nside, settings.strides
        )  # a wrong name ends here, not after an hour
    work = (execution.work_dir or output_dir / "work") / "group"
    stored = _fill_store(cohort, work / "store")
    tasks, warnings = choose_tasks(cohort.labels, settings.classes)
    chosen = TrainOptions.from_settings(settings, execution, start=options)
    factory = _JobFactory(cohort, stored, output_dir, work, dataset_name(bids_dir))
    folds: dict[str, NDArray[np.intp]] = {}
    sites: dict[str, tuple[SiteSplit, ...]] = {}
    jobs: list[TrainJob] = []
    for task in tasks:
        folds[task.slug] = _task_folds(cohort, task, settings.folds, execution.random_seed)
        sites[task.slug] = plan_sites(cohort.rows, task.labels, wanted=settings.leave_site_out)
        for name in networks:
            own = dataclasses.replace(chosen, network=name)
            splits = [*_fold_splits(folds[task.slug]), *_site_splits(sites[task.slug])]
            splits.append(_final_split(folds[task.slug]))
            jobs += factory.jobs(task, splits, own, several=len(networks) > 1)
    _remove_stale(jobs)
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
        stored=tuple(stored),
        tasks=tasks,
        networks=tuple(networks),
        folds=folds,
        sites=sites,
        jobs=tuple(jobs),
        jobs_file=work / "jobs.json",
        processes=processes,
        threads=threads,
        gpu=gpu,
        seed=execution.random_seed,
        reference_site=settings.reference_site,
        warnings=warnings,
    )


def _remove_stale(jobs: Sequence[TrainJob]) -> None:
    """Remove models of folds and sites that an earlier run had and this one has not.

    A report reads all of a task's models: those of another split would pass for this one's.
    """
    wanted = {Path(job.model_dir) for job in jobs}
    for parent in {folder.parent for folder in wanted}:
        for pattern in ("fold-*", "leave-site-*"):
            for folder in set(parent.glob(pattern)) - wanted:
                shutil.rmtree(folder, ignore_errors=True)


def check_reference(cohort: Cohort, reference: str | None) -> None:
    """Refuse a reference site that nobody was scanned at."""
    known = sorted({row.site for row in cohort.rows})
    if reference is not None and reference not in known:
        raise InputError(
            expected="a site of the cohort for --reference-site",
            found=repr(reference),
            remedy=f"give one of {', '.join(map(repr, known))}, or none for the mean of all sites",
        )


def _fill_store(cohort: Cohort, store: Path) -> list[StoredScan]:
    return [
        store_scan(store, row.image, row.mask, nside=cohort.nside, voxel_mm=cohort.voxel_mm)
        for row in track(cohort.rows, "Reading scans", len(cohort.rows))
    ]


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


@dataclass(frozen=True, kw_only=True)
class _Split:
    """One partition of the cohort's scans into training and testing."""

    name: str
    fold: int | None
    training: tuple[int, ...]
    testing: tuple[int, ...] = ()
    site: str | None = None


def _fold_splits(folds: NDArray[np.intp]) -> Iterator[_Split]:
    for fold in range(int(folds.max()) + 1):
        training = np.flatnonzero((folds >= 0) & (folds != fold))
        testing = np.flatnonzero(folds == fold)
        yield _Split(
            name=f"fold-{fold + 1}",
            fold=fold + 1,
            training=tuple(training.tolist()),
            testing=tuple(testing.tolist()),
        )


def _site_splits(sites: Sequence[SiteSplit]) -> Iterator[_Split]:
    for number, split in enumerate(sites, start=1):
        if split.reason is None:
            yield _Split(
                name=f"leave-site-{slug(split.site)}",
                fold=number,
                training=split.training,
                testing=split.testing,
                site=split.site,
            )


def _final_split(folds: NDArray[np.intp]) -> _Split:
    inside = np.flatnonzero(folds >= 0)
    return _Split(name="final", fold=None, training=tuple(inside.tolist()))


@dataclass(frozen=True)
class _JobFactory:
    """Makes the jobs of one task and network."""

    cohort: Cohort
    stored: Sequence[StoredScan]
    output_dir: Path
    work: Path
    dataset: str

    def jobs(
        self, task: Task, splits: Sequence[_Split], options: TrainOptions, *, several: bool
    ) -> list[TrainJob]:
        place = Path(task.slug) / options.network if several else Path(task.slug)
        return [self._job(task, split, options, place / split.name) for split in splits]

    def _job(self, task: Task, split: _Split, options: TrainOptions, folder: Path) -> TrainJob:
        trained_at = {self.cohort.rows[i].site for i in split.training}
        if options.reference_site not in trained_at:
            # Nobody to be brought to: the mean over sites stands in.
            options = dataclasses.replace(options, reference_site=None)
        return TrainJob(
            name=f"{task.title}, {options.network}, {split.name}",
            task=task.slug,
            fold=split.fold,
            labels=task.labels,
            nside=self.cohort.nside,
            shape=self.cohort.shape,
            voxel_mm=self.cohort.voxel_mm,
            affine=tuple(map(tuple, self.cohort.affine.tolist())),
            training=tuple(self._scan(i, task) for i in split.training),
            testing=tuple(self._scan(i, task) for i in split.testing),
            options=options,
            model_dir=str(self.output_dir / "models" / folder),
            work_dir=str(self.work / "jobs" / folder),
            dataset=self.dataset,
            held_out_site=split.site,
        )

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
