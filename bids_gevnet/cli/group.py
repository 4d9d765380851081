"""Run the group level and report its result."""

import dataclasses
import json
import logging
import shutil
import sys
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.description import write_description
from bids_gevnet.bids.manifest import read_manifest
from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.cli.environment import prepare_environment
from bids_gevnet.cli.intermediates import discard_damaged_stages
from bids_gevnet.cli.locks import locked, using
from bids_gevnet.cli.logs import open_log_file
from bids_gevnet.cli.parser import Request
from bids_gevnet.errors import InputError, count_people, printable
from bids_gevnet.learn.cohort.left_out import NO_DERIVATIVES, UNREADABLE, LeftOut, name_left_out
from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.settings import TaskKind, to_toml

if TYPE_CHECKING:
    from collections.abc import Callable

    from nipype.pipeline.engine import Workflow

    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.train.planning import StudyPlan
    from bids_gevnet.learn.train.torchrun import Devices
    from bids_gevnet.workflows.group import StudyContext

log = logging.getLogger("bids_gevnet")

_WIDTH = 79
_NAME = 25  # columns for a model's name
_RERUN = "run the same command again; what is finished is kept"
_REMEDIES = {
    "folds and sites": "nothing has been trained yet",
    "training": "--resume continues from the last checkpoint",
    "report": "--reports-only builds it again",
}


def run_group_level(request: Request) -> int:
    """Train, test and write models, or validate a finished one; return the exit code."""
    if request.settings.learning.model is not None:
        from bids_gevnet.cli.validation import plan_validation

        validation = plan_validation(request)
        # After the plan, which prepares the environment: Nipype reads it when it is imported.
        from bids_gevnet.workflows.external import EXTERNAL_STAGES, init_external_wf

        with locked(request.output.locks, ["group"]):
            return _run_and_clean(
                request, lambda: init_external_wf(validation), {}, EXTERNAL_STAGES
            )
    study = plan_group_level(request)
    from bids_gevnet.workflows.group import GROUP_STAGES, init_group_wf

    titles = {model.node_name: model.title for model in study.plan.models}

    def build() -> "Workflow":
        announce_time(study)
        return init_group_wf(study)

    with locked(request.output.locks, ["group"]):
        return _run_and_clean(request, build, titles, GROUP_STAGES)


def announce_time(study: "StudyContext") -> None:
    """Say on the terminal and in the log how long the models that are missing will train."""
    from bids_gevnet.cli.plan import describe_time
    from bids_gevnet.learn.models.files import WEIGHTS

    missing = tuple(
        model
        for model in study.plan.models
        if not (study.output.models / model.folder / WEIGHTS).is_file()
    )
    if missing:
        plan = dataclasses.replace(study.plan, models=missing)
        for line in describe_time(study.cohort, plan, study.settings, study.devices):
            logging.getLogger("bids_gevnet.progress").info("%s", line)


def plan_group_level(request: Request) -> "StudyContext":
    """Read the cohort and plan its models; what cannot be done is said before anything runs."""
    cohort, plan, devices = read_study(request)
    for line in name_left_out(cohort.left_out):
        log.warning("left out: %s", printable(line))
    for remark in cohort.remarks:
        log.info("%s", printable(remark))
    # After the study is known to be possible: a refusal leaves nothing behind.
    prepare_environment(request.work, request.settings.execution)
    from bids_gevnet.workflows.group import StudyContext

    return StudyContext(
        bids_dir=request.bids_dir,
        output=request.output,
        work=request.work,
        settings=request.settings,
        cohort=cohort,
        plan=plan,
        devices=devices,
    )


def read_study(request: Request) -> "tuple[Cohort, StudyPlan, Devices]":
    """Read who is studied, plan what is trained, and choose what trains it; write nothing."""
    from bids_gevnet.dwi.shells import require_shells
    from bids_gevnet.learn.train.planning import plan_study
    from bids_gevnet.learn.train.torchrun import Devices

    execution, learning = request.settings.execution, request.settings.learning
    cohort = read_labelled(request, folds=learning.folds, task=learning.task)
    if learning.init_model is not None:
        from bids_gevnet.learn.models.newcomers import choose_newcomers

        cohort = choose_newcomers(cohort, learning.init_model, folds=learning.folds)
    require_shells(cohort.b_values, request.settings.preprocessing.shell)
    plan = plan_study(cohort, learning, seed=execution.random_seed)
    if learning.atlas is not None:
        from bids_gevnet.learn.evaluate.regions import read_regions

        read_regions(learning.atlas, cohort.shape, cohort.affine)
    refuse_damaged(request, cohort)
    return cohort, plan, Devices.choose(learning, execution)


