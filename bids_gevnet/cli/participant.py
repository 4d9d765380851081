"""Run the participant level: plan, lock, build, run, and say how it ended."""

import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.description import write_description
from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.environment import prepare_environment
from bids_gevnet.cli.intermediates import discard_damaged_stages
from bids_gevnet.cli.locks import locked, using
from bids_gevnet.cli.logs import open_log_file, save_traceback
from bids_gevnet.cli.parser import Request
from bids_gevnet.cli.reports import refresh_methods
from bids_gevnet.errors import BidsGevnetError, InputError, ParticipantError, WorkflowBuildError
from bids_gevnet.settings import PreprocessingSettings, Settings, to_toml

if TYPE_CHECKING:
    from bids_gevnet.cli.adaptation import AdaptationPlan
    from bids_gevnet.cli.finished import Finisher
    from bids_gevnet.learn.models.files import ModelCard
    from bids_gevnet.workflows.scan import PredictionPlan
    from bids_gevnet.workflows.tools import Tools

log = logging.getLogger("bids_gevnet")
progress = logging.getLogger("bids_gevnet.progress")

_LOOK_AT = 20
"""Runs whose headers stand for all of them."""

_FINER_BY = 1.8
"""Times along each axis; from 3 mm to the default of 2 mm it is 1.5."""

CONTAINER_TAG = "BIDS_GEVNET_CONTAINER"
"""Environment variable in which an image states its own tag."""


def run_participants(request: Request, participants: Sequence[Participant]) -> int:
    """Process the participants that can be processed and return the exit code."""
    usable = [participant for participant in participants if participant.usable]
    messages = [
        f"sub-{participant.label}: {problem}"
        for participant in participants
        for problem in participant.problems
    ]
    labels = [f"sub-{participant.label}" for participant in usable]
    if usable:
        _make_folders(request.output_dir, request.work.root)
        with (
            locked(request.output.locks, labels),
            using(request.work) as is_last,
            locked(request.work.locks("participant"), labels),
        ):
            messages += _run(request, usable, is_last)
    _summarise(request, participants, messages)
    return int(bool(messages))


def check_model(settings: Settings) -> "ModelCard | None":
    """Refuse a model that is damaged, or that does not fit what scans will be made into.

    Returns
    -------
    ModelCard or None
        What the model says of itself; None without `--model`.
    """
    if settings.learning.model is None:
        return None
    from bids_gevnet.interfaces.template_grid import output_grid
    from bids_gevnet.learn.models.files import CHANGED_TEXT, has_changed_text, load_model
    from bids_gevnet.learn.models.prediction import check_planned_grid

    _, card, gains = load_model(settings.learning.model)
    if settings.learning.adapt:
        from bids_gevnet.learn.models.adaptation import require_reference

        require_reference(gains)
    if has_changed_text(settings.learning.model):
        log.warning("%s", CHANGED_TEXT)
    grid = output_grid(settings.preprocessing)
    check_planned_grid(
        card, shape=grid.shape, affine=grid.affine, nside=settings.preprocessing.nside
    )
    return card


def check_output_folders(
    output_dir: Path, participants: Sequence[Participant]
) -> tuple[Participant, ...]:
    """Find those whose derivatives could not be written or would land somewhere else."""
    checked = []
    for participant in participants:
        folder = output_dir / f"sub-{participant.label}"
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        problems = [problem for path in folders if (problem := _refuse_folder(path))]
        checked.append(replace(participant, problems=(*participant.problems, *problems[:1])))
    return tuple(checked)


def check_steps(
    settings: PreprocessingSettings, participants: Sequence[Participant]
) -> tuple[Participant, ...]:
    """Find those for whom a step that was asked for cannot work."""
    from bids_gevnet.workflows.tools import choose_tools

    if settings.template is not None:
        from bids_gevnet.interfaces.template_grid import load_template

        load_template(settings.template)  # reports a file that cannot be read
    tools = choose_tools(settings)  # reports a program that was asked for and is missing
    checked = []
    for participant in participants:
        refusals = [_refuse_run(run, participant, settings, tools) for run in participant.runs]
        problems = (*participant.problems, *filter(None, refusals))
        checked.append(replace(participant, problems=problems))
    return tuple(checked)


def warn_of_empty_resolution(
    settings: PreprocessingSettings, participants: Sequence[Participant]
) -> None:
    """Say where the output would be much finer than what was measured: it decides all costs."""
    import nibabel as nib

    from bids_gevnet.dwi.gradients import voxel_sizes

    runs = [run for p in participants if p.usable for run in p.runs][:_LOOK_AT]
    if not runs:
        return
    measured = median(math.prod(voxel_sizes(nib.load(run.image).affine)) for run in runs)
    ratio = measured / settings.output_resolution**3
    if ratio > _FINER_BY**3:
        log.warning(
            "voxels of %.2g mm were measured, and --output-resolution %g makes %.0f of each: they "
            "take time, memory and disk, and tell nothing new",
            measured ** (1 / 3),
            settings.output_resolution,
            ratio,
        )


