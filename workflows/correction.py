"""Correct one run: conform, then FSL's topup and eddy, or our own model, or ANTs, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.records import DiffusionRun, FieldmapRun
from bids_gevnet.dwi.phase_encoding import Relation, readout_time, relate
from bids_gevnet.dwi.shells import MIN_DIRECTIONS, find_shells
from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.correction import CorrectSeries
from bids_gevnet.interfaces.fsl import Eddy, Topup
from bids_gevnet.interfaces.masking import MaskBrain
from bids_gevnet.interfaces.motion import EstimateMotion
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.tools import Tools


def init_correction_wf(
    run: DiffusionRun,
    *,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
    threads: int,
    mem_gb: float,
    name: str,
) -> pe.Workflow:
    """Build the correction of one run.

    Parameters
    ----------
    run : DiffusionRun
    siblings : sequence of DiffusionRun
        All runs of the session; their b0s tell the distortion where the encoding is opposite.
    settings : PreprocessingSettings
    tools : Tools
    threads : int
        Threads a node may take.
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
            b0_threshold=settings.b0_threshold,
        ),
        name="conform",
        mem_gb=2 * mem_gb,
    )
    workflow.connect(
        [(conform, outputnode, [("facts", "conform_facts"), ("old_to_new", "old_to_new")])]
    )
    too_few = _too_few_directions(run, settings) if settings.correction == "auto" else ""
    if tools.correction == "eddy":
        _connect_eddy(
            workflow, conform, outputnode, run, siblings, settings, tools, threads, mem_gb
        )
    elif tools.correction == "model" and not too_few:
        model = _model_node(run, siblings, settings, threads, mem_gb)
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
    else:
        motion = pe.Node(
            EstimateMotion(
                b0_threshold=settings.b0_threshold,
                enabled=tools.correction != "none",
                reason=too_few,
                num_threads=threads,
            ),
            name="motion",
            n_procs=threads,
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
    return workflow


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


def _model_node(
    run: DiffusionRun,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    threads: int,
    mem_gb: float,
) -> pe.Node:
    """Our own corrector, with the b0s of the opposite phase encoding that there are."""
    opposite = _opposite_images(run, siblings)
    readout = readout_time(run.metadata, settings.fallback_total_readout_time)
    others = [
        readout_time(other.metadata, settings.fallback_total_readout_time) for other in opposite
    ]
    return pe.Node(
        CorrectSeries(
            raw_image=str(run.image),
            direction=run.encoding.direction,
            slice_direction=str(run.metadata.get("SliceEncodingDirection") or "k"),
            readout_s=readout.seconds,
            opposite_images=[str(other.image) for other in opposite],
            opposite_bvals=[_bval(other) for other in opposite],
            # Only their ratio matters: a dummy against a real time would be a wrong one.
            opposite_readout_s=[
                readout.seconds if readout.is_dummy or other.is_dummy else other.seconds
                for other in others
            ],
            b0_threshold=settings.b0_threshold,
            num_threads=threads,
        ),
        name="motion",
        n_procs=threads,
        mem_gb=1 + 4 * mem_gb,
    )


def _readout_s(metadata: Mapping[str, Any], settings: PreprocessingSettings) -> float:
    return readout_time(metadata, settings.fallback_total_readout_time).seconds


def _opposite_images(
    run: DiffusionRun, siblings: Sequence[DiffusionRun]
) -> list[DiffusionRun | FieldmapRun]:
    """Find the images of the session that are known to have the opposite phase encoding."""
    others: list[DiffusionRun | FieldmapRun] = [
        *run.fieldmaps,
        *(sibling for sibling in siblings if sibling != run),
    ]
    return [o for o in others if relate(run.encoding, o.encoding) is Relation.OPPOSITE]


def _bval(image: DiffusionRun | FieldmapRun) -> str:
    """Path of an image's bval file, empty where all volumes are b0s."""
    return str(image.bval) if isinstance(image, DiffusionRun) else ""


def _connect_eddy(
    workflow: pe.Workflow,
    conform: pe.Node,
    outputnode: pe.Node,
    run: DiffusionRun,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
    threads: int,
    mem_gb: float,
) -> None:
    assert tools.eddy is not None
    readout = readout_time(run.metadata, settings.fallback_total_readout_time)
    mask = pe.Node(
        MaskBrain(b0_threshold=settings.b0_threshold), name="rough_mask", mem_gb=2 * mem_gb
    )
    eddy = pe.Node(
        Eddy(
            program=str(tools.eddy.path),
            uses_gpu=tools.eddy.uses_gpu,
            raw_image=str(run.image),
            direction=run.encoding.direction,
            readout_s=readout.seconds,
            num_threads=threads,
        ),
        name="eddy",
        n_procs=tools.eddy.threads(threads),
        mem_gb=6 * mem_gb,
    )
    workflow.connect([
        (conform, mask, [("image", "image"), ("gradients", "gradients")]),
        (conform, eddy, [("image", "image"), ("gradients", "gradients")]),
        (mask, eddy, [("mask", "mask")]),
        (eddy, outputnode, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("confounds", "confounds"),
            ("facts", "correction_facts"),
        ]),
    ])  # fmt: skip
    topup = _topup_node(run, siblings, settings, tools, threads, mem_gb)
    if topup is not None:
        workflow.connect([(topup, eddy, [("base", "topup_base")])])


def _topup_node(
    run: DiffusionRun,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
    threads: int,
    mem_gb: float,
) -> pe.Node | None:
    """Topup, if there is one and b0s of the opposite phase encoding are there for it."""
    opposite = _opposite_images(run, siblings)
    if tools.topup is None or not opposite:
        return None
    images = [run, *opposite]
    return pe.Node(
        Topup(
            program=str(tools.topup),
            images=[str(image.image) for image in images],
            bvals=[_bval(image) for image in images],
            directions=[image.encoding.direction for image in images],
            readout_s=[_readout_s(image.metadata, settings) for image in images],
            b0_threshold=settings.b0_threshold,
            num_threads=threads,
        ),
        name="topup",
        n_procs=threads,
        mem_gb=1 + mem_gb,
    )
