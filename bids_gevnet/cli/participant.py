"""Run the participant level: plan, lock, build, run, and say how it ended."""

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.derivatives import write_description
from bids_gevnet.bids.records import Participant
from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.environment import prepare_environment
from bids_gevnet.cli.locks import locked
from bids_gevnet.cli.logs import open_log_file
from bids_gevnet.cli.parser import Request
from bids_gevnet.cli.reports import write_methods
from bids_gevnet.errors import BidsGevnetError, InputError, WorkflowBuildError
from bids_gevnet.settings import to_toml

if TYPE_CHECKING:
    from bids_gevnet.workflows.scan import PredictionPlan

log = logging.getLogger("bids_gevnet")

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
        with locked(request.output.locks, labels):
            messages += _run(request, usable)
    _summarise(request, participants, messages)
    return int(bool(messages))


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


def _run(request: Request, participants: Sequence[Participant]) -> list[str]:
    """Build and run the workflow; return a sentence for each failure."""
    execution = request.settings.execution
    threads = min(execution.threads, execution.processes)
    prepare_environment(request.work, execution, threads=1)
    from bids_gevnet.cli.execute import (
        choose_plugin,
        configure,
        make_crash_dir,
        read_failures,
        run_workflow,
    )
    from bids_gevnet.cli.graph import draw_graph
    from bids_gevnet.cli.progress import WorkflowProgress
    from bids_gevnet.workflows.participant import participant_node_name
    from bids_gevnet.workflows.scan import STAGES

    open_log_file(request.output, "participant")
    crash_dir = make_crash_dir(request.work)
    write_description(
        request.output_dir, request.bids_dir, container=os.environ.get(CONTAINER_TAG)
    )
    write_text(request.output.settings_file("participant"), to_toml(request.settings))
    workflow = _build(request, participants, threads)
    configure(workflow, execution, crash_dir=crash_dir)
    if execution.write_graph:
        # All participants go the same way: the first one's is the picture.
        first = workflow.get_node(participant_node_name(participants[0].label))
        print(draw_graph(first, request.output.logs))
    names = {participant_node_name(p.label): f"sub-{p.label}" for p in participants}
    progress = WorkflowProgress(
        names,
        STAGES,
        total=sum(not name.endswith("outputnode") for name in workflow.list_node_names()),
        resources={
            name: request.output.resources(label.removeprefix("sub-"))
            for name, label in names.items()
            if execution.resource_monitor
        },
    )
    try:
        plugin, arguments = choose_plugin(execution)
        arguments["status_callback"] = progress
        run_workflow(workflow, plugin=plugin, crash_dir=crash_dir, arguments=arguments)
    finally:
        progress.close()
    write_methods(request.output_dir)
    failures = read_failures(crash_dir, names)
    kept = request.output.logs
    for failure in failures:
        shutil.copy(failure.crash_file, kept / failure.crash_file.name)
    if not failures and execution.clean_workdir:
        request.work.remove()
    return [
        f"{f.owner}: {STAGES.get(f.stage, f.stage)}: {f.message} "
        f"(details: {kept / f.crash_file.name})"
        for f in failures
    ]


def _build(request: Request, participants: Sequence[Participant], threads: int) -> Any:
    from bids_gevnet.interfaces.template import output_grid
    from bids_gevnet.workflows.participant import init_participants_wf
    from bids_gevnet.workflows.tools import choose_tools

    settings = request.settings.preprocessing
    tools = choose_tools(settings)
    try:
        return init_participants_wf(
            participants,
            output_dir=request.output_dir,
            work_dir=request.work.root,
            grid=output_grid(settings),
            settings=settings,
            tools=tools,
            threads=threads,
            predictions=_predictions(request, participants),
        )
    except BidsGevnetError:
        raise
    except Exception as error:
        raise WorkflowBuildError(
            expected="a workflow for these participants",
            found=f"{type(error).__name__}: {error}",
            remedy="report this with the settings in OUTPUT_DIR/logs/settings.toml",
        ) from error


def _predictions(
    request: Request, participants: Sequence[Participant]
) -> "dict[str, PredictionPlan]":
    """Plan the prediction of every scan with the model of --model, if one is given."""
    model = request.settings.learning.model
    if model is None:
        return {}
    from bids_gevnet.bids.scans import find_scans
    from bids_gevnet.learn.cohort.scan_rows import dataset_name, scan_site
    from bids_gevnet.learn.models.files import read_card
    from bids_gevnet.workflows.scan import PredictionPlan

    read_card(model)  # what is wrong with the model is said now, not after an hour
    column = request.settings.learning.site
    return {
        scan.name: PredictionPlan(
            model=model,
            site=scan_site(request.bids_dir, scan.entities, column),
            dataset=dataset_name(request.bids_dir),
        )
        for participant in participants
        for scan in find_scans(
            participant, b0_threshold=request.settings.preprocessing.b0_threshold
        )
    }


def _summarise(
    request: Request, participants: Sequence[Participant], messages: Sequence[str]
) -> None:
    failed = {message.split(":", 1)[0] for message in messages}
    done = [p for p in participants if f"sub-{p.label}" not in failed]
    print(f"{len(done)} of {len(participants)} participants done; output in {request.output_dir}")
    for message in messages:
        print(f"bids_gevnet: {message}", file=sys.stderr)