def _refuse_run(
    run: DiffusionRun, participant: Participant, settings: PreprocessingSettings, tools: "Tools"
) -> ParticipantError | None:
    from bids_gevnet.workflows.cleaning_plan import plan_cleaning

    try:
        plan_cleaning(run, settings)
    except ParticipantError as error:
        return error
    if not settings.use_syn_sdc or run.preprocessed is not None:
        return None
    from bids_gevnet.workflows.correction_plan import plan_corrections

    siblings = participant.sessions()[run.session]
    (plan,) = plan_corrections([run], siblings, settings, tools)
    if plan.susceptibility == "no_opposite_b0":
        return ParticipantError(
            expected=f"a T1w, or a b0 with the opposite phase encoding, for {run.name} with "
            "--use-syn-sdc",
            found="neither",
            remedy="add one of them, or process this participant without --use-syn-sdc",
        )
    return None


def _refuse_folder(folder: Path) -> ParticipantError | None:
    if folder.is_symlink():
        return ParticipantError(
            expected=f"a folder of its own at {folder}",
            found=f"a link to {folder.readlink()}, where nothing is written",
            remedy="remove the link, or give the folder that it points to as OUTPUT_DIR",
        )
    if folder.exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return ParticipantError(
            expected=f"permission to read and write {folder}",
            found="none",
            remedy="ask its owner for it, or give another OUTPUT_DIR",
        )
    return None


def _make_folders(output_dir: Path, work_dir: Path) -> None:
    for folder, option in ((output_dir, "OUTPUT_DIR"), (work_dir, "--work-dir")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".write-test-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InputError(
                expected=f"a folder that can be written to for {option}",
                found=f"{folder} ({error.strerror})",
                remedy="give another folder, or mount it writable",
            ) from None


def _run(
    request: Request, participants: Sequence[Participant], is_last: Callable[[], bool]
) -> list[str]:
    """Build and run the workflow of all who are not finished; return a sentence per failure."""
    execution = request.settings.execution
    prepare_environment(request.work, execution, threads=1)
    from bids_gevnet.cli.adaptation import plan_adaptation
    from bids_gevnet.cli.execute import (
        LOCAL,
        choose_plugin,
        configure,
        make_crash_dir,
        read_failures,
    )
    from bids_gevnet.cli.finished import Finisher
    from bids_gevnet.workflows.participant import participant_node_name
    from bids_gevnet.workflows.scan import STAGES
    from bids_gevnet.workflows.tools import choose_tools, may_use_gpu

    gpu = may_use_gpu(request.settings.learning.devices)
    tools = choose_tools(request.settings.preprocessing, gpu=gpu)
    names = {participant_node_name(p.label): p for p in participants}
    adaptation = plan_adaptation(request)
    finisher = Finisher(request, names, tools, adaptation.digest)
    open_log_file(request.output, "participant")
    crash_dir = make_crash_dir(request.work)
    container = os.environ.get(CONTAINER_TAG)
    write_description(
        request.output_dir,
        request.bids_dir,
        container=container,
        sources=_sources(participants),
    )
    write_text(request.output.settings_file("participant"), to_toml(request.settings))
    left = []
    for participant in participants:
        if finisher.is_finished(participant):
            log.info("sub-%s: finished before, nothing to do", participant.label)
        else:
            left.append(participant)
    if len(left) < len(participants):
        progress.info("%d of %d finished before", len(participants) - len(left), len(participants))
    if left and choose_plugin(execution)[0] == LOCAL:
        from bids_gevnet.cli.workers import start_server

        start_server()
    workflow, messages = _build(request, left, tools, adaptation)
    if workflow is not None:
        configure(workflow, execution, crash_dir=crash_dir)
        _execute(request, workflow, finisher, crash_dir)
    refresh_methods(request.output_dir)
    labels = {name: f"sub-{participant.label}" for name, participant in names.items()}
    failures = read_failures(crash_dir, labels)
    for failure in failures:
        shutil.copy(failure.crash_file, request.output.logs / failure.crash_file.name)
    _report_failures(request, {failure.owner for failure in failures})
    if not failures and execution.clean_workdir and is_last():
        request.work.remove()
    return messages + [
        f"{f.owner}: {STAGES.get(f.stage, f.stage)}: {f.message} "
        f"(details: {request.output.logs / f.crash_file.name})"
        for f in failures
    ]


def _sources(participants: Sequence[Participant]) -> dict[str, Path]:
    """Folders of the pipelines whose scans are taken, by the name their URIs have."""
    return {
        run.preprocessed.dataset.pipeline: run.preprocessed.dataset.folder
        for participant in participants
        for run in participant.runs
        if run.preprocessed is not None
    }


