"""Build the workflow of the participant level: a workflow per participant, a report each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.records import Participant
from bids_gevnet.bids.scans import find_scans
from bids_gevnet.interfaces.report import BuildSubjectReport
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.planned_facts import early_facts
from bids_gevnet.workflows.scan import PredictionPlan, init_scan_wf


def participant_node_name(label: str) -> str:
    """Name of a participant's workflow, as Nipype allows it: a plus sign is none."""
    return f"sub_{label.replace('+', '_')}"


def init_participants_wf(workflows: Sequence[pe.Workflow], work_dir: Path) -> pe.Workflow:
    """Put the workflows of all participants side by side.

    Parameters
    ----------
    workflows : sequence of Workflow
        From `init_participant_wf`.
    work_dir : Path
    """
    workflow = pe.Workflow(name="participant", base_dir=str(work_dir))
    workflow.add_nodes(list(workflows))
    return workflow


def init_participant_wf(
    participant: Participant, context: ScanContext, predictions: Mapping[str, PredictionPlan]
) -> pe.Workflow:
    """Build the workflow of one participant: its scans, then one report for all of them.

    Parameters
    ----------
    participant : Participant
    context : ScanContext
    predictions : mapping
        Name of a scan to the model it is to be predicted with.
    """
    workflow = pe.Workflow(name=participant_node_name(participant.label))
    scans = find_scans(participant, b0_threshold=context.settings.b0_threshold)
    gather = pe.Node(niu.Merge(len(scans)), name="gather")
    report = pe.Node(
        BuildSubjectReport(output_dir=str(context.output_dir), label=participant.label),
        name="report",
        overwrite=True,  # Nipype does not see that somebody removed the report
        mem_gb=1.0,
    )
    sessions = participant.sessions()
    for number, scan in enumerate(scans, start=1):
        scan_wf = init_scan_wf(
            scan,
            context,
            siblings=sessions[scan.runs[0].session],
            early_facts=early_facts(scan, context.settings, context.tools),
            prediction=predictions.get(scan.name),
        )
        workflow.connect(scan_wf, "outputnode.facts", gather, f"in{number}")
    workflow.connect(gather, "out", report, "facts")
    return workflow