def read_labelled(request: Request, *, folds: int, task: TaskKind) -> "Cohort":
    """Read the labelled scans of the participant level; every class needs `folds` people."""
    if not request.output_dir.is_dir():
        raise InputError(
            expected="the OUTPUT_DIR of the participant level",
            found=f"no folder {request.output_dir}",
            remedy=f"run bids_gevnet {request.bids_dir} {request.output_dir} participant first",
        )
    from bids_gevnet.learn.cohort.members import read_cohort

    learning = request.settings.learning
    return read_cohort(
        request.output_dir,
        request.bids_dir,
        target=learning.target,
        task=task,
        site=learning.site,
        covariates=learning.covariates,
        folds=folds,
        selection=request.settings.selection,
    )


def refuse_damaged(request: Request, cohort: "Cohort") -> None:
    """Refuse samples and masks that are gone, or no longer what the participant level wrote."""
    images = {path for row in cohort.rows for path in (row.image, row.mask)}
    unusable = {e.participant for e in cohort.left_out if e.reason in (UNREADABLE, NO_DERIVATIVES)}
    damaged = {}
    for label in sorted({row.participant for row in cohort.rows} | unusable):
        manifest = read_manifest(request.output.manifest(label))
        changed = [] if manifest is None else manifest.damaged(request.output_dir)
        names = [n for n in changed if label in unusable or request.output_dir / n in images]
        if names:
            damaged[label] = names
    if damaged:
        labels = " ".join(damaged)
        raise InputError(
            expected="derivatives as the participant level wrote them",
            found=f"missing or changed files of {count_people(len(damaged))}: "
            + "; ".join(f"sub-{label}: {names[0]}" for label, names in damaged.items()),
            remedy=f"run the participant level again with --participant-label {labels}, which "
            f"makes them again, or give --exclude-participant-label {labels}",
        )


def _run_and_clean(
    request: Request,
    build: "Callable[[], Workflow]",
    titles: Mapping[str, str],
    stages: Mapping[str, str],
) -> int:
    """Run the graph and, where that is asked for and all went well, remove what it left."""
    with using(request.work) as is_last, locked(request.work.locks("group"), ["group"]):
        code = _run(request, build, titles, stages)
        if code == 0 and request.settings.execution.clean_workdir:
            if is_last():
                request.work.remove()
            else:
                shutil.rmtree(request.work.nodes("group"), ignore_errors=True)
    return code


def _run(
    request: Request,
    build: "Callable[[], Workflow]",
    titles: Mapping[str, str],
    stages: Mapping[str, str],
) -> int:
    """Run the graph that `build` draws; branches and nodes are called as the mappings say."""
    from bids_gevnet.cli.execute import (
        IN_ORDER,
        choose_plugin,
        configure,
        make_crash_dir,
        read_failures,
        run_workflow,
    )
    from bids_gevnet.cli.graph import draw_graph
    from bids_gevnet.cli.progress import WorkflowProgress

    execution = request.settings.execution
    open_log_file(request.output, "group")
    write_description(request.output_dir, request.bids_dir)
    write_text(request.output.settings_file("group"), to_toml(request.settings))
    workflow = build()
    discard_damaged_stages(request.work.nodes("group"))
    crash_dir = make_crash_dir(request.work)
    configure(workflow, execution, crash_dir=crash_dir)
    if execution.write_graph:
        print(draw_graph(workflow, request.output.logs))
    started = _now()
    _log_run(request, started, None)
    progress = WorkflowProgress(titles, stages, nodes=None)
    # In this process unless a plugin is asked for: models use all cores one after the other,
    # training shows its own progress, and an interrupt reaches it at once.
    plugin, arguments = choose_plugin(execution) if execution.use_plugin else (IN_ORDER, {})
    arguments["status_callback"] = progress
    try:
        run_workflow(workflow, plugin=plugin, crash_dir=crash_dir, arguments=arguments)
    finally:
        progress.close()
    failures = read_failures(crash_dir, titles)
    for failure in failures:
        kept = request.output.logs / failure.crash_file.name
        shutil.copy(failure.crash_file, kept)
        stage = progress.stage(failure.stage) or failure.stage
        whose = f"{failure.owner}: " if failure.owner else ""
        print(
            f"bids_gevnet: group: {whose}{stage}: {failure.message} (details: {kept}; "
            f"{_REMEDIES.get(stage, _RERUN)})",
            file=sys.stderr,
        )
    if not failures or {progress.stage(failure.stage) for failure in failures} <= {"report"}:
        _log_run(request, started, _now())
        print(summary(request.output_dir))
    if not failures:
        print(f"Report: {request.output.group_report}")
    return int(bool(failures))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _log_run(request: Request, started: str, finished: str | None) -> None:
    """Leave what was run and when, for the report, which is built before the end."""
    facts = {
        "command": sys.argv,
        "started": started,
        "finished": finished,
        "seed": request.settings.execution.random_seed,
    }
    write_json(request.output.group_run, facts)


