"""Build sub-X.html: everything a person should see of one participant, from the files on disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_text
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.report.alerts import LEVELS, Finding, collect_findings
from bids_gevnet.report.figures.motion import MotionSummary, draw_motion, summarise_motion
from bids_gevnet.report.figures.sphere import draw_profile
from bids_gevnet.report.methods_text import describe_methods
from bids_gevnet.report.page import render_page, show
from bids_gevnet.report.scan_files import (
    ScanEvidence,
    find_scans,
    read_crashes,
    read_gradients,
    read_settings,
    read_table,
)
from bids_gevnet.report.subject.correction import describe_corrections
from bids_gevnet.report.subject.sections import (
    Glyph,
    glyphs,
    gradient_view,
    mask_slices,
    overlay_slices,
    read_prediction,
    read_template_space,
    rish_maps,
)
from bids_gevnet.settings import B0_THRESHOLD
from bids_gevnet.versions import list_versions


def build_subject_report(output_dir: Path, label: str) -> Path:
    """Build the report of one participant.

    Parameters
    ----------
    output_dir : Path
        Top of the derivatives.
    label : str
        Of the participant, without `sub-`.

    Returns
    -------
    report : Path
        ``output_dir / sub-<label>.html``; the same bytes for the same files.
    """
    settings = read_settings(output_dir)
    evidence = find_scans(output_dir, label)
    scans = [_describe_scan(scan, settings, number) for number, scan in enumerate(evidence, 1)]
    findings = _participant_findings(output_dir, label, evidence)
    everything = findings + [f for scan in scans for f in scan["findings"]]
    methods = describe_methods(
        [_facts_for_methods(scan, found) for scan, found in zip(evidence, scans, strict=True)]
    )
    page = render_page(
        "subject.html.j2",
        {
            "title": f"sub-{label}",
            "label": label,
            "findings": findings,
            "counts": {level: sum(f.level == level for f in everything) for level in LEVELS},
            "scans": scans,
            "methods": methods,
            "environment": _environment(output_dir),
            "settings": settings,
        },
    )
    path = output_dir / f"sub-{label}.html"
    write_text(path, page)
    return path


def _facts_for_methods(scan: ScanEvidence, described: Mapping[str, Any]) -> dict[str, Any]:
    return {**scan.facts, "prediction": {"exists": True} if described["prediction"] else {}}


def _participant_findings(
    output_dir: Path, label: str, evidence: list[ScanEvidence]
) -> list[Finding]:
    found = [
        Finding("error", f"The stage “{stage}” failed: {message}")
        for stage, message in read_crashes(output_dir, label)
    ]
    if not evidence:
        found.append(Finding("error", f"There is no scan of sub-{label} in the derivatives."))
    return found


def _describe_scan(scan: ScanEvidence, settings: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Compute all sections of one scan; `number` makes its identifiers unique in the page."""
    threshold = settings.get("b0_threshold", B0_THRESHOLD)
    b0_threshold = float(threshold) if isinstance(threshold, int | float) else B0_THRESHOLD
    key = f"s{number}"
    confounds = read_table(scan.native("desc-confounds_timeseries.tsv"))
    motion = None if confounds is None else summarise_motion(confounds)
    space = read_template_space(scan, b0_threshold)
    return {
        "key": key,
        "name": scan.name,
        "evidence": scan,
        "findings": collect_findings(scan, motion),
        "motion": motion,
        "motion_chart": _motion_chart(scan, confounds, motion, b0_threshold, key),
        "displacement_mm": _largest(scan.parts("correction"), "largest_displacement_mm"),
        "corrections": describe_corrections(scan.parts("correction"), key),
        "volumes": None if confounds is None else len(confounds),
        "gradients": gradient_view(scan, b0_threshold),
        "quality": _quality_rows(scan.part("quality")),
        "mask_slices": mask_slices(scan),
        "overlay": overlay_slices(scan, space, settings),
        "glyphs": [
            (glyph, _profile_chart(glyph, f"{key}-profile-{index}"))
            for index, glyph in enumerate(glyphs(scan, space))
        ],
        "rish": rish_maps(space),
        "prediction": read_prediction(scan),
    }


def _motion_chart(
    scan: ScanEvidence,
    confounds: pd.DataFrame | None,
    motion: MotionSummary | None,
    b0_threshold: float,
    key: str,
) -> Markup | None:
    if confounds is None or motion is None:
        return None
    table = read_gradients(scan.native("desc-preproc_dwi.nii.gz"))
    b0 = np.array([], np.intp)
    if table is not None and len(table.bvals) == len(confounds):
        b0 = find_shells(table.bvals, b0_threshold=b0_threshold).b0
    description = (
        f"Head motion over {len(confounds)} volumes. Mean step {motion.mean_mm:.2f} mm, "
        f"largest {motion.largest_mm:.2f} mm; {len(motion.large_steps)} steps are large."
    )
    return draw_motion(confounds, b0, name=f"{key}-motion", description=description)


def _profile_chart(glyph: Glyph, name: str) -> Markup:
    description = (
        "Signal against the angle to the axis of lowest signal, measured and sampled; "
        f"residual {glyph.signal.residual_rms:.3f} root mean square."
    )
    return draw_profile(glyph.signal, name=name, description=description)


def _largest(runs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [float(run[key]) for run in runs if key in run]
    return max(values, default=None)


QUALITY = {
    "snr_b0": ("Signal to noise", "mean b0 in the brain over the noise of the background"),
    "cnr": ("Contrast to noise", "variation over directions over the misfit of the tensor"),
    "tensor_residual": ("Tensor misfit", "median in white matter, as a fraction of b0"),
    "neighbour_correlation": ("Neighbour correlation", "of volumes with nearest directions"),
    "mean_fa_white_matter": ("Mean FA", "of white matter (FA above 0.4)"),
}
"""Measures in the order in which they are shown: name and meaning."""


def _quality_rows(facts: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Name the measures in words; ones this module does not know keep their key."""
    if not facts:
        return []
    known = [(name, show(facts.get(key)), hint) for key, (name, hint) in QUALITY.items()]
    others = sorted(set(facts) - set(QUALITY) - {"warnings", "coherence"})
    return known + [(key.replace("_", " "), show(facts[key]), "") for key in others]


def _environment(output_dir: Path) -> list[tuple[str, str]]:
    """Versions of what made the report, and the container it ran in if there is one."""
    description = read_json(output_dir / "dataset_description.json")
    rows = list(list_versions().items())
    generated = description.get("GeneratedBy")
    first = generated[0] if isinstance(generated, list) and generated else {}
    container = first.get("Container") if isinstance(first, Mapping) else None
    if isinstance(container, Mapping) and container.get("Tag"):
        rows.append(("Container", str(container["Tag"])))
    return rows
