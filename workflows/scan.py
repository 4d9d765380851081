"""Build the workflow of one scan, from its runs to its derivatives, stage after stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.images import check_image
from bids_gevnet.bids.provenance import shared_acquisition, spatial_reference
from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.bids.scans import Scan
from bids_gevnet.facts import ScanFacts
from bids_gevnet.interfaces.cleaning import CorrectBias
from bids_gevnet.interfaces.derivatives import WriteDerivatives
from bids_gevnet.interfaces.fsl import Bet
from bids_gevnet.interfaces.masking import MaskBrain, RefineMask
from bids_gevnet.interfaces.prediction import Harmonise, Predict
from bids_gevnet.interfaces.preprocessed import TakeMask
from bids_gevnet.interfaces.quality import MeasureQuality
from bids_gevnet.interfaces.resampling import ResampleToTemplate
from bids_gevnet.interfaces.runs import JoinRuns
from bids_gevnet.interfaces.sphere import SampleSphere
from bids_gevnet.interfaces.template import RegisterToTemplate
from bids_gevnet.interfaces.tensor import FitTensor
from bids_gevnet.interfaces.uncorrected import AverageUncorrected
from bids_gevnet.settings import ALL_SHELLS
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.correction import init_correction_wf
from bids_gevnet.workflows.eddy import init_eddy_wf
from bids_gevnet.workflows.planned_facts import planned_sphere
from bids_gevnet.workflows.preprocessed import init_preprocessed_wf

STAGES: Mapping[str, str] = {
    "uncorrected": "means before correction",
    "conform": "conform",
    "denoise": "denoising",
    "unring": "Gibbs ringing",
    "motion": "motion correction",
    "take": "take what was preprocessed",
    "topup": "susceptibility field (topup)",
    "rough_mask": "rough brain mask for eddy",
    "eddy": "motion and eddy currents (eddy)",
    "join": "resample in its own space",
    "mask": "brain mask",
    "bias": "bias field",
    "register": "registration to the template",
    "refine": "brain mask with the template's brain",
    "standard": "one interpolation to the template",
    "sphere": "spherical sampling",
    "tensor": "tensor maps",
    "standard_tensor": "tensor maps in template space",
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
    """A trained model, and what it must know about a scan besides its samples.

    Parameters
    ----------
    model : Path
    site, dataset : str
    gains : Path or None
        Gains for a site that the model was not trained on.
    adaptation : str
        What they rest on.
    """

    model: Path
    site: str
    dataset: str
    gains: Path | None = None
    adaptation: str = ""


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
    corrections = _corrections(scan, context, siblings, sizes)
    merge = {
        field: pe.Node(niu.Merge(len(corrections)), name=f"merge_{field}")
        for field in ("image", "gradients", "transforms", "confounds", "conform_facts",
                      "correction_facts")
    }  # fmt: skip
    merge["old_to_new"] = pe.Node(
        niu.Merge(len(corrections), no_flatten=not _takes_all_runs(scan, context)),
        name="merge_old_to_new",
    )
    for number, correction in enumerate(corrections, start=1):
        for field, node in merge.items():
            workflow.connect(correction, f"outputnode.{field}", node, f"in{number}")
    nodes = _stage_nodes(scan, context, native_gb=sum(sizes))
    nodes["derivatives"].inputs.facts = early_facts.to_json()
    _connect_stages(workflow, merge, nodes, outputnode)
    if scan.runs[0].mask is not None:
        workflow.connect(nodes["join"], "old_to_new", nodes["mask"], "old_to_new")
    else:
        workflow.connect(nodes["join"], "gradients", nodes["mask"], "gradients")
    if scan.runs[0].preprocessed is not None:
        bvec = pe.Node(niu.Merge(1), name="merge_bvec")
        workflow.connect(corrections[0], "outputnode.bvec_fsl", bvec, "in1")
        workflow.connect(bvec, "out", nodes["quality"], "raw_bvecs")
    else:
        workflow.connect(nodes["uncorrected"], "means", nodes["derivatives"], "uncorrected")
    _connect_noise(workflow, corrections, early_facts, nodes["derivatives"])
    _connect_bias(workflow, nodes, wanted=bool(early_facts.bias.corrected), native_gb=sum(sizes))
    if prediction is not None:
        _connect_prediction(workflow, nodes, scan, prediction)
    return workflow


def _takes_all_runs(scan: Scan, context: ScanContext) -> bool:
    """Tell whether one call of eddy corrects all runs of the scan."""
    return context.tools.correction == "eddy" and scan.runs[0].preprocessed is None


def _corrections(
    scan: Scan, context: ScanContext, siblings: Sequence[DiffusionRun], sizes: Sequence[float]
) -> list[pe.Workflow]:
    """Build the correction of every run, or of all of them by eddy."""
    if _takes_all_runs(scan, context):
        return [
            init_eddy_wf(scan.runs, context, siblings=siblings, mem_gb=sum(sizes), name="correct")
        ]
    return [
        init_correction_wf(run, context, siblings=siblings, mem_gb=size, name=f"correct_{number}")
        if run.preprocessed is None
        else init_preprocessed_wf(run.preprocessed, context, mem_gb=size, name=f"correct_{number}")
        for number, (run, size) in enumerate(zip(scan.runs, sizes, strict=True), start=1)
    ]


def _connect_noise(
    workflow: pe.Workflow,
    corrections: Sequence[pe.Workflow],
    early_facts: ScanFacts,
    derivatives: pe.Node,
) -> None:
    """Hand on what denoising removed from the runs that were denoised."""
    was_denoised = [plan.is_denoised for plan in early_facts.cleaning]
    if len(corrections) < len(was_denoised):  # eddy takes all runs at once
        was_denoised = [any(was_denoised)]
    denoised = [c for c, chosen in zip(corrections, was_denoised, strict=True) if chosen]
    for field in ("noise", "residual", "noise_facts") if denoised else ():
        merge = pe.Node(niu.Merge(len(denoised)), name=f"merge_{field}")
        for number, correction in enumerate(denoised, start=1):
            workflow.connect(correction, f"outputnode.{field}", merge, f"in{number}")
        workflow.connect(merge, "out", derivatives, field)


def _connect_bias(
    workflow: pe.Workflow, nodes: Mapping[str, pe.Node], *, wanted: bool, native_gb: float
) -> None:
    """Divide the corrected scan by its bias field, where that is asked for.

    What reads the scan in its own space reads it from the identity node `native`.
    """
    join, mask, native = nodes["join"], nodes["mask"], nodes["native"]
    if not wanted:
        workflow.connect([(join, native, [("native", "image"), ("reference", "reference")])])
        return
    bias = pe.Node(CorrectBias(), name="bias", mem_gb=0.5 + 3 * native_gb)
    workflow.connect([
        (join, bias, [("native", "image"), ("reference", "reference")]),
        (mask, bias, [("mask", "mask")]),
        (bias, native, [("image", "image"), ("reference", "reference")]),
        (bias, nodes["standard"], [("field", "bias_field")]),
        (bias, nodes["derivatives"], [("field", "bias_field"), ("facts", "bias_facts")]),
    ])  # fmt: skip


def _connect_prediction(
    workflow: pe.Workflow, nodes: Mapping[str, pe.Node], scan: Scan, plan: PredictionPlan
) -> None:
    harmonise = pe.Node(
        Harmonise(
            model=str(plan.model),
            participant=scan.entities["sub"],
            site=plan.site,
            dataset=plan.dataset,
            **({} if plan.gains is None else {"gains": str(plan.gains)}),
        ),
        name="harmonise",
        mem_gb=2.0,
    )
    predict = pe.Node(
        Predict(model=str(plan.model), site=plan.site, adaptation=plan.adaptation),
        name="predict",
        mem_gb=4.0,
    )
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
    raw_bvecs = [str(run.bvec) for run in scan.runs]
    b0_threshold, bet = settings.b0_threshold, context.tools.bet
    first = scan.runs[0]
    known = first.preprocessed and first.preprocessed.transform_to(grid.label)
    volumes = sum(check_image(run.image)[3] for run in scan.runs)
    standard_gb = grid.n_voxels * volumes * 4 / _BYTES_PER_GB
    own_template = {"template": str(settings.template)} if settings.template else {}
    samples = 6 * settings.nside**2 * max(1, len(planned_sphere(scan, settings).sampled))
    masker = (
        TakeMask(mask=str(first.mask))
        if first.mask is not None
        else MaskBrain(b0_threshold=b0_threshold)
        if bet is None
        else Bet(program=str(bet), b0_threshold=b0_threshold)
    )
    return {
        "uncorrected": pe.Node(
            AverageUncorrected(
                image=str(first.image),
                bval=str(first.bval),
                bvec=str(first.bvec),
                b0_threshold=b0_threshold,
            ),
            name="uncorrected",
            mem_gb=0.5 + native_gb,
        ),
        "join": pe.Node(
            JoinRuns(
                names=[run.name for run in scan.runs],
                aligned=_takes_all_runs(scan, context),
                b0_threshold=b0_threshold,
                num_threads=threads,
            ),
            name="join",
            n_procs=threads,
            mem_gb=0.5 + 3 * native_gb,
        ),
        "native": pe.Node(
            niu.IdentityInterface(fields=["image", "reference"]), name="native"
        ),
        "mask": pe.Node(masker, name="mask", mem_gb=0.5 + native_gb),
        "register": pe.Node(
            RegisterToTemplate(
                **own_template,
                **({"t1w": str(first.t1w)} if first.t1w else {}),
                **({"transform": str(known)} if known else {}),
            ),
            name="register",
            mem_gb=1.0,
        ),
        "refine": pe.Node(
            RefineMask(b0_threshold=b0_threshold, **own_template),
            name="refine",
            mem_gb=0.5 + native_gb,
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
                nside=settings.nside,
                shells=list(settings.shell) if isinstance(settings.shell, tuple) else [],
                all_shells=settings.shell == ALL_SHELLS,
                b0_threshold=b0_threshold,
            ),
            name="sphere",
            mem_gb=0.5 + 4 * grid.n_voxels * samples * 4 / _BYTES_PER_GB,
        ),
        "tensor": pe.Node(
            FitTensor(b0_threshold=b0_threshold), name="tensor", mem_gb=0.5 + native_gb
        ),
        "standard_tensor": pe.Node(
            FitTensor(b0_threshold=b0_threshold), name="standard_tensor", mem_gb=0.5 + standard_gb
        ),
        "quality": pe.Node(
            MeasureQuality(
                raw_images=[str(run.image) for run in scan.runs],
                raw_bvals=[str(run.bval) for run in scan.runs],
                **({} if first.preprocessed else {"raw_bvecs": raw_bvecs}),
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
                sources=[run.uri for run in scan.runs],
                **_named_sources(first),
                acquisition=shared_acquisition([run.metadata for run in scan.runs]),
                spatial_reference=spatial_reference(grid.label, settings.template),
                num_threads=threads,
            ),
            name="derivatives",
            overwrite=True,  # Nipype does not see that somebody removed what it wrote
            n_procs=threads,
            mem_gb=0.5 + standard_gb + native_gb,
        ),
    }  # fmt: skip


def _named_sources(run: DiffusionRun) -> dict[str, str]:
    """Name the mask and the transform that were given with a scan, as far as there are any."""
    transform = None if run.preprocessed is None else run.preprocessed.transform
    given = {"mask_source": run.mask, "transform_source": transform}
    return {key: run.uri_of(path) for key, path in given.items() if path is not None}


def _connect_stages(
    workflow: pe.Workflow,
    merge: Mapping[str, pe.Node],
    nodes: Mapping[str, pe.Node],
    outputnode: pe.Node,
) -> None:
    join, mask, register = nodes["join"], nodes["mask"], nodes["register"]
    refine = nodes["refine"]
    standard, sphere, quality = nodes["standard"], nodes["sphere"], nodes["quality"]
    native = nodes["native"]
    tensor, standard_tensor = nodes["tensor"], nodes["standard_tensor"]
    derivatives = nodes["derivatives"]
    workflow.connect([
        (merge["image"], join, [("out", "images")]),
        (merge["gradients"], join, [("out", "gradients")]),
        (merge["transforms"], join, [("out", "transforms")]),
        (merge["confounds"], join, [("out", "confounds")]),
        (merge["old_to_new"], join, [("out", "old_to_new")]),
        (join, mask, [("native", "image")]),
        (native, register, [("reference", "image")]),
        (join, register, [("old_to_new", "old_to_new")]),
        (mask, register, [("mask", "mask")]),
        (join, standard, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("transforms", "transforms"),
        ]),
        (join, refine, [("native", "image"), ("gradients", "gradients")]),
        (mask, refine, [("mask", "mask"), ("facts", "mask_facts")]),
        (register, refine, [("to_template", "to_template"), ("facts", "registration_facts")]),
        (refine, standard, [("mask", "mask")]),
        (register, standard, [("to_template", "to_template")]),
        (standard, sphere, [("image", "image"), ("gradients", "gradients"), ("mask", "mask")]),
        (native, quality, [("image", "image")]),
        (join, quality, [("gradients", "gradients"), ("kept", "kept")]),
        (refine, quality, [("mask", "mask")]),
        (native, tensor, [("image", "image")]),
        (join, tensor, [("gradients", "gradients")]),
        (refine, tensor, [("mask", "mask")]),
        (standard, standard_tensor, [
            ("image", "image"),
            ("gradients", "gradients"),
            ("mask", "mask"),
        ]),
        (merge["conform_facts"], derivatives, [("out", "conform_facts")]),
        (merge["correction_facts"], derivatives, [("out", "correction_facts")]),
        (native, derivatives, [("image", "native"), ("reference", "reference")]),
        (join, derivatives, [
            ("gradients", "native_gradients"),
            ("confounds", "confounds"),
            ("facts", "join_facts"),
        ]),
        (refine, derivatives, [("mask", "mask"), ("facts", "mask_facts")]),
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
        (tensor, derivatives, [("maps", "tensor"), ("facts", "tensor_facts")]),
        (standard_tensor, derivatives, [("maps", "standard_tensor")]),
        (quality, derivatives, [("facts", "quality_facts")]),
        (derivatives, outputnode, [("facts", "facts")]),
    ])  # fmt: skip
