"""Build the correction of a run by the model-based corrector or ANTs, as `correction_plan` has it.

FSL's eddy, which takes all runs of a scan at once, is in `bids_gevnet.workflows.eddy`.
"""

from collections.abc import Sequence

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.dwi.phase_encoding import readout_time
from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.correction import CorrectSeries
from bids_gevnet.interfaces.motion import EstimateMotion
from bids_gevnet.workflows.cleaning import connect_cleaning
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.correction_plan import CorrectionPlan, plan_corrections

CORRECTED_FIELDS = (
    "image",
    "gradients",
    "transforms",
    "confounds",
    "conform_facts",
    "correction_facts",
    "old_to_new",
    "noise",
    "residual",
    "noise_facts",
)
"""What the correction of a run hands on."""


def init_correction_wf(
    run: DiffusionRun,
    context: ScanContext,
    *,
    siblings: Sequence[DiffusionRun],
    mem_gb: float,
    name: str,
) -> pe.Workflow:
    """Build the correction of one run.

    Parameters
    ----------
    run : DiffusionRun
    context : ScanContext
    siblings : sequence of DiffusionRun
        All runs of the session; those with the opposite encoding show the distortion.
    mem_gb : float
        Size of the run in memory as float32.
    name : str

    Outputs
    -------
    image
        Series before resampling.
    gradients
        Rotated gradients in world RAS.
    transforms
        Where volumes belong.
    confounds, conform_facts, correction_facts, old_to_new
    noise, residual, noise_facts
        What denoising removed; not set without it.
    """
    workflow = pe.Workflow(name=name)
    outputnode = correction_outputs()
    conform = conform_node(run, context, mem_gb)
    workflow.connect(
        [(conform, outputnode, [("facts", "conform_facts"), ("old_to_new", "old_to_new")])]
    )
    cleaned = connect_cleaning(workflow, run, context, mem_gb)
    workflow.connect([
        (cleaned, outputnode, [
            ("noise", "noise"),
            ("residual", "residual"),
            ("noise_facts", "noise_facts"),
        ]),
    ])  # fmt: skip
    (plan,) = plan_corrections([run], siblings, context.settings, context.tools)
    connect = _connect_model if plan.method == "model" else _connect_rigid
    connect(workflow, plan, context, mem_gb)
    return workflow


def correction_outputs() -> pe.Node:
    """Return the node that holds what any correction leaves."""
    return pe.Node(niu.IdentityInterface(fields=list(CORRECTED_FIELDS)), name="outputnode")


def conform_node(run: DiffusionRun, context: ScanContext, mem_gb: float) -> pe.Node:
    """Return the node that puts the axes of a run in RAS order."""
    return pe.Node(
        Conform(
            image=str(run.image),
            bval=str(run.bval),
            bvec=str(run.bvec),
            b0_threshold=context.settings.b0_threshold,
        ),
        name="conform",
        mem_gb=2 * mem_gb,
    )


def _connect_rigid(
    workflow: pe.Workflow, plan: CorrectionPlan, context: ScanContext, mem_gb: float
) -> None:
    """Register every volume rigidly, or leave it where it is."""
    cleaned, outputnode = (workflow.get_node(name) for name in ("cleaned", "outputnode"))
    motion = pe.Node(
        EstimateMotion(
            b0_threshold=context.settings.b0_threshold,
            enabled=plan.method != "none",
            reason=plan.reason,
            num_threads=context.threads,
        ),
        name="motion",
        n_procs=context.threads,
        mem_gb=2 * mem_gb,
    )
    workflow.connect([
        (cleaned, motion, [("image", "image"), ("gradients", "gradients")]),
        (cleaned, outputnode, [("image", "image")]),
        (motion, outputnode, [
            ("gradients", "gradients"),
            ("transforms", "transforms"),
            ("confounds", "confounds"),
            ("facts", "correction_facts"),
        ]),
    ])  # fmt: skip


def _connect_model(
    workflow: pe.Workflow, plan: CorrectionPlan, context: ScanContext, mem_gb: float
) -> None:
    """Correct with our own model, and with the b0s of the opposite phase encoding there are."""
    run, fallback_s = plan.run, context.settings.fallback_total_readout_time
    cleaned, outputnode = (workflow.get_node(name) for name in ("cleaned", "outputnode"))
    readout = readout_time(run.metadata, fallback_s)
    others = [readout_time(image.metadata, fallback_s) for image in plan.opposite]
    unknown = plan.susceptibility == "unknown_direction"
    model = pe.Node(
        CorrectSeries(
            raw_image=str(run.image),
            direction=run.encoding.direction,
            slice_direction=str(run.metadata.get("SliceEncodingDirection") or "k"),
            readout_s=readout.seconds,
            opposite_images=[str(image.image) for image in plan.opposite],
            opposite_bvals=[image.bval for image in plan.opposite],
            # Only their ratio matters: a dummy against a real time would be a wrong one.
            opposite_readout_s=[
                readout.seconds if readout.is_dummy or other.is_dummy else other.seconds
                for other in others
            ],
            opposite_certain=[image.certain for image in plan.opposite],
            **({"t1w": str(run.t1w)} if plan.field_from_t1w else {}),
            why_no_opposite="unknown_direction" if unknown else "no_opposite_b0",
            b0_threshold=context.settings.b0_threshold,
            num_threads=context.threads,
            use_gpu=context.tools.gpu,
        ),
        name="motion",
        n_procs=context.threads,
        mem_gb=1 + 4 * mem_gb,
    )
    workflow.connect([
        (cleaned, model, [("image", "image"), ("gradients", "gradients")]),
        (model, outputnode, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("transforms", "transforms"),
            ("confounds", "confounds"),
            ("facts", "correction_facts"),
        ]),
    ])  # fmt: skip
