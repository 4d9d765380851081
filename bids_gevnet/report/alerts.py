"""What a person has to know before anything else: errors, warnings and fallbacks of a scan."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bids_gevnet.report.figures.motion import LARGE_STEP_MM, MotionSummary
from bids_gevnet.report.scan_files import ScanEvidence

LEVELS = ("error", "warning", "note")
_LARGE_SHARE = 0.1
"""Share of large steps above which the motion as such is a warning."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One message: how grave it is, what it says, which section has more about it."""

    level: str
    text: str
    section: str = ""


def collect_findings(scan: ScanEvidence, motion: MotionSummary | None) -> list[Finding]:
    """Gather the findings of a scan, the gravest first, each once."""
    sources = (
        _completeness(scan),
        _acquisition(scan),
        _conform(scan),
        _correction(scan),
        _motion(motion),
        _registration(scan),
        _quality(scan),
    )
    found = dict.fromkeys(finding for source in sources for finding in source)
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _completeness(scan: ScanEvidence) -> Iterator[Finding]:
    if not scan.facts:
        yield Finding(
            "error",
            "The scan is not finished: its facts are missing or cannot be read. Run the same "
            "command again; it goes on where it stopped.",
        )
        return
    expected = [
        *(scan.native(e) for e in ("desc-preproc_dwi.nii.gz", "dwiref.nii.gz",
                                   "desc-brain_mask.nii.gz", "desc-confounds_timeseries.tsv")),
        *(scan.standard(e) for e in ("desc-preproc_dwi.nii.gz", "desc-brain_mask.nii.gz",
                                     "desc-healpix_dwi.nii.gz",
                                     "model-sh_param-rish0_dwimap.nii.gz")),
    ]  # fmt: skip
    for path in expected:
        if not path.exists():
            yield Finding("error", f"The derivative {path.name} is missing.")


def _acquisition(scan: ScanEvidence) -> Iterator[Finding]:
    for run in scan.parts("acquisition"):
        where = f" ({run.get('name', 'a run')})" if len(scan.parts("acquisition")) > 1 else ""
        if run.get("phase_encoding_is_guess"):
            text = run.get("phase_encoding_source") or "assumed, because the sidecar has none"
            yield Finding("warning", f"Phase encoding{where}: {text}.", "acquisition")
        if run.get("readout_is_dummy"):
            text = run.get("readout_source") or "a dummy, because the sidecar has none"
            yield Finding("warning", f"Readout time{where}: {text}.", "acquisition")
        elif "fallback" in str(run.get("readout_source")) or "estimate" in str(
            run.get("readout_source")
        ):
            yield Finding("note", f"Readout time{where}: {run['readout_source']}.", "acquisition")
        for note in run.get("notes", []):
            yield Finding("note", f"Input{where}: {note}.", "acquisition")


def _conform(scan: ScanEvidence) -> Iterator[Finding]:
    for run in scan.parts("conform"):
        if count := run.get("not_finite"):
            yield Finding(
                "warning",
                f"{count} voxels of the raw image were not finite numbers and became zero.",
                "acquisition",
            )


def _correction(scan: ScanEvidence) -> Iterator[Finding]:
    for run in scan.parts("correction"):
        method = run.get("method")
        if run.get("note"):
            yield Finding("warning", f"Motion correction: {run['note']}", "motion")
        if method == "none":
            yield Finding("warning", "Neither motion nor distortions were corrected.", "motion")
        elif method == "ants":
            yield Finding(
                "note",
                "Motion was corrected by rigid registration (ANTs); eddy currents, "
                "susceptibility distortions and lost slices were not. --correction model, or "
                "eddy with FSL installed, corrects these too.",
                "motion",
            )
        elif method in {"eddy", "model"} and not run.get("susceptibility"):
            yield Finding(
                "note",
                "Susceptibility distortions were not corrected: there is no b0 with opposite "
                "phase encoding" + (", or no topup." if method == "eddy" else "."),
                "motion",
            )


def _motion(motion: MotionSummary | None) -> Iterator[Finding]:
    if motion is None:
        return
    if motion.large_steps:
        level = "warning" if motion.largest_mm > 3 * LARGE_STEP_MM else "note"
        count = len(motion.large_steps)
        yield Finding(
            level,
            f"{count} {'volume follows a step' if count == 1 else 'volumes follow steps'} of "
            f"more than {LARGE_STEP_MM:g} mm; the largest is {motion.largest_mm:.2f} mm.",
            "motion",
        )
    if motion.outlier_slices:
        yield Finding(
            "note",
            f"{motion.outlier_slices} slices in {len(motion.volumes_with_outliers)} volumes were "
            "replaced by their prediction.",
            "motion",
        )


def _registration(scan: ScanEvidence) -> Iterator[Finding]:
    facts = scan.part("registration")
    if facts.get("poor"):
        text = facts.get("warning") or facts.get("text") or "the registration looks poor"
        yield Finding("warning", f"Template: {text}.", "template")
    elif facts.get("warning"):
        yield Finding("warning", f"Template: {facts['warning']}", "template")


def _quality(scan: ScanEvidence) -> Iterator[Finding]:
    facts = scan.part("quality")
    coherence = facts.get("coherence")
    if isinstance(coherence, Mapping) and coherence.get("identity_is_best") is False:
        yield Finding("warning", f"Gradients: {_sentence(coherence)}.", "gradients")
    for text in facts.get("warnings", []):
        yield Finding("warning", text, "quality")


def _sentence(coherence: Mapping[str, Any]) -> str:
    return str(coherence.get("text") or "the gradient table does not fit the white matter")
