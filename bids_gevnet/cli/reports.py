"""Reports and methods text from what is on disk, without running anything."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bids_gevnet.bids.records import Participant
from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.parser import Request
from bids_gevnet.errors import InputError

_FACTS = "*_desc-report_facts.json"


def rebuild_reports(request: Request) -> int:
    """Build the reports of finished participants again and print their paths."""
    from bids_gevnet.report.subject import build_subject_report

    labels = finished_labels(request)
    for label in labels:
        print(build_subject_report(request.output_dir, label))
    write_methods(request.output_dir)
    return 0


def finished_labels(request: Request) -> list[str]:
    """Labels of participants whose derivatives are on disk, those asked for or all."""
    found = {
        path.name.removeprefix("sub-")
        for path in request.output_dir.glob("sub-*")
        if path.is_dir() and any(path.rglob(_FACTS))
    }
    wanted = {label.removeprefix("sub-") for label in request.settings.selection.participant_label}
    missing = sorted(wanted - found)
    if missing or not found:
        raise InputError(
            expected="derivatives of finished participants for --reports-only",
            found=f"none of {', '.join(missing) or 'anyone'} in {request.output_dir}",
            remedy="run the participant level first, without --reports-only",
        )
    return sorted(wanted or found)


def write_methods(output_dir: Path, facts: Sequence[dict[str, Any]] | None = None) -> Path:
    """Write CITATION.md: the methods of all that ran, with what to cite."""
    from bids_gevnet.report.boilerplate import methods_text

    known = read_all_facts(output_dir) if facts is None else facts
    path = output_dir / "CITATION.md"
    write_text(path, methods_text(known))
    return path


def read_all_facts(output_dir: Path) -> list[dict[str, Any]]:
    """Read the facts of all finished scans, in order of their names."""
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(output_dir.glob(f"sub-*/**/{_FACTS}"))
    ]


def write_boilerplate(request: Request, participants: Sequence[Participant]) -> int:
    """Write the methods text: of what ran, where something did, else of what would run."""
    facts = read_all_facts(request.output_dir) or _planned_facts(request, participants)
    path = write_methods(request.output_dir, facts)
    print(path)
    return 0


def _planned_facts(request: Request, participants: Sequence[Participant]) -> list[dict[str, Any]]:
    from bids_gevnet.bids.scans import find_scans
    from bids_gevnet.workflows.participant import early_facts
    from bids_gevnet.workflows.tools import choose_tools

    settings = request.settings.preprocessing
    tools = choose_tools(settings)
    return [
        early_facts(scan, settings, tools)
        for participant in participants
        if participant.usable
        for scan in find_scans(participant, b0_threshold=settings.b0_threshold)
    ]
