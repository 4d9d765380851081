"""Build the branch of a scan that another pipeline has preprocessed: take, do not correct."""

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.bids.preprocessed.record import PreprocessedScan
from bids_gevnet.interfaces.preprocessed import TakeSeries
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.correction import CORRECTED_FIELDS


def init_preprocessed_wf(
    scan: PreprocessedScan, context: ScanContext, *, mem_gb: float, name: str
) -> pe.Workflow:
    """Build what stands in for the correction of a run that comes corrected.

    Parameters
    ----------
    scan : PreprocessedScan
    context : ScanContext
    mem_gb : float
        Size of the run in memory as float32.
    name : str

    Outputs
    -------
    image, gradients, confounds, conform_facts, correction_facts, old_to_new
        As those of `init_correction_wf`.
    bvec_fsl
        Directions in FSL's axes, whatever those of the pipeline are.
    """
    workflow = pe.Workflow(name=name)
    outputnode = pe.Node(
        niu.IdentityInterface(fields=[*CORRECTED_FIELDS, "bvec_fsl"]), name="outputnode"
    )
    take = pe.Node(
        TakeSeries(
            image=str(scan.image),
            bval=str(scan.bval),
            bvec=str(scan.bvec),
            bvec_axes=scan.bvec_axes,
            program=str(scan.dataset),
            b0_threshold=context.settings.b0_threshold,
            **({"confounds": str(scan.confounds)} if scan.confounds else {}),
            **({"eddy_base": str(scan.eddy_base)} if scan.eddy_base else {}),
        ),
        name="take",
        mem_gb=0.5 + 2 * mem_gb,
    )
    workflow.connect([
        (take, outputnode, [
            (field, field) for field in ("image", "gradients", "confounds", "conform_facts",
                                         "correction_facts", "old_to_new", "bvec_fsl")
        ]),
    ])  # fmt: skip
    return workflow
