"""Build the correction of one run: conform, then eddy, the model-based corrector, ANTs or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.records import DiffusionRun, FieldmapRun
from bids_gevnet.dwi.phase_encoding import Relation, readout_time, relate
from bids_gevnet.dwi.shells import MIN_DIRECTIONS, find_shells
from bids_gevnet.facts import CorrectionMethod, Susceptibility
from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.correction import CorrectSeries
from bids_gevnet.interfaces.fsl import Eddy, Topup
from bids_gevnet.interfaces.masking import MaskB0s, MaskBrain
from bids_gevnet.interfaces.motion import EstimateMotion
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class OppositeImage:
    """An image with the opposite phase encoding: a field map, or another run.

    Attributes
    ----------
    image : Path
    bval : str
        Its bval file; empty where every volume is a b0.
    metadata : mapping
        Its sidecar.
    direction : str
        Its phase encoding.
    """

    image: Path
    bval: str
    metadata: Mapping[str, Any]
    direction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionPlan:
    """How a run will be corrected.

    Attributes
    ----------
    run : DiffusionRun
    method : {"eddy", "model", "ants", "none"}
    reason : str
        Why the method that was chosen for all runs is ruled out for this one; empty otherwise.
    eddy_currents : bool
        Whether eddy currents will be estimated.
    opposite : tuple of OppositeImage
    susceptibility : str
        "corrected" if a field will be estimated, else why not.
    """

    run: DiffusionRun
    method: CorrectionMethod
    reason: str
    eddy_currents: bool
    opposite: tuple[OppositeImage, ...]
    susceptibility: Susceptibility


def plan_correction(
    run: DiffusionRun,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
) -> CorrectionPlan:
    """Decide how to correct a run.

    Parameters
    ----------
    run : DiffusionRun
    siblings : sequence of DiffusionRun
        All runs of the session; those with the opposite encoding show the distortion.
    settings : PreprocessingSettings
    tools : Tools
    """
    method, reason = tools.correction, ""
    too_few = _too_few_directions(run, settings) if method == "model" else ""
    if too_few and settings.correction == "auto":
        method, reason = "ants", too_few
    opposite = _opposite_images(run, siblings)
    susceptibility: Susceptibility = "corrected"
    if method not in {"eddy", "model"}:
        susceptibility = "not_supported"
    elif run.encoding.is_guess:
        susceptibility = "unknown_direction"
    elif not opposite:
        susceptibility = "no_opposite_b0"
    elif method == "eddy" and tools.topup is None:
        susceptibility = "no_topup"
    return CorrectionPlan(
        run=run,
        method=method,
        reason=reason,
        eddy_currents=method in {"eddy", "model"} and not too_few,
        opposite=opposite,
        susceptibility=susceptibility,
    )


def _too_few_directions(run: DiffusionRun, settings: PreprocessingSettings) -> str:
    """Say why volumes cannot be predicted from each other; nothing where they can."""
    shells = find_shells(read_bval(run.bval), b0_threshold=settings.b0_threshold)
    most = max((shell.n_directions for shell in shells.shells), default=0)
    if most >= MIN_DIRECTIONS:
        return ""
    return (
        f"the largest shell has {most} directions, and predicting volumes from each other takes "
        f"{MIN_DIRECTIONS}; they were registered rigidly instead, without eddy currents"
    )


def _opposite_images(
    run: DiffusionRun, siblings: Sequence[DiffusionRun]
) -> tuple[OppositeImage, ...]:
    """Find the images of the session that are known to have the opposite phase encoding."""
    others: list[DiffusionRun | FieldmapRun] = [
        *run.fieldmaps,
        *(sibling for sibling in siblings if sibling != run),
    ]
    return tuple(
        OppositeImage(
            image=other.image,
            bval=str(other.bval) if isinstance(other, DiffusionRun) else "",
            metadata=other.metadata,
            direction=other.encoding.direction,
        )
        for other in others
        if relate(run.encoding, other.encoding) is Relation.OPPOSITE
    )


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
        Series before resampling (model, ANTs, none) or as eddy left it.
    gradients
        Rotated gradients in world RAS.
    transforms
        Where volumes belong; not set by eddy, which has resampled already.
    confounds, conform_facts, correction_facts, old_to_new
    """
    workflow = pe.Workflow(name=name)
    outputnode = pe.Node(
        niu.IdentityInterface(
            fields=[
                "image",
                "gradients",
                "transforms",
                "confounds",
                "conform_facts",
                "correction_facts",
                "old_to_new",
            ]
        ),
        name="outputnode",
    )
    conform = pe.Node(
        Conform(
            image=str(run.image),
            bval=str(run.bval),
            bvec=str(run.bvec),
            b0_threshold=context.settings.b0_threshold,
        ),
        name="conform",
        mem_gb=2 * mem_gb,
    )
    workflow.connect(
        [(conform, outputnode, [("facts", "conform_facts"), ("old_to_new", "old_to_new")])]
    )
    plan = plan_correction(run, siblings, context.settings, context.tools)
    connect = {
        "eddy": _connect_eddy,
        "model": _connect_model,
        "ants": _connect_rigid,
        "none": _connect_rigid,
    }[plan.method]
    connect(workflow, plan, context, mem_gb)
    return workflow


