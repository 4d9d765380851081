"""State what is known about a scan before anything runs, and what would be done to it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.bids.images import read_voxel_mm
from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.bids.scans import Scan, scan_gradients
from bids_gevnet.bids.templates import template_label
from bids_gevnet.dwi.coherence import COARSEST_MM
from bids_gevnet.dwi.phase_encoding import readout_time
from bids_gevnet.dwi.shells import choose_shells, find_shells
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import (
    AcquisitionFacts,
    CorrectionFacts,
    GradientCheck,
    JoinFacts,
    MaskFacts,
    PredictionFacts,
    QualityFacts,
    RegistrationFacts,
    ScanFacts,
    ScannerFacts,
    SourceFacts,
    SphereFacts,
    TensorFacts,
    ToolFacts,
)
from bids_gevnet.interfaces.sphere import sampling_facts
from bids_gevnet.interfaces.tensor import tensor_facts
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.cleaning_plan import plan_bias, plan_cleaning
from bids_gevnet.workflows.correction_plan import CorrectionPlan, plan_corrections
from bids_gevnet.workflows.tools import Tools


def early_facts(scan: Scan, settings: PreprocessingSettings, tools: Tools) -> ScanFacts:
    """State how a scan was acquired and every fallback its metadata make necessary."""
    return ScanFacts(
        name=scan.name,
        source=_source(scan, _template(settings)),
        acquisition=tuple(_acquisition(run, settings) for run in scan.runs),
        cleaning=tuple(plan_cleaning(run, settings) for run in scan.runs),
        bias=plan_bias(scan.runs[0], settings),
        tools=ToolFacts(
            correction=tools.correction,
            masking=tools.masking,
            topup=tools.topup is not None,
        ),
    )


def planned_facts(
    scan: Scan,
    *,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
    network: str = "",
) -> ScanFacts:
    """State what would be done to a scan, as far as it can be known without doing it.

    Parameters
    ----------
    scan : Scan
    siblings : sequence of DiffusionRun
        All runs of the scan's session.
    settings : PreprocessingSettings
    tools : Tools
    network : str
        Network of the model to predict with; empty without a model.
    """
    first = scan.runs[0]
    template = _template(settings)
    known = first.preprocessed and first.preprocessed.transform_to(template)
    return replace(
        early_facts(scan, settings, tools),
        correction=_corrections(scan, siblings, settings, tools),
        join=JoinFacts(runs=len(scan.runs)),
        mask=MaskFacts(method=tools.masking, refined=tools.masking == "otsu")
        if first.mask is None
        else MaskFacts(method="given", source=first.mask.name),
        registration=RegistrationFacts(
            source="transform" if known else "b0" if first.t1w is None else "T1w",
            template=template,
        ),
        sphere=planned_sphere(scan, settings),
        tensor=_tensor(scan, settings),
        quality=QualityFacts(
            gradient_checks=tuple(
                GradientCheck(
                    outcome="undecided"
                    if max(read_voxel_mm(run.image)) > COARSEST_MM
                    else "planned"
                )
                for run in scan.runs
            )
        ),
        prediction=PredictionFacts(network=network) if network else None,
    )


def _template(settings: PreprocessingSettings) -> str:
    """Label of the template that was asked for."""
    return DEFAULT_TEMPLATE if settings.template is None else template_label(settings.template)


def _source(scan: Scan, template: str) -> SourceFacts:
    """Say which pipeline has preprocessed a scan, and what is taken from it."""
    taken_from = scan.runs[0].preprocessed
    if taken_from is None:
        return SourceFacts()
    taken = {
        "the corrected series and its gradients": taken_from.image,
        "the brain mask": taken_from.mask if scan.runs[0].mask == taken_from.mask else None,
        f"the transform to {taken_from.template}": taken_from.transform_to(template),
        "the motion of each volume": taken_from.confounds or taken_from.eddy_base,
        "its quality figures": taken_from.quality or None,
    }
    return SourceFacts(
        pipeline=taken_from.dataset.pipeline,
        title=taken_from.dataset.title,
        version=taken_from.dataset.version,
        image=taken_from.relative_image,
        bvec_axes=taken_from.bvec_axes,
        taken=tuple(phrase for phrase, path in taken.items() if path is not None),
        measures=taken_from.quality,
        report=taken_from.report.name if taken_from.report else "",
    )


def _acquisition(run: DiffusionRun, settings: PreprocessingSettings) -> AcquisitionFacts:
    if run.preprocessed is not None:  # its distortions are corrected, so nobody asks for more
        return AcquisitionFacts(
            name=run.name,
            scanner=_scanner(run.metadata),
            t1w=run.t1w.name if run.t1w else "",
            notes=run.notes,
        )
    encoding = run.encoding
    readout = readout_time(run.metadata, settings.fallback_total_readout_time)
    # Only the words of the source tell a stated time from an estimated or given one.
    is_fallback = any(word in readout.source for word in ("estimate", "fallback"))
    return AcquisitionFacts(
        name=run.name,
        scanner=_scanner(run.metadata),
        phase_encoding=encoding.direction,
        phase_encoding_source=encoding.source,
        phase_encoding_is_guess=encoding.is_guess,
        readout_s=readout.seconds,
        readout_source=readout.source,
        readout_is_dummy=readout.is_dummy,
        readout_is_fallback=is_fallback and not readout.is_dummy,
        fieldmaps=tuple(fieldmap.image.name for fieldmap in run.fieldmaps),
        t1w=run.t1w.name if run.t1w else "",
        notes=run.notes,
    )


def _scanner(metadata: Any) -> ScannerFacts:
    """Read the scanner from a sidecar, which may hold anything."""
    strength = metadata.get("MagneticFieldStrength")
    known = isinstance(strength, int | float) and not isinstance(strength, bool)
    return ScannerFacts(
        manufacturer=str(metadata.get("Manufacturer") or ""),
        model=str(metadata.get("ManufacturersModelName") or ""),
        field_strength_t=float(strength) if known and np.isfinite(strength) else None,
    )


def _corrections(
    scan: Scan,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
) -> tuple[CorrectionFacts, ...]:
    plans = plan_corrections(scan.runs, siblings, settings, tools)
    return tuple(
        _correction(plan, tools)
        if run.preprocessed is None
        else CorrectionFacts(method="preprocessed", program=str(run.preprocessed.dataset))
        for run, plan in zip(scan.runs, plans, strict=True)
    )


def _correction(plan: CorrectionPlan, tools: Tools) -> CorrectionFacts:
    return CorrectionFacts(
        method=plan.method,
        program=tools.eddy.path.name if tools.eddy and plan.method == "eddy" else "",
        note=plan.reason,
        eddy_currents=plan.eddy_currents,
        susceptibility=plan.susceptibility,
        field_from_t1w=plan.field_from_t1w,
    )


def _tensor(scan: Scan, settings: PreprocessingSettings) -> TensorFacts:
    bvals, bvecs = scan_gradients(scan, b0_threshold=settings.b0_threshold)
    try:
        return tensor_facts(find_shells(bvals, b0_threshold=settings.b0_threshold), bvecs)
    except ParticipantError:  # as below
        return TensorFacts()


def planned_sphere(scan: Scan, settings: PreprocessingSettings) -> SphereFacts:
    """State which shells of a scan go on the sphere; nothing if it has none that fit."""
    bvals, bvecs = scan_gradients(scan, b0_threshold=settings.b0_threshold)
    shells = find_shells(bvals, b0_threshold=settings.b0_threshold)
    try:
        chosen = choose_shells(shells, settings.shell)
    except ParticipantError:  # a scan that cannot be sampled must not keep the others waiting
        return SphereFacts()
    return sampling_facts(chosen, shells, settings.nside, bvecs)
