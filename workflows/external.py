"""The group level with ``--model``: a finished model on a labelled dataset, nothing fitted.

    read (per scan) -> score -> evaluate -> report

Who is scored is decided when the workflow is built
(`bids_gevnet.learn.evaluate.external.choose_scored`); `score` leaves out those whose scans turn
out to be copies of training scans.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nipype.pipeline import engine as pe

from bids_gevnet.interfaces.cohort import StoreScan
from bids_gevnet.interfaces.evaluation import EvaluatePredictions, ScoreCohort
from bids_gevnet.interfaces.report import BuildGroupReport
from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.learn.cohort.members import Cohort, cohort_to_json
from bids_gevnet.learn.models.files import WEIGHTS
from bids_gevnet.learn.train.torchrun import Devices
from bids_gevnet.settings import Settings

EXTERNAL_STAGES: Mapping[str, str] = {
    "read": "reading scans",
    "score": "predictions of the model",
    "evaluate": "evaluation",
    "report": "report",
}
"""Names of nodes, as a person would call them."""


@dataclass(frozen=True, kw_only=True)
class ValidationContext:
    """What every node of an external validation may need to know.

    Parameters
    ----------
    output : OutputLayout
    work : WorkLayout
    settings : Settings
    cohort : Cohort
        Those to be scored.
    model : Path
        Folder of the model.
    devices : Devices
    """

    output: OutputLayout
    work: WorkLayout
    settings: Settings
    cohort: Cohort
    model: Path
    devices: Devices


def init_external_wf(study: ValidationContext) -> pe.Workflow:
    """Build the workflow of an external validation."""
    workflow = pe.Workflow(name="group", base_dir=str(study.work.root))
    output, execution = study.output, study.settings.execution
    rows = study.cohort.rows
    read = pe.MapNode(
        StoreScan(
            store=str(study.work.store),
            nside=study.cohort.nside,
            voxel_mm=study.cohort.voxel_mm,
        ),
        iterfield=["image", "mask"],
        name="read",
        overwrite=not study.work.store.is_dir() or None,
        mem_gb=1.0,
    )
    read.inputs.image = [str(row.image) for row in rows]
    read.inputs.mask = [str(row.mask) for row in rows]
    missing = not all(path.is_file() for path in (output.cohort_table, output.predictions_table))
    score = pe.Node(
        ScoreCohort(
            cohort=json.dumps(cohort_to_json(study.cohort), sort_keys=True),
            model=str(study.model),
            weights=str(study.model / WEIGHTS),
            card=str(study.model / "model.json"),
            output_dir=str(output.root),
            adapt=study.settings.learning.adapt,
            threads=execution.processes,
            gpu=study.devices.gpu,
        ),
        name="score",
        # Nipype does not see that somebody removed what a node wrote outside of its folder.
        overwrite=missing or None,
        n_procs=execution.processes,
        mem_gb=2.0,
    )
    evaluate = pe.Node(
        EvaluatePredictions(output_dir=str(output.root), seed=execution.random_seed),
        name="evaluate",
        overwrite=(missing or not output.metrics_file.is_file()) or None,
        mem_gb=1.0,
    )
    report = pe.Node(
        BuildGroupReport(output_dir=str(output.root)),
        name="report",
        overwrite=True,
        n_procs=execution.processes,
        mem_gb=4.0,
    )
    workflow.connect([
        (read, score, [("folder", "folders")]),
        (score, evaluate, [("predictions", "predictions"), ("about", "about")]),
        (evaluate, report, [("metrics", "metrics")]),
    ])  # fmt: skip
    return workflow
