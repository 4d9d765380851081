"""Build the workflow of one scan, from its runs to its derivatives, stage after stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.images import check_image
from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.bids.scans import Scan
from bids_gevnet.facts import ScanFacts
from bids_gevnet.interfaces.derivatives import WriteDerivatives
from bids_gevnet.interfaces.fsl import Bet
from bids_gevnet.interfaces.masking import MaskBrain
from bids_gevnet.interfaces.prediction import Harmonise, Predict
from bids_gevnet.interfaces.quality import MeasureQuality
from bids_gevnet.interfaces.resampling import ResampleToTemplate
from bids_gevnet.interfaces.runs import JoinRuns
from bids_gevnet.interfaces.sphere import SampleSphere
from bids_gevnet.interfaces.template import RegisterToTemplate
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.correction import init_correction_wf

STAGES: Mapping[str, str] = {
    "conform": "conform",
    "motion": "motion correction",
    "topup": "susceptibility field (topup)",
    "eddy": "motion and eddy currents (eddy)",
    "join": "resample in its own space",
    "mask": "brain mask",
    "register": "registration to the template",
    "standard": "one interpolation to the template",
    "sphere": "spherical sampling",
    "quality": "quality measures",
    "harmonise": "harmonisation with the model's gains",
    "predict": "prediction",
    "derivatives": "derivatives",
    "report": "report",
}
"""Names of nodes, as a person would call them."""

_BYTES_PER_GB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPlan:
    """A trained model, and what it must know about a scan besides its samples."""

    model: Path
    site: str
    dataset: str


def init_scan_wf(
    scan: Scan,
    context: ScanContext,
    *,
    siblings: Sequence[DiffusionRun],
    early_facts: ScanFacts,
    prediction: PredictionPlan | None = None,
) -> pe.Workflow:
    """Build the workflow of one scan.

    Parameters
    ----------
    scan : Scan
    context : ScanContext
    siblings : sequence of DiffusionRun
        All runs of the scan's session.
    early_facts : ScanFacts
        What is known before anything runs: acquisition, fallbacks, tools.
    prediction : PredictionPlan, optional
        The model to predict with.

    Outputs
    -------
    facts
        File with all that the report says about the scan.
    """
    workflow = pe.Workflow(name=scan.node_name)
    outputnode = pe.Node(niu.IdentityInterface(fields=["facts"]), name="outputnode")
    sizes = [_size_gb(run) for run in scan.runs]
    corrections = [
        init_correction_wf(run, context, siblings=siblings, mem_gb=size, name=f"correct_{number}")
        for number, (run, size) in enumerate(zip(scan.runs, sizes, strict=True), start=1)
    ]
    merge = {
        field: pe.Node(niu.Merge(len(corrections)), name=f"merge_{field}")
        for field in ("image", "gradients", "transforms", "confounds", "conform_facts",
                      "correction_facts")
    }  # fmt: skip
    for number, correction in enumerate(corrections, start=1):
        for field, node in merge.items():
            workflow.connect(correction, f"outputnode.{field}", node, f"in{number}")
    nodes = _stage_nodes(scan, context, native_gb=sum(sizes))
    nodes["derivatives"].inputs.facts = early_facts.to_json()
    workflow.connect(corrections[0], "outputnode.old_to_new", nodes["register"], "old_to_new")
    _connect_stages(workflow, merge, nodes, outputnode)
    if prediction is not None:
        _connect_prediction(workflow, nodes, scan, prediction)
    return workflow


def _connect_prediction(
    workflow: pe.Workflow, nodes: Mapping[str, pe.Node], scan: Scan, plan: PredictionPlan
) -> None:
    harmonise = pe.Node(
        Harmonise(
            model=str(plan.model),
            participant=scan.entities["sub"],
            site=plan.site,
            dataset=plan.dataset,
        ),
        name="harmonise",
        mem_gb=2.0,
    )
    predict = pe.Node(Predict(model=str(plan.model), site=plan.site), name="predict", mem_gb=4.0)
    workflow.connect([
        (nodes["sphere"], harmonise, [("samples", "samples")]),
        (nodes["standard"], harmonise, [("mask", "mask")]),
        (harmonise, predict, [("samples", "samples"), ("harmonised", "harmonised")]),
        (nodes["standard"], predict, [("mask", "mask")]),
        (nodes["join"], predict, [("confounds", "confounds")]),
        (predict, nodes["derivatives"], [
            ("table", "prediction"),
            ("facts", "prediction_facts"),
        ]),
    ])  # fmt: skip


def _size_gb(run: DiffusionRun) -> float:
    """Size of a run in memory as float32."""
    x, y, z, volumes = check_image(run.image)
    return x * y * z * volumes * 4 / _BYTES_PER_GB


def _stage_nodes(scan: Scan, context: ScanContext, *, native_gb: float) -> dict[str, pe.Node]:
    settings, grid, threads = context.settings, context.grid, context.threads
    b0_threshold, bet = settings.b0_threshold, context.tools.bet
    first = scan.runs[0]
    volumes = sum(check_image(run.image)[3] for run in scan.runs)
    standard_gb = grid.n_voxels * volumes * 4 / _BYTES_PER_GB
    masker = (
        MaskBrain(b0_threshold=b0_threshold)
        if bet is None
        else Bet(program=str(bet), b0_threshold=b0_threshold)
    )
    return {
        "join": pe.Node(
            JoinRuns(
                names=[run.name for run in scan.runs],
                b0_threshold=b0_threshold,
                num_threads=threads,
            ),
            name="join",
            n_procs=threads,
            mem_gb=0.5 + 3 * native_gb,
        ),
        "mask": pe.Node(masker, name="mask", mem_gb=0.5 + native_gb),
        "register": pe.Node(
            RegisterToTemplate(
                **({"template": str(settings.template)} if settings.template else {}),
                **({"t1w": str(first.t1w)} if first.t1w else {}),
            ),
            name="register",
            mem_gb=1.0,
        ),
        "standard": pe.Node(
            ResampleToTemplate(
                grid_shape=list(grid.shape), grid_affine=grid.affine_rows, num_threads=threads
            ),
            name="standard",
            n_procs=threads,
            mem_gb=0.5 + 2 * standard_gb,
        ),
        "sphere": pe.Node(
            SampleSphere(
                nside=settings.nside, shell=settings.shell, b0_threshold=b0_threshold
            ),
            name="sphere",
            mem_gb=0.5 + 4 * grid.n_voxels * 6 * settings.nside**2 * 4 / _BYTES_PER_GB,
        ),
        "quality": pe.Node(
            MeasureQuality(
                raw_images=[str(run.image) for run in scan.runs],
                raw_bvals=[str(run.bval) for run in scan.runs],
                raw_bvecs=[str(run.bvec) for run in scan.runs],
                b0_threshold=b0_threshold,
            ),
            name="quality",
            mem_gb=1 + 2 * native_gb,
        ),
        "derivatives": pe.Node(
            WriteDerivatives(
                output_dir=str(context.output_dir),
                entities=dict(scan.entities),
                template=grid.label,
                resolution_mm=settings.output_resolution,
                sources=[f"bids:raw:{run.relative_image}" for run in scan.runs],
                num_threads=threads,
            ),
            name="derivatives",
            overwrite=True,  # Nipype does not see that somebody removed what it wrote
            n_procs=threads,
            mem_gb=0.5 + standard_gb + native_gb,
        ),
    }  # fmt: skip


def _connect_stages(
    workflow: pe.Workflow,
    merge: Mapping[str, pe.Node],
    nodes: Mapping[str, pe.Node],
    outputnode: pe.Node,
) -> None:
    join, mask, register = nodes["join"], nodes["mask"], nodes["register"]
    standard, sphere, quality = nodes["standard"], nodes["sphere"], nodes["quality"]
    derivatives = nodes["derivatives"]
    workflow.connect([
        (merge["image"], join, [("out", "images")]),
        (merge["gradients"], join, [("out", "gradients")]),
        (merge["transforms"], join, [("out", "transforms")]),
        (merge["confounds"], join, [("out", "confounds")]),
        (join, mask, [("native", "image"), ("gradients", "gradients")]),
        (join, register, [("reference", "image")]),
        (mask, register, [("mask", "mask")]),
        (join, standard, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("transforms", "transforms"),
        ]),
        (mask, standard, [("mask", "mask")]),
        (register, standard, [("to_template", "to_template")]),
        (standard, sphere, [("image", "image"), ("gradients", "gradients"), ("mask", "mask")]),
        (join, quality, [("native", "image"), ("gradients", "gradients")]),
        (mask, quality, [("mask", "mask")]),
        (merge["conform_facts"], derivatives, [("out", "conform_facts")]),
        (merge["correction_facts"], derivatives, [("out", "correction_facts")]),
        (join, derivatives, [
            ("native", "native"),
            ("gradients", "native_gradients"),
            ("reference", "reference"),
            ("confounds", "confounds"),
            ("facts", "join_facts"),
        ]),
        (mask, derivatives, [("mask", "mask"), ("facts", "mask_facts")]),
        (register, derivatives, [
            ("to_template", "to_template"),
            ("facts", "registration_facts"),
        ]),
        (standard, derivatives, [
            ("image", "standard"),
            ("gradients", "standard_gradients"),
            ("mask", "standard_mask"),
            ("facts", "standard_facts"),
        ]),
        (sphere, derivatives, [
            ("samples", "samples"),
            ("rish", "rish"),
            ("degrees", "degrees"),
            ("facts", "sphere_facts"),
        ]),
        (quality, derivatives, [("facts", "quality_facts")]),
        (derivatives, outputnode, [("facts", "facts")]),
    ])  # fmt: skip
