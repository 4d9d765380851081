"""Build the correction of all runs of a scan by FSL: topup where it can run, then one eddy.

Runs of a scan lie on one grid and have the same shells, so that each volume is predicted from all
others of its shell, whichever run they come from; eddy also aligns the runs with each other.
"""

from collections.abc import Sequence

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.dwi.phase_encoding import readout_time
from bids_gevnet.errors import WorkflowBuildError
from bids_gevnet.interfaces.fsl import Eddy
from bids_gevnet.interfaces.masking import MaskB0s, MaskBrain
from bids_gevnet.interfaces.topup import Topup
from bids_gevnet.workflows.cleaning import connect_cleaning
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.correction import conform_node, correction_outputs
from bids_gevnet.workflows.correction_plan import CorrectionPlan, OppositeImage, plan_corrections


def init_eddy_wf(
    runs: Sequence[DiffusionRun],
    context: ScanContext,
    *,
    siblings: Sequence[DiffusionRun],
    mem_gb: float,
    name: str,
) -> pe.Workflow:
    """Build the correction of all runs of a scan by eddy.

    Parameters
    ----------
    runs : sequence of DiffusionRun
    context : ScanContext
    siblings : sequence of DiffusionRun
        All runs of the session; those with the opposite encoding show the distortion.
    mem_gb : float
        Size of all runs in memory as float32.
    name : str

    Outputs
    -------
    image, gradients, confounds, conform_facts, correction_facts, old_to_new
        One per run, as eddy left them.
    noise, residual, noise_facts
        What denoising removed, one per run that was denoised.
    transforms
        Not set: eddy has resampled already.
    """
    workflow = pe.Workflow(name=name)
    outputnode = correction_outputs()
    plans = plan_corrections(runs, siblings, context.settings, context.tools)
    merge = {
        field: pe.Node(niu.Merge(len(runs)), name=f"merge_{field}")
        for field in ("image", "gradients", "noise", "residual", "noise_facts", "facts")
    }
    merge["old_to_new"] = pe.Node(niu.Merge(len(runs), no_flatten=True), name="merge_old_to_new")
    eddy = _eddy_node(plans, context, mem_gb)
    first = None
    for number, run in enumerate(runs, start=1):
        part = pe.Workflow(name=f"run_{number}")
        conform = conform_node(run, context, mem_gb / len(runs))
        part.add_nodes([conform])
        connect_cleaning(part, run, context, mem_gb / len(runs))
        for field, node in merge.items():
            source = "conform" if field in {"facts", "old_to_new"} else "cleaned"
            workflow.connect(part, f"{source}.{field}", node, f"in{number}")
        first = first or part
    workflow.connect([
        (merge["image"], eddy, [("out", "images")]),
        (merge["gradients"], eddy, [("out", "gradients")]),
        (merge["facts"], outputnode, [("out", "conform_facts")]),
        (merge["noise"], outputnode, [("out", "noise")]),
        (merge["residual"], outputnode, [("out", "residual")]),
        (merge["noise_facts"], outputnode, [("out", "noise_facts")]),
        (merge["old_to_new"], outputnode, [("out", "old_to_new")]),
        (eddy, outputnode, [
            ("corrected", "image"),
            ("rotated", "gradients"),
            ("confounds", "confounds"),
            ("facts", "correction_facts"),
        ]),
    ])  # fmt: skip
    if plans[0].susceptibility in {"corrected", "to_be_tried"}:
        topup = _topup_node(plans, context, mem_gb)
        # eddy works where topup has put the brain, not where the scanner saw it.
        mask = pe.Node(MaskB0s(), name="rough_mask", mem_gb=1 + mem_gb)
        workflow.connect([
            (topup, eddy, [
                ("base", "topup_base"),
                ("trials", "encoding_trials"),
                ("field", "field"),
            ]),
            (topup, mask, [("unwarped", "image")]),
        ])  # fmt: skip
    else:
        eddy.inputs.why_no_topup = plans[0].susceptibility
        mask = pe.Node(
            MaskBrain(b0_threshold=context.settings.b0_threshold),
            name="rough_mask",
            mem_gb=2 * mem_gb,
        )
        workflow.connect([
            (first, mask, [("cleaned.image", "image"), ("cleaned.gradients", "gradients")]),
        ])  # fmt: skip
    workflow.connect([(mask, eddy, [("mask", "mask")])])
    return workflow


def _eddy_node(plans: Sequence[CorrectionPlan], context: ScanContext, mem_gb: float) -> pe.Node:
    """Correct motion, eddy currents and outlier slices of all runs with eddy."""
    program = context.tools.eddy
    if program is None:
        raise WorkflowBuildError(
            expected="FSL's eddy, which was planned", found="none", remedy="report this"
        )
    runs = [_as_image(plan) for plan in plans]
    return pe.Node(
        Eddy(
            program=str(program.path),
            use_gpu=program.uses_gpu,
            raw_images=[str(run.image) for run in runs],
            directions=[run.direction for run in runs],
            readout_s=_readouts_s(runs, context),
            b0_threshold=context.settings.b0_threshold,
            num_threads=context.threads,
        ),
        name="eddy",
        n_procs=program.threads(context.threads),
        mem_gb=6 * mem_gb,
    )


def _topup_node(plans: Sequence[CorrectionPlan], context: ScanContext, mem_gb: float) -> pe.Node:
    """Estimate the susceptibility field with topup, from the first b0 of every image there is."""
    images = {run.image: run for run in map(_as_image, plans)}
    for plan in plans:
        for other in plan.opposite:
            images.setdefault(other.image, other)
    return pe.Node(
        Topup(
            program=str(context.tools.topup),
            images=[str(path) for path in images],
            bvals=[image.bval for image in images.values()],
            directions=[image.direction for image in images.values()],
            certain=[image.certain for image in images.values()],
            readout_s=_readouts_s(list(images.values()), context),
            b0_threshold=context.settings.b0_threshold,
            num_threads=context.threads,
        ),
        name="topup",
        n_procs=context.threads,
        mem_gb=1 + mem_gb,
    )


def _as_image(plan: CorrectionPlan) -> OppositeImage:
    run = plan.run
    return OppositeImage(
        image=run.image,
        bval=str(run.bval),
        metadata=run.metadata,
        direction=run.encoding.direction,
    )


def _readouts_s(images: Sequence[OppositeImage], context: ScanContext) -> list[float]:
    """Return readout times; only their ratio matters, so no dummy stands against a real one."""
    fallback_s = context.settings.fallback_total_readout_time
    readouts = [readout_time(image.metadata, fallback_s) for image in images]
    if any(readout.is_dummy for readout in readouts):
        return [readouts[0].seconds] * len(readouts)
    return [readout.seconds for readout in readouts]
