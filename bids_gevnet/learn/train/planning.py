"""Decide which models a study needs, and write each as a training job.

`plan_study` looks at the cohort alone: for every task and network one model per fold, one per site
that can be left out, and a final one that is trained on everybody. `make_jobs` adds the scans of
the store to that, and with them everything that decides a model.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.folds import make_folds, number_strata
from bids_gevnet.learn.cohort.site_splits import SiteSplit, plan_sites
from bids_gevnet.learn.cohort.tasks import REGRESSION, Task, choose_tasks, slug
from bids_gevnet.learn.models.files import WEIGHTS, build_network, read_card
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions
from bids_gevnet.nn.registry import ALL, scan_networks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.layout import OutputLayout, WorkLayout
    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.models.files import ModelCard
    from bids_gevnet.settings import LearningSettings


@dataclass(frozen=True, kw_only=True)
class Split:
    """One partition of the cohort's scans into training and testing.

    Parameters
    ----------
    name : str
        Folder of the model: "fold-1", "leave-site-A", "final".
    fold : int or None
        From 1; None for the final model. Counts the sites where a site is held out.
    training, testing : tuples of int
        Which of the cohort's scans.
    site : str or None
        The site that is held out.
    """

    name: str
    fold: int | None
    training: tuple[int, ...]
    testing: tuple[int, ...] = ()
    site: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """One model to train."""

    task: Task
    network: str
    split: Split
    folder: Path
    """Relative to the folder of all models."""

    @property
    def node_name(self) -> str:
        """Name of its nodes in the workflow: letters, digits and underscores."""
        return "_".join("".join(c if c.isalnum() else "_" for c in p) for p in self.folder.parts)

    @property
    def title(self) -> str:
        """For people: task, network and split."""
        return f"{self.task.title}, {self.network}, {self.split.name}"


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Which models a study needs.

    Parameters
    ----------
    tasks : tuple of Task
    networks : tuple of str
    folds : mapping of task slug to (n_scans,) array
        Fold each of the cohort's scans is tested in; -1 if it is not in the task.
    sites : mapping of task slug to tuple of SiteSplit
        Every site of the task: left out, or why not.
    models : tuple of PlannedModel
    warnings : tuple of str
    """

    tasks: tuple[Task, ...]
    networks: tuple[str, ...]
    folds: dict[str, NDArray[np.intp]]
    sites: dict[str, tuple[SiteSplit, ...]]
    models: tuple[PlannedModel, ...]
    warnings: tuple[str, ...] = ()


def plan_study(cohort: Cohort, settings: LearningSettings, *, seed: int) -> StudyPlan:
    """Choose tasks, folds and left-out sites; what cannot be trained is said here.

    Parameters
    ----------
    cohort : Cohort
    settings : LearningSettings
    seed : int
        Decides the folds.
    """
    check_reference(cohort, settings.reference_site)
    networks = scan_networks() if settings.network == ALL else (settings.network,)
    for name in networks:
        # A wrong name, or a network that does not take the cohort's shells, ends here.
        build_network(
            name,
            1 if cohort.is_regression else 2,
            cohort.nside,
            settings.strides,
            shells=cohort.shells,
        )
    tasks, warnings = _choose_tasks(cohort, settings)
    if settings.init_model is not None:
        warnings = (*warnings, *_check_start(read_card(settings.init_model), settings, tasks))
    folds = {task.slug: _task_folds(cohort, task, settings.folds, seed) for task in tasks}
    sites = {
        task.slug: plan_sites(
            cohort.rows,
            None if task.is_regression else task.labels,
            wanted=settings.leave_site_out,
        )
        for task in tasks
    }
    models = tuple(
        PlannedModel(
            task=task,
            network=network,
            split=split,
            folder=Path(task.slug, *([network] if len(networks) > 1 else []), split.name),
        )
        for task in tasks
        for network in networks
        for split in (
            *_fold_splits(folds[task.slug]),
            *_site_splits(sites[task.slug]),
            _final_split(folds[task.slug]),
        )
    )
    return StudyPlan(
        tasks=tasks,
        networks=tuple(networks),
        folds=folds,
        sites=sites,
        models=models,
        warnings=warnings,
    )