def _execute(request: Request, workflow: Any, finisher: "Finisher", crash_dir: Path) -> None:
    """Run the workflow, with progress on the terminal."""
    from bids_gevnet.cli.execute import choose_plugin, run_workflow
    from bids_gevnet.cli.graph import draw_graph
    from bids_gevnet.cli.progress import WorkflowProgress
    from bids_gevnet.workflows.scan import STAGES

    execution = request.settings.execution
    nodes = workflow.list_node_names()
    first_parts = {node.split(".", 1)[0] for node in nodes}
    built = [name for name in finisher.participants if name in first_parts]
    for name in built:
        discard_damaged_stages(request.work.nodes("participant") / name)
    if execution.write_graph:
        # All participants go the same way: the first one's is the picture.
        print(draw_graph(workflow.get_node(built[0]), request.output.logs))
    labels = {name: finisher.participants[name].label for name in built}
    progress = WorkflowProgress(
        {name: f"sub-{label}" for name, label in labels.items()},
        STAGES,
        nodes=[name for name in nodes if not name.endswith("outputnode")],
        resources={
            name: request.output.resources(label)
            for name, label in labels.items()
            if execution.resource_monitor
        },
        finished=finisher.seal,
    )
    plugin, arguments = choose_plugin(execution)
    arguments["status_callback"] = progress
    try:
        run_workflow(workflow, plugin=plugin, crash_dir=crash_dir, arguments=arguments)
    finally:
        progress.close()


def _report_failures(request: Request, owners: set[str]) -> None:
    """Give participants that failed a report that shows the error and what was made before it."""
    from bids_gevnet.report.subject.page import build_subject_report

    for label in sorted(owners - {""}):
        try:
            build_subject_report(request.output_dir, label.removeprefix("sub-"))
        except (OSError, ValueError, BidsGevnetError) as error:
            log.warning("%s: no report of its failure (%s)", label, error)


def _build(
    request: Request,
    participants: Sequence[Participant],
    tools: "Tools",
    adaptation: "AdaptationPlan",
) -> tuple[Any, list[str]]:
    """Build the workflow of those it can be built for; a sentence for each of the others.

    Returns
    -------
    workflow : nipype Workflow or None
        None if there is nobody to process.
    messages : list of str
    """
    from bids_gevnet.interfaces.template_grid import output_grid
    from bids_gevnet.workflows.context import ScanContext
    from bids_gevnet.workflows.participant import init_participant_wf, init_participants_wf

    settings, execution = request.settings.preprocessing, request.settings.execution
    context = ScanContext(
        output_dir=request.output_dir,
        grid=output_grid(settings),
        settings=settings,
        tools=tools,
        threads=min(execution.threads, execution.processes),
    )
    workflows, messages = [], []
    for participant in participants:
        try:
            plans = _predictions(request, participant, adaptation)
            workflows.append(init_participant_wf(participant, context, plans))
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - one bad participant never stops the others
            kept = save_traceback(error, request.output)
            text = str(error) if isinstance(error, BidsGevnetError) else repr(error)[:500]
            head = f"sub-{participant.label}: its workflow could not be built"
            messages.append(f"{head} ({text}; details: {kept})")
    if not workflows and participants:
        raise WorkflowBuildError(
            expected="a workflow for at least one participant",
            found=f"none; {messages[0]}",
            remedy="report this with that file and OUTPUT_DIR/logs/settings.toml",
        )
    built = init_participants_wf(workflows, request.work.root) if workflows else None
    return built, messages


def _predictions(
    request: Request, participant: Participant, adaptation: "AdaptationPlan"
) -> "dict[str, PredictionPlan]":
    """Plan the prediction of a participant's scans with the model of --model, if one is given."""
    model = request.settings.learning.model
    if model is None:
        return {}
    from bids_gevnet.bids.scans import find_scans
    from bids_gevnet.learn.cohort.scan_rows import dataset_name, scan_site
    from bids_gevnet.workflows.scan import PredictionPlan

    column = request.settings.learning.site
    plans = {}
    for scan in find_scans(participant, b0_threshold=request.settings.preprocessing.b0_threshold):
        site = scan_site(request.bids_dir, scan.entities, column)
        plans[scan.name] = PredictionPlan(
            model=model,
            site=site,
            dataset=dataset_name(request.bids_dir),
            gains=adaptation.gains if site in adaptation.sentences else None,
            adaptation=adaptation.sentences.get(site, ""),
        )
    return plans


def _summarise(
    request: Request, participants: Sequence[Participant], messages: Sequence[str]
) -> None:
    failed = {message.split(":", 1)[0] for message in messages}
    done = [p for p in participants if f"sub-{p.label}" not in failed]
    print(f"{len(done)} of {len(participants)} participants done; output in {request.output_dir}")
    for message in messages:
        print(f"bids_gevnet: {message}", file=sys.stderr)