def _connect_rigid(
    workflow: pe.Workflow, plan: CorrectionPlan, context: ScanContext, mem_gb: float
) -> None:
    """Register every volume rigidly, or leave it where it is."""
    conform, outputnode = (workflow.get_node(name) for name in ("conform", "outputnode"))
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
        (conform, motion, [("image", "image"), ("gradients", "gradients")]),
        (conform, outputnode, [("image", "image")]),
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
    conform, outputnode = (workflow.get_node(name) for name in ("conform", "outputnode"))
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
            why_no_opposite="unknown_direction" if unknown else "no_opposite_b0",
            b0_threshold=context.settings.b0_threshold,
            num_threads=context.threads,
        ),
        name="motion",
        n_procs=context.threads,
        mem_gb=1 + 4 * mem_gb,
    )
    workflow.connect([
        (conform, model, [("image", "image"), ("gradients", "gradients")]),
        (model, outputnode, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("transforms", "transforms"),
            ("confounds", "confounds"),
            ("facts", "correction_facts"),
        ]),
    ])  # fmt: skip


def _connect_eddy(
    workflow: pe.Workflow, plan: CorrectionPlan, context: ScanContext, mem_gb: float
) -> None:
    """Correct with FSL's eddy, after its topup where that can run."""
    program, run = context.tools.eddy, plan.run
    assert program is not None
    conform, outputnode = (workflow.get_node(name) for name in ("conform", "outputnode"))
    eddy = pe.Node(
        Eddy(
            program=str(program.path),
            uses_gpu=program.uses_gpu,
            raw_image=str(run.image),
            direction=run.encoding.direction,
            readout_s=_readout_s(run.metadata, context),
            b0_threshold=context.settings.b0_threshold,
            num_threads=context.threads,
        ),
        name="eddy",
        n_procs=program.threads(context.threads),
        mem_gb=6 * mem_gb,
    )
    workflow.connect([
        (conform, eddy, [("image", "image"), ("gradients", "gradients")]),
        (eddy, outputnode, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("confounds", "confounds"),
            ("facts", "correction_facts"),
        ]),
    ])  # fmt: skip
    if plan.susceptibility == "corrected":
        topup = _topup_node(plan, context, mem_gb)
        # eddy works where topup has put the brain, not where the scanner saw it.
        mask = pe.Node(MaskB0s(), name="rough_mask", mem_gb=1 + mem_gb)
        workflow.connect([
            (topup, eddy, [("base", "topup_base")]),
            (topup, mask, [("unwarped", "image")]),
        ])  # fmt: skip
    else:
        eddy.inputs.why_no_topup = plan.susceptibility
        mask = pe.Node(
            MaskBrain(b0_threshold=context.settings.b0_threshold),
            name="rough_mask",
            mem_gb=2 * mem_gb,
        )
        workflow.connect([(conform, mask, [("image", "image"), ("gradients", "gradients")])])
    workflow.connect([(mask, eddy, [("mask", "mask")])])


def _topup_node(plan: CorrectionPlan, context: ScanContext, mem_gb: float) -> pe.Node:
    """Estimate the susceptibility field with topup."""
    run = plan.run
    first = OppositeImage(
        image=run.image,
        bval=str(run.bval),
        metadata=run.metadata,
        direction=run.encoding.direction,
    )
    images = (first, *plan.opposite)
    return pe.Node(
        Topup(
            program=str(context.tools.topup),
            images=[str(image.image) for image in images],
            bvals=[image.bval for image in images],
            directions=[image.direction for image in images],
            readout_s=[_readout_s(image.metadata, context) for image in images],
            b0_threshold=context.settings.b0_threshold,
            num_threads=context.threads,
        ),
        name="topup",
        n_procs=context.threads,
        mem_gb=1 + mem_gb,
    )


def _readout_s(metadata: Mapping[str, Any], context: ScanContext) -> float:
    return readout_time(metadata, context.settings.fallback_total_readout_time).seconds