def make_jobs(
    cohort: Cohort,
    plan: StudyPlan,
    folders: Sequence[Path],
    options: TrainOptions,
    *,
    output: OutputLayout,
    work: WorkLayout,
    init_model: Path | None = None,
) -> list[TrainJob]:
    """Write down each planned model as a job, in the order of the plan.

    Parameters
    ----------
    cohort : Cohort
    plan : StudyPlan
    folders : sequence of Path
        Where in the store each of the cohort's scans is.
    options : TrainOptions
        Those of all models; the network comes from the plan.
    output : OutputLayout
    work : WorkLayout
    init_model : Path, optional
        Folder of the model whose weights training starts from.
    """
    start: dict[str, Any] = {}
    if init_model is not None:
        start["init_dir"] = str(init_model)
        start["init_sha256"] = hash_file(init_model / WEIGHTS)
        start["init_labels"] = read_card(init_model).labels

    @cache  # models share the scans, so that many of them take no more memory than one
    def scan(index: int, task: Task) -> JobScan:
        row = cohort.rows[index]
        return JobScan(
            folder=str(folders[index]),
            participant=row.participant,
            session=row.session,
            scan=row.scan,
            label=task.output(row.label),
            value=row.number if task.is_regression else None,
            site=row.site,
            motion=row.motion,
            covariates=dict(row.covariates),
        )

    jobs = []
    for model in plan.models:
        split = model.split
        trained_at = {cohort.rows[i].site for i in split.training}
        # Where nobody is left to be brought to, the mean over sites stands in.
        reference = options.reference_site if options.reference_site in trained_at else None
        jobs.append(
            TrainJob(
                name=model.title,
                task=model.task.slug,
                fold=split.fold,
                labels=model.task.labels,
                kind=model.task.kind,
                unit=cohort.unit,
                nside=cohort.nside,
                shape=cohort.shape,
                voxel_mm=cohort.voxel_mm,
                affine=tuple(map(tuple, cohort.affine.tolist())),
                training=tuple(scan(i, model.task) for i in split.training),
                testing=tuple(scan(i, model.task) for i in split.testing),
                options=dataclasses.replace(
                    options, network=model.network, reference_site=reference
                ),
                model_dir=str(output.models / model.folder),
                work_dir=str(work.jobs / model.folder),
                dataset=cohort.dataset,
                held_out_site=split.site,
                b_values=cohort.b_values,
                **start,
            )
        )
    return jobs


def _choose_tasks(
    cohort: Cohort, settings: LearningSettings
) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    if cohort.is_regression:
        return (Task((cohort.target,), REGRESSION),), ()
    return choose_tasks(cohort.labels, settings.classes)


def _check_start(
    card: ModelCard, settings: LearningSettings, tasks: Sequence[Task]
) -> Iterator[str]:
    """Refuse a start from another network; say where its last layers are of no use."""
    if (card.network, card.strides) != (settings.network, settings.strides):
        strides = " ".join(map(str, card.strides))
        raise InputError(
            expected=f"the network of --init-model, {card.network} with strides {strides}",
            found=f"{settings.network} with strides {' '.join(map(str, settings.strides))}",
            remedy=f"give --network {card.network} --strides {strides}, or another --init-model",
        )
    others = [task.title for task in tasks if task.labels != card.labels]
    if others:
        yield (
            f"The last layers of --init-model, for {' v. '.join(card.labels)}, were not used for "
            f"{'; '.join(others)}: there they started anew."
        )


def check_reference(cohort: Cohort, reference: str | None) -> None:
    """Refuse a reference site that nobody was scanned at."""
    known = sorted({row.site for row in cohort.rows})
    if reference is not None and reference not in known:
        raise InputError(
            expected="a site of the cohort for --reference-site",
            found=repr(reference),
            remedy=f"give one of {', '.join(map(repr, known))}, or none for the mean of all sites",
        )


def _task_folds(cohort: Cohort, task: Task, folds: int, seed: int) -> NDArray[np.intp]:
    """Fold of each scan of the cohort, -1 for scans of other classes."""
    fold = np.full(len(cohort.rows), -1, dtype=np.intp)
    inside = [i for i, row in enumerate(cohort.rows) if task.includes(row.label)]
    rows = [cohort.rows[i] for i in inside]
    people = [row.participant for row in rows]
    strata = [row.label for row in rows]
    if task.is_regression:
        strata = number_strata(people, [row.number for row in rows], folds=folds)
    fold[inside] = make_folds(
        people,
        strata,
        [row.site for row in rows],
        folds=folds,
        seed=seed,
    )
    return fold


def _fold_splits(folds: NDArray[np.intp]) -> Iterator[Split]:
    for fold in range(int(folds.max()) + 1):
        training = np.flatnonzero((folds >= 0) & (folds != fold))
        testing = np.flatnonzero(folds == fold)
        yield Split(
            name=f"fold-{fold + 1}",
            fold=fold + 1,
            training=tuple(training.tolist()),
            testing=tuple(testing.tolist()),
        )


def _site_splits(sites: Sequence[SiteSplit]) -> Iterator[Split]:
    for number, split in enumerate(sites, start=1):
        if split.reason is None:
            yield Split(
                name=f"leave-site-{slug(split.site)}",
                fold=number,
                training=split.training,
                testing=split.testing,
                site=split.site,
            )


def _final_split(folds: NDArray[np.intp]) -> Split:
    inside = np.flatnonzero(folds >= 0)
    return Split(name="final", fold=None, training=tuple(inside.tolist()))
