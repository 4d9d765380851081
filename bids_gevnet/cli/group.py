"""Run the group level and say what it found."""

import json
import os
import shutil
import sys
from pathlib import Path

from bids_gevnet.bids.derivatives import write_description
from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.environment import prepare_environment
from bids_gevnet.cli.execute import configure, read_failures, run_workflow
from bids_gevnet.cli.locks import locked
from bids_gevnet.cli.parser import Request
from bids_gevnet.errors import InputError
from bids_gevnet.settings import to_toml


def run_group_level(request: Request) -> int:
    """Train, test and write models; return the exit code."""
    if not request.output_dir.is_dir():
        raise InputError(
            expected="the OUTPUT_DIR of the participant level",
            found=f"no folder {request.output_dir}",
            remedy=f"run bids_gevnet {request.bids_dir} {request.output_dir} participant first",
        )
    work_dir = (request.settings.execution.work_dir or request.output_dir / "work").resolve()
    prepare_environment(work_dir, verbose=request.settings.execution.verbose)
    _check_cohort(request)
    with locked(request.output_dir / "logs" / "locks", ["group"]):
        return _train(request, work_dir)


def _labels(request: Request) -> list[str]:
    chosen = request.settings.selection.participant_label
    return [label.removeprefix("sub-") for label in chosen]


def _check_cohort(request: Request) -> None:
    """Say what is wrong with the cohort before anything is started."""
    from bids_gevnet.learn.cohort import read_cohort

    learning = request.settings.learning
    read_cohort(
        request.output_dir,
        request.bids_dir,
        target=learning.target,
        site=learning.site,
        covariates=learning.covariates,
        folds=learning.folds,
        participants=_labels(request),
    )


def _train(request: Request, work_dir: Path) -> int:
    from bids_gevnet.workflows.group import init_group_wf

    write_description(request.output_dir, request.bids_dir)
    write_text(request.output_dir / "logs" / "settings-group.toml", to_toml(request.settings))
    workflow = init_group_wf(
        bids_dir=request.bids_dir,
        output_dir=request.output_dir,
        work_dir=work_dir,
        settings=request.settings,
        participants=_labels(request),
    )
    crash_dir = work_dir / "crash" / f"run-{os.getpid()}"
    shutil.rmtree(crash_dir, ignore_errors=True)
    crash_dir.mkdir(parents=True)
    configure(workflow, request.settings.execution, crash_dir=crash_dir)
    # In this process: training shows its progress, and an interrupt reaches it.
    run_workflow(workflow, plugin="Linear", crash_dir=crash_dir)
    failures = read_failures(crash_dir, {})
    for failure in failures:
        kept = request.output_dir / "logs" / failure.crash_file.name
        shutil.copy(failure.crash_file, kept)
        print(
            f"bids_gevnet: group: {failure.message} (details: {kept}; --resume goes on from the "
            "last epoch)",
            file=sys.stderr,
        )
    if not failures:
        print(summary(request.output_dir))
    return int(bool(failures))


def summary(output_dir: Path) -> str:
    """Held-out results as a table for the terminal."""
    metrics = json.loads((output_dir / "group_metrics.json").read_text(encoding="utf-8"))
    lines = [f"{'task':<24} {'network':<16} {'n':>5} {'balanced accuracy':>18} {'ROC AUC':>8}"]
    for task in metrics["tasks"]:
        pooled = task["pooled"]
        area = "n/a" if pooled["roc_auc"] is None else f"{pooled['roc_auc']:.3f}"
        lines.append(
            f"{task['title']:<24} {task['network']:<16} {pooled['n']:>5} "
            f"{pooled['balanced_accuracy']:>18.3f} {area:>8}"
        )
    lines += [f"warning: {text}" for text in metrics["warnings"]]
    lines.append("Held-out predictions of all folds: " + str(output_dir / "group_predictions.tsv"))
    lines.append("Research use only; not for diagnosis.")
    return "\n".join(lines)
