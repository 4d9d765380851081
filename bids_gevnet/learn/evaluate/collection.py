"""The group level from derivatives to models and held-out predictions.

`prepare_group` reads the cohort, fills the store, makes folds and writes the training jobs;
`learn.train.torchrun.train` trains them (or torchrun or srun on several nodes, with the file of
jobs); `collect_group` turns what they left into tables and calibrated final models.
`run_group` does all three.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bids_gevnet.learn.cohort.members import Cohort, write_cohort
from bids_gevnet.learn.evaluate.baselines import (
    BASELINES,
    fit_predict,
    read_gains,
    rish_table,
    scan_table,
)
from bids_gevnet.learn.evaluate.predictions_table import (
    TaskResult,
    calibrate,
    write_metrics,
    write_predictions,
)
from bids_gevnet.learn.models.files import read_card, write_card
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.learn.train.planning import GroupPlan, prepare_group
from bids_gevnet.learn.train.progress import log, track
from bids_gevnet.learn.train.torchrun import train

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bids_gevnet.learn.cohort.scan_rows import ScanRow
    from bids_gevnet.learn.cohort.tasks import Task
    from bids_gevnet.learn.train.jobs import TrainJob, TrainOptions
    from bids_gevnet.settings import ExecutionSettings, LearningSettings

__all__ = ["GroupPlan", "GroupResult", "collect_group", "prepare_group", "run_group"]


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
        Weight decay and the like; what `settings` has comes from there.
    """
    plan = prepare_group(
        output_dir, bids_dir, settings, execution, participants=participants, options=options
    )
    train(plan.jobs_file, processes=plan.processes, gpu=plan.gpu, threads=plan.threads)
    return collect_group(output_dir, plan)


def collect_group(output_dir: Path, plan: GroupPlan) -> GroupResult:
    """Write tables and metrics from what training left, and calibrate the final models.

    A plan may come without the jobs of final models, where only the held-out results matter.
    """
    results: list[TaskResult] = []
    models: list[Path] = []
    warnings = [*plan.cohort.warnings, *plan.warnings]
    training = []
    for task in plan.tasks:
        for network in plan.networks:
            jobs = _jobs_of(plan, task, network)
            own = list(_network_results(plan, task, network, jobs))
            results += own
            final = next((Path(job.model_dir) for job in jobs if job.fold is None), None)
            if final is None:
                continue
            card = read_card(final)
            temperature = own[0].temperature or 1.0
            write_card(final, dataclasses.replace(card, temperature=temperature))
            models.append(final)
            warnings += [f"{task.title}: {text}" for text in card.warnings]
            training.append(_training_facts(output_dir, task, network, final))
            if plan.reference_site != training[-1]["reference_site"]:
                warnings.append(
                    f"{task.title}: sites were brought to their mean, not to "
                    f"{plan.reference_site}."
                )
        results += _baseline_results(plan, task, _jobs_of(plan, task, plan.networks[0]))
    paths = {
        name: output_dir / f"group_{name}"
        for name in ("cohort.tsv", "predictions.tsv", "metrics.json")
    }
    write_cohort(paths["cohort.tsv"], plan.cohort, _folds_by_person(plan))
    write_predictions(paths["predictions.tsv"], results)
    about = {
        "target": plan.cohort.target,
        "training": training,
        "leave_site_out": [
            {"task": task, "site": split.site, "run": not split.reason, "reason": split.reason}
            for task, splits in plan.sites.items()
            for split in splits
        ],
        "warnings": warnings,
    }
    content = write_metrics(paths["metrics.json"], paths["predictions.tsv"], about, seed=plan.seed)
    for text in content["warnings"]:
        log.info("%s", text)  # the terminal shows them with the results
    return GroupResult(
        cohort=plan.cohort,
        cohort_tsv=paths["cohort.tsv"],
        predictions_tsv=paths["predictions.tsv"],
        metrics_json=paths["metrics.json"],
        metrics=content,
        models=tuple(models),
        results=tuple(results),
        warnings=tuple(content["warnings"]),
    )


def _jobs_of(plan: GroupPlan, task: Task, network: str) -> list[TrainJob]:
    return [job for job in plan.jobs if job.task == task.slug and job.options.network == network]


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


def _folds_by_person(plan: GroupPlan) -> dict[str, dict[str, int]]:
    return {
        task: {
            row.participant: int(fold) + 1
            for row, fold in zip(plan.cohort.rows, fold_of, strict=True)
            if fold >= 0
        }
        for task, fold_of in plan.folds.items()
    }


def _by_scheme(jobs: Sequence[TrainJob]) -> Iterator[tuple[str, list[TrainJob]]]:
    """Jobs that hold scans out: those of folds, then those of sites."""
    tested = [job for job in jobs if job.fold is not None]
    for scheme, by_site in (("folds", False), ("leave-site-out", True)):
        own = [job for job in tested if (job.held_out_site is not None) == by_site]
        if own:
            yield scheme, own


def _network_results(
    plan: GroupPlan, task: Task, network: str, jobs: Sequence[TrainJob]
) -> Iterator[TaskResult]:
    """Held-out scores of all folds, calibrated; then those of all sites."""
    rows = {row.scan: row for row in plan.cohort.rows}
    for scheme, own in _by_scheme(jobs):
        found = sorted(
            (scan, job.fold, values)
            for job in own
            for scan, values in read_held_out(Path(job.model_dir)).items()
        )
        scores = _held_out(task, ("network", network, scheme), rows, found)
        probabilities, temperature = calibrate(scores.probabilities, scores.truth, scores.folds)
        yield dataclasses.replace(scores, probabilities=probabilities, temperature=temperature)


def _baseline_results(
    plan: GroupPlan, task: Task, jobs: Sequence[TrainJob]
) -> Iterator[TaskResult]:
    """Every baseline on the same folds and sites, fitted to the same training scans."""
    rows = {row.scan: row for row in plan.cohort.rows}
    number = {row.scan: i for i, row in enumerate(plan.cohort.rows)}
    facts = scan_table(plan.cohort.rows)
    truth = np.array(
        [task.labels.index(r.label) if r.label in task.labels else -1 for r in plan.cohort.rows]
    )
    for scheme, own in _by_scheme(jobs):
        found: dict[str, list[tuple[str, int | None, Any]]] = {name: [] for name in BASELINES}
        for job in track(own, "Baselines", len(own)):
            training = [number[scan.scan] for scan in job.training]
            testing = [number[scan.scan] for scan in job.testing]
            table = _add_rish(plan, facts, [*training, *testing], Path(job.model_dir))
            for name, baseline in BASELINES.items():
                chances = fit_predict(baseline, table, truth, training, testing, len(task.labels))
                scans = [scan.scan for scan in job.testing]
                found[name] += [
                    (s, job.fold, p) for s, p in zip(scans, chances.tolist(), strict=True)
                ]
        for name, entries in found.items():
            yield _held_out(task, ("baseline", name, scheme), rows, sorted(entries))


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
        Scan, fold and a number per class.
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
        probabilities=np.array([values for _, _, values in entries]),
    )


def _add_rish(
    plan: GroupPlan, facts: pd.DataFrame, chosen: list[int], model_dir: Path
) -> pd.DataFrame:
    """Facts of all scans with RISH features of the chosen ones, harmonised as in the model."""
    sites = [plan.cohort.rows[i].site for i in chosen]
    features = rish_table([plan.stored[i] for i in chosen], sites, read_gains(model_dir))
    return facts.join(features.set_index(pd.Index(chosen)))
