"""State what is known about a scan before anything runs, and what would be done to it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.images import read_voxel_mm
from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.bids.scans import Scan
from bids_gevnet.dwi.coherence import COARSEST_MM
from bids_gevnet.dwi.phase_encoding import readout_time
from bids_gevnet.dwi.shells import choose_shell, find_shells
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
    SphereFacts,
    ToolFacts,
)
from bids_gevnet.interfaces.sphere import sampling_facts
from bids_gevnet.interfaces.template import template_label
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.correction import plan_correction
from bids_gevnet.workflows.tools import Tools


def early_facts(scan: Scan, settings: PreprocessingSettings, tools: Tools) -> ScanFacts:
    """State how a scan was acquired and every fallback its metadata make necessary."""
    return ScanFacts(
        name=scan.name,
        acquisition=tuple(_acquisition(run, settings) for run in scan.runs),
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
    template = settings.template
    return replace(
        early_facts(scan, settings, tools),
        correction=tuple(_correction(run, siblings, settings, tools) for run in scan.runs),
        join=JoinFacts(runs=len(scan.runs)),
        mask=MaskFacts(method=tools.masking),
        registration=RegistrationFacts(
            source="b0" if first.t1w is None else "T1w",
            template=DEFAULT_TEMPLATE if template is None else template_label(template),
        ),
        sphere=_sphere(scan, settings),
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


def _acquisition(run: DiffusionRun, settings: PreprocessingSettings) -> AcquisitionFacts:
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


def _correction(
    run: DiffusionRun,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
) -> CorrectionFacts:
    plan = plan_correction(run, siblings, settings, tools)
    return CorrectionFacts(
        method=plan.method,
        program=tools.eddy.path.name if tools.eddy and plan.method == "eddy" else "",
        note=plan.reason,
        eddy_currents=plan.eddy_currents,
        susceptibility=plan.susceptibility,
    )


def _sphere(scan: Scan, settings: PreprocessingSettings) -> SphereFacts:
    bvals = np.concatenate([read_bval(run.bval) for run in scan.runs])
    shells = find_shells(bvals, b0_threshold=settings.b0_threshold)
    try:
        shell = choose_shell(shells, settings.shell)
    except ParticipantError:  # a scan that cannot be sampled must not keep the others waiting
        return SphereFacts()
    return sampling_facts(shell, shells, settings.nside)
