"""All scans of all participants, each participant a workflow of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.bids.scans import Scan, find_scans
from bids_gevnet.dwi.phase_encoding import readout_time
from bids_gevnet.interfaces.report import BuildSubjectReport
from bids_gevnet.interfaces.template import TemplateGrid
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.scan import PredictionPlan, init_scan_wf
from bids_gevnet.workflows.tools import Tools

_SCANNER = ("Manufacturer", "ManufacturersModelName", "MagneticFieldStrength")


def participant_node_name(label: str) -> str:
    """Name of a participant's workflow, as Nipype allows it: a plus sign is none."""
    return f"sub_{label.replace('+', '_')}"


def init_participants_wf(
    participants: Sequence[Participant],
    *,
    output_dir: Path,
    work_dir: Path,
    grid: TemplateGrid,
    settings: PreprocessingSettings,
    tools: Tools,
    threads: int,
    predictions: Mapping[str, PredictionPlan] | None = None,
) -> pe.Workflow:
    """Build the workflow of the participant level.

    Parameters
    ----------
    participants : sequence of Participant
    output_dir, work_dir : Path
    grid : TemplateGrid
        Template and output grid.
    settings : PreprocessingSettings
    tools : Tools
    threads : int
        Threads a node may take.
    predictions : mapping, optional
        Name of a scan to the model it is to be predicted with.
    """
    workflow = pe.Workflow(name="participant", base_dir=str(work_dir))
    for participant in participants:
        workflow.add_nodes([
            init_participant_wf(
                participant,
                output_dir=output_dir,
                grid=grid,
                settings=settings,
                tools=tools,
                threads=threads,
                predictions=predictions or {},
            )
        ])  # fmt: skip
    return workflow


def init_participant_wf(
    participant: Participant,
    *,
    output_dir: Path,
    grid: TemplateGrid,
    settings: PreprocessingSettings,
    tools: Tools,
    threads: int,
    predictions: Mapping[str, PredictionPlan],
) -> pe.Workflow:
    """Build the workflow of one participant: its scans, then one report for all of them."""
    workflow = pe.Workflow(name=participant_node_name(participant.label))
    scans = find_scans(participant, b0_threshold=settings.b0_threshold)
    gather = pe.Node(niu.Merge(len(scans)), name="gather")
    report = pe.Node(
        BuildSubjectReport(output_dir=str(output_dir), label=participant.label),
        name="report",
        mem_gb=1.0,
    )
    sessions = participant.sessions()
    for number, scan in enumerate(scans, start=1):
        scan_wf = init_scan_wf(
            scan,
            siblings=sessions[scan.runs[0].session],
            output_dir=output_dir,
            grid=grid,
            settings=settings,
            tools=tools,
            threads=threads,
            early_facts=early_facts(scan, settings, tools),
            prediction=predictions.get(scan.name),
        )
        workflow.connect(scan_wf, "outputnode.facts", gather, f"in{number}")
    workflow.connect(gather, "out", report, "facts")
    return workflow


def early_facts(scan: Scan, settings: PreprocessingSettings, tools: Tools) -> dict[str, Any]:
    """Note how a scan was acquired and every fallback its metadata make necessary."""
    return {
        "name": scan.name,
        "acquisition": [_acquisition(run, settings) for run in scan.runs],
        "tools": {
            "correction": tools.correction,
            "masking": "otsu" if tools.bet is None else "bet",
            "topup": tools.topup is not None,
        },
    }


def _acquisition(run: DiffusionRun, settings: PreprocessingSettings) -> Mapping[str, Any]:
    encoding = run.encoding
    readout = readout_time(run.metadata, settings.fallback_total_readout_time)
    return {
        "name": run.name,
        "scanner": {key: run.metadata[key] for key in _SCANNER if key in run.metadata},
        "phase_encoding": encoding.direction,
        "phase_encoding_source": encoding.source,
        "phase_encoding_is_guess": encoding.is_guess,
        "readout_s": readout.seconds,
        "readout_source": readout.source,
        "readout_is_dummy": readout.is_dummy,
        "fieldmaps": [fieldmap.image.name for fieldmap in run.fieldmaps],
        "t1w": run.t1w.name if run.t1w else None,
        "notes": list(run.notes),
    }
