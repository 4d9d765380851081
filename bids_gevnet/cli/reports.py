"""Build reports and the methods text from what is on disk, without running anything."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bids_gevnet.bids.derivatives import FACTS
from bids_gevnet.bids.manifest import record_again
from bids_gevnet.bids.records import Participant
from bids_gevnet.bids.selection import read_selection
from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.parser import Request
from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from bids_gevnet.facts import ScanFacts

_METRICS = "group_metrics.json"

MOST_PARTICIPANTS = 1000
"""Up to so many, the methods text is written again after every run over participants."""


def rebuild_reports(request: Request) -> int:
    """Build the reports again, of finished participants and of the group, and print their paths.

    A group run that is on disk gets its report at either level; the group level demands one.
    """
    from bids_gevnet.report.subject.page import build_subject_report

    output_dir = request.output_dir
    if request.level == "group" and not has_group(output_dir):
        raise InputError(
            expected="the results of the group level for --reports-only",
            found=f"no {_METRICS} in {output_dir}",
            remedy="run the group level first, without --reports-only",
        )
    for label in finished_labels(request):
        report = build_subject_report(output_dir, label)
        record_again(request.output.manifest(label), output_dir, [report])
        print(report)
    if has_group(output_dir):
        from bids_gevnet.report.group.page import build_group_report

        print(build_group_report(output_dir))
    write_methods(output_dir)
    return 0


def has_group(output_dir: Path) -> bool:
    """Whether a group run is on disk."""
    return (output_dir / _METRICS).is_file()


def finished_labels(request: Request) -> list[str]:
    """Labels of participants whose derivatives are on disk, those asked for or all."""
    finished = {
        path.name.removeprefix("sub-")
        for path in request.output_dir.glob("sub-*")
        if path.is_dir() and any(path.rglob(f"*_{FACTS}"))
    }
    wanted = {label.removeprefix("sub-") for label in request.settings.selection.participant_label}
    missing = sorted(wanted - finished)
    if missing or not finished:
        raise InputError(
            expected=f"derivatives of finished participants for --{request.action}",
            found=f"none of {', '.join(missing) or 'anyone'} in {request.output_dir}",
            remedy=f"run the participant level first, without --{request.action}",
        )
    chosen = read_selection(request.settings.selection, finished | _scanned(request))
    return sorted(label for label in finished if chosen.reason_against(label) is None)


def unfinished_labels(request: Request, finished: Collection[str]) -> list[str]:
    """Labels of the dataset's participants, those asked for or all, that are not finished."""
    scanned = _scanned(request)
    chosen = read_selection(request.settings.selection, scanned.union(finished))
    unfinished = scanned.difference(finished)
    return sorted(label for label in unfinished if chosen.reason_against(label) is None)


def _scanned(request: Request) -> set[str]:
    folders = (path for path in request.bids_dir.glob("sub-*") if path.is_dir())
    return {path.name.removeprefix("sub-") for path in folders}


def write_methods(output_dir: Path, facts: "Sequence[ScanFacts] | None" = None) -> Path:
    """Write CITATION.md: the methods of all that ran, with what to cite."""
    if has_group(output_dir):
        from bids_gevnet.report.group.page import write_group_methods

        return write_group_methods(output_dir)
    from bids_gevnet.report.methods_text import methods_text
    from bids_gevnet.report.scan_files import read_all_facts

    known = read_all_facts(output_dir) if facts is None else facts
    path = output_dir / "CITATION.md"
    write_text(path, methods_text(known))
    return path


def refresh_methods(output_dir: Path, *, most: int = MOST_PARTICIPANTS) -> None:
    """Write CITATION.md after a run over participants, unless there are too many to read again.

    A cluster runs one participant at a time: to read all of them after each would cost the square
    of their number. Of a large study the text is written by the group level.
    """
    written = (output_dir / "CITATION.md").is_file()
    if not written or sum(path.is_dir() for path in output_dir.glob("sub-*")) <= most:
        write_methods(output_dir)


def write_boilerplate(request: Request, participants: Sequence[Participant]) -> int:
    """Write the methods text: of what ran, where something did, else of what would run."""
    from bids_gevnet.report.scan_files import read_all_facts

    facts = read_all_facts(request.output_dir) or _planned_facts(request, participants)
    path = write_methods(request.output_dir, facts)
    print(path)
    return 0


def _planned_facts(request: Request, participants: Sequence[Participant]) -> "list[ScanFacts]":
    from bids_gevnet.bids.scans import find_scans
    from bids_gevnet.workflows.planned_facts import planned_facts
    from bids_gevnet.workflows.tools import choose_tools, may_use_gpu

    settings = request.settings.preprocessing
    gpu = may_use_gpu(request.settings.learning.devices)
    tools, network = choose_tools(settings, gpu=gpu), _network(request)
    return [
        planned_facts(
            scan,
            siblings=participant.sessions()[scan.runs[0].session],
            settings=settings,
            tools=tools,
            network=network,
        )
        for participant in participants
        if participant.usable
        for scan in find_scans(participant, b0_threshold=settings.b0_threshold)
    ]


def _network(request: Request) -> str:
    """Name of the network of --model; empty without a model."""
    model = request.settings.learning.model
    if model is None:
        return ""
    from bids_gevnet.learn.models.files import read_card

    return read_card(model).network


def write_group_boilerplate(request: Request, people: "pd.DataFrame", target: str) -> int:
    """Write the methods text of both levels: of what ran, else of what would run.

    Parameters
    ----------
    request : Request
    people : DataFrame
        participants.tsv.
    target : str
        Its column with the classes.
    """
    if has_group(request.output_dir):
        print(write_methods(request.output_dir))
        return 0
    from bids_gevnet.learn.cohort.number_checks import read_unit
    from bids_gevnet.report.group.methods import describe_group, planned_facts
    from bids_gevnet.report.methods_text import to_markdown
    from bids_gevnet.report.scan_files import read_all_facts

    labelled = people[people[target].notna()]
    facts = planned_facts(
        request.settings,
        labels=[str(label).strip() for label in labelled[target]],
        target=target,
        unit=read_unit(request.bids_dir, target),
    )
    path = request.output_dir / "CITATION.md"
    write_text(path, to_markdown(describe_group(facts, read_all_facts(request.output_dir))))
    print(path)
    return 0