def summary(output_dir: Path) -> str:
    """Held-out results for the terminal, at most 79 columns wide, the headlines last."""
    metrics = json.loads((output_dir / "group_metrics.json").read_text(encoding="utf-8"))
    lines: list[str] = []
    for task in metrics["tasks"]:
        lines += [*_task_lines(task), ""]
    left_out = [entry for entry in metrics["leave_site_out"] if entry["run"]]
    if not left_out and "external" not in metrics:
        lines += _wrapped("No site was left out: ", _why_no_site(metrics))
    lines += _left_out_lines(metrics)
    for text in metrics.get("remarks", ()):
        lines += _wrapped("", printable(text))
    for text in metrics["warnings"]:
        lines += _wrapped("warning: ", printable(text))
    for trained in metrics.get("training", ()):
        folder = output_dir / trained["model"]
        lines.append(f"Trained on everybody, for --model: {folder}")
    lines.append(f"Predictions of people not trained on: {output_dir / 'group_predictions.tsv'}")
    lines.append(f"All figures: {output_dir / 'group_metrics.json'}")
    lines.append("Research use only; not for diagnosis.")
    for task in metrics["tasks"]:
        found = task["headline"]
        lines += ["", *_wrapped("", printable(found["sentence"]))]
        lines += [f"  {line}" for line in textwrap.wrap(printable(found["numbers"]), _WIDTH - 2)]
    return "\n".join(lines)


def _left_out_lines(metrics: dict[str, Any]) -> list[str]:
    entries = [LeftOut(**entry) for entry in metrics.get("left_out", ())]
    if not entries:
        return []
    lines = [f"Left out: {len(entries)}"]
    for text in name_left_out(entries):
        lines += [f"  {line}" for line in textwrap.wrap(printable(text), _WIDTH - 2)]
    return lines


def _task_lines(task: dict[str, Any]) -> list[str]:
    """One task: networks with their intervals, what simpler models reach, sites left out."""
    from bids_gevnet.learn.evaluate.permutation import p_text

    head = f"{printable(task['title'])}: {task['n_participants']} participants"
    number = task["kind"] == REGRESSION
    figure, beside = (task["figure"], "mae" if number else "roc_auc")
    name = "mean absolute error" if number else "ROC AUC"
    unit = f" ({printable(task['unit'])})" if number and task["unit"] else ""
    lines = [
        _short(head, _WIDTH),
        f"{'':<{_NAME}}{figure.replace('_', ' '):<21}{name}{unit}",
    ]
    for scheme in ("folds", "external", "leave-site-out", "leave-site-out-adapted"):
        models = [model for model in task["models"] if scheme in model["schemes"]]
        if models and scheme == "leave-site-out":
            lines.append(" each site by models of the other sites:")
        if models and scheme == "leave-site-out-adapted":
            lines.append(" the same, harmonised from the site's unlabelled scans:")
        for model in models:
            scores = model["schemes"][scheme]
            cells = [_cell(scores["pooled"][key]) for key in (figure, beside)]
            p = scores["permutation"][figure]["p"]
            name = ("  " if model["kind"] == "network" else "    ") + model["title"]
            end = p_text(p) if p is not None and model["kind"] == "network" else ""
            lines.append(f"{_short(name, _NAME - 1):<{_NAME}}{cells[0]}{cells[1]}{end}".rstrip())
    guess = 0.5
    if number:
        first = next(iter(task["models"][0]["schemes"].values()))
        guess = first["pooled"]["guessing_mae"]
    lines.append(f"{'  guessing':<{_NAME}}{task['chance']:.2f}{'':<17}{guess:.2f}")
    lines.append("  95% intervals; p by exchanging labels within sites, for one model alone.")
    return lines


def _cell(value: dict[str, Any]) -> str:
    """Write an estimate with its interval, 21 columns wide."""
    if value["value"] is None:
        return f"{'n/a':<21}"
    if value["low"] is None:
        return f"{value['value']:.2f}".ljust(21)
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]".ljust(21)


def _why_no_site(metrics: dict[str, Any]) -> str:
    reasons = dict.fromkeys(
        f"{printable(entry['site'])}: {printable(entry['reason'])}"
        for entry in metrics["leave_site_out"]
    )
    return "; ".join(reasons)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, _WIDTH, subsequent_indent="  ")
