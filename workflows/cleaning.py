"""Build the cleaning of one run: denoising, then Gibbs ringing."""

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.interfaces.cleaning import Denoise, Unring
from bids_gevnet.workflows.cleaning_plan import plan_cleaning
from bids_gevnet.workflows.context import ScanContext


def connect_cleaning(
    workflow: pe.Workflow, run: DiffusionRun, context: ScanContext, mem_gb: float
) -> pe.Node:
    """Clean what the node `conform` of a workflow gives; return the node that holds the result.

    Outputs
    -------
    image, gradients
        The run, cleaned as far as the plan says.
    noise, residual, noise_facts
        What denoising removed; not set without it.
    """
    plan, threads = plan_cleaning(run, context.settings), context.threads
    conform = workflow.get_node("conform")
    cleaned = pe.Node(
        niu.IdentityInterface(fields=["image", "gradients", "noise", "residual", "noise_facts"]),
        name="cleaned",
    )
    last = conform
    if plan.is_denoised:
        denoise = pe.Node(
            Denoise(
                method=plan.denoising,
                b0_threshold=context.settings.b0_threshold,
                num_threads=threads,
            ),
            name="denoise",
            n_procs=threads,
            mem_gb=0.5 + 6 * mem_gb,
        )
        workflow.connect([
            (conform, denoise, [("image", "image"), ("gradients", "gradients")]),
            (denoise, cleaned, [
                ("noise", "noise"),
                ("residual", "residual"),
                ("facts", "noise_facts"),
            ]),
        ])  # fmt: skip
        last = denoise
    if plan.unringing:
        unring = pe.Node(
            Unring(
                raw_image=str(run.image),
                slice_direction=str(run.metadata.get("SliceEncodingDirection") or "k"),
                num_threads=threads,
            ),
            name="unring",
            n_procs=threads,
            mem_gb=0.5 + 2 * mem_gb,
        )
        workflow.connect([(last, unring, [("image", "image")])])
        last = unring
    workflow.connect([
        (last, cleaned, [("image", "image")]),
        (conform, cleaned, [("gradients", "gradients")]),
    ])  # fmt: skip
    return cleaned
