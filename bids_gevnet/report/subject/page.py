"""Build sub-X.html: what a person should see of one participant, from the files on disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from bids_gevnet.bids.derivatives import CONFOUNDS, FACTS, SERIES, prediction_ending
from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_text
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.facts import CorrectionFacts, QualityFacts
from bids_gevnet.layout import OutputLayout
from bids_gevnet.report.alerts import LEVELS, Alert, collect_alerts
from bids_gevnet.report.cleaning_methods import describe_denoising, describe_unringing
from bids_gevnet.report.correction_methods import (
    describe_correction,
    describe_susceptibility,
)
from bids_gevnet.report.figures.direction_colours import draw_direction_key
from bids_gevnet.report.figures.drawing import colour_bar
from bids_gevnet.report.figures.motion import MotionSummary, draw_motion, summarise_motion
from bids_gevnet.report.figures.resources import draw_resources
from bids_gevnet.report.figures.sphere import GLYPH_COLOURS, draw_profile
from bids_gevnet.report.methods_text import describe_methods
from bids_gevnet.report.page import render_page, show
from bids_gevnet.report.scan_files import (
    ScanFiles,
    find_scans,
    read_failed_stages,
    read_gradients,
    read_settings,
    read_table,
)
from bids_gevnet.report.subject.comparison import compare, measure, read_others
from bids_gevnet.report.subject.correction import describe_corrections
from bids_gevnet.report.subject.crossings import show_crossings
from bids_gevnet.report.subject.native_pictures import (
    NativeSpace,
    before_and_after,
    carpet,
    direction_colours,
    read_native_space,
    removed_noise,
)
from bids_gevnet.report.subject.sections import (
    Glyph,
    glyphs,
    gradient_view,
    mask_slices,
    overlay_slices,
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
    files = find_scans(output_dir, label)
    others = read_others(output_dir, label)
    scans = [
        _describe_scan(scan, settings, number)
        | {"comparison": compare(measure(scan.native(FACTS)), others)}
        for number, scan in enumerate(files, 1)
    ]
    alerts = _participant_alerts(output_dir, label, files)
    levels = [
        alert.level for part in (alerts, *(scan["alerts"] for scan in scans)) for alert in part
    ]
    page = render_page(
        "subject.html.j2",
        {
            "title": f"sub-{label}",
            "label": label,
            "alerts": alerts,
            "counts": {level: levels.count(level) for level in LEVELS},
            "scans": scans,
            "direction_keys": [
                (name, draw_direction_key(axis))
                for axis, name in ((2, "axial"), (1, "coronal"), (0, "sagittal"))
            ],
            "methods": describe_methods([scan.facts for scan in files]),
            "resources": _resources(output_dir, label),
            "environment": _environment(output_dir),
            "settings": settings,
        },
    )
    path = output_dir / f"sub-{label}.html"
    write_text(path, page)
    return path


def _voxel_mm(native: NativeSpace | None) -> Sequence[float]:
    """Voxel size of the scan, for the shape of pixels."""
    return (1.0, 1.0, 1.0) if native is None else voxel_sizes(native.b0.affine).tolist()


def _resources(output_dir: Path, label: str) -> Markup | None:
    """Draw time and memory of the stages, if the run recorded them."""
    table = read_table(OutputLayout(output_dir).resources(label))
    return None if table is None else draw_resources(table, name="resources")


def _participant_alerts(output_dir: Path, label: str, scans: Sequence[ScanFiles]) -> list[Alert]:
    alerts = [
        Alert("error", f"The stage “{stage}” failed: {message}")
        for stage, message in read_failed_stages(output_dir, label)
    ]
    if not scans:
        alerts.append(Alert("error", f"There is no scan of sub-{label} in the derivatives."))
    return alerts


def _describe_scan(scan: ScanFiles, settings: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Compute all sections of one scan; `number` makes its identifiers unique in the page."""
    threshold = settings.get("b0_threshold", B0_THRESHOLD)
    b0_threshold = float(threshold) if isinstance(threshold, int | float) else B0_THRESHOLD
    key = f"s{number}"
    confounds = read_table(scan.native(CONFOUNDS))
    motion = None if confounds is None else summarise_motion(confounds)
    space = read_template_space(scan, b0_threshold)
    native = read_native_space(scan, b0_threshold)
    return {
        "key": key,
        "name": scan.name,
        "files": scan,
        "facts": scan.facts,
        "alerts": collect_alerts(scan, motion),
        "motion": motion,
        "motion_chart": _motion_chart(scan, confounds, motion, b0_threshold, key),
        "colours": direction_colours(scan),
        "before_after": before_and_after(scan, native),
        "noise": removed_noise(scan),
        "carpet": carpet(native, confounds, key),
        "displacement_mm": _largest_displacement_mm(scan.facts.correction),
        "what_was_cleaned": [
            (describe_denoising(run), describe_unringing(run)) for run in scan.facts.cleaning
        ],
        "what_was_corrected": [
            (describe_correction(run), describe_susceptibility(run))
            for run in scan.facts.correction
        ],
        "corrections": describe_corrections(scan.facts.correction, key, _voxel_mm(native)),
        "volumes": None if confounds is None else len(confounds),
        "gradients": gradient_view(scan, b0_threshold),
        "quality": _quality_rows(scan.facts.quality),
        "mask_slices": mask_slices(scan),
        "overlay": overlay_slices(scan, space, settings),
        "glyphs": [
            (glyph, _profile_chart(glyph, f"{key}-profile-{index}"))
            for index, glyph in enumerate(glyphs(scan, space))
        ],
        "glyph_bar": colour_bar(GLYPH_COLOURS),
        "crossings": show_crossings(scan, space),
        "rish": rish_maps(scan, space),
        "prediction_file": _prediction_file(scan),
    }


def _motion_chart(
    scan: ScanFiles,
    confounds: pd.DataFrame | None,
    motion: MotionSummary | None,
    b0_threshold: float,
    key: str,
) -> Markup | None:
    if confounds is None or motion is None:
        return None
    table = read_gradients(scan.native(SERIES))
    b0 = np.array([], np.intp)
    if table is not None and len(table.bvals) == len(confounds):
        b0 = find_shells(table.bvals, b0_threshold=b0_threshold).b0
    description = (
        f"Head motion over {len(confounds)} volumes. Framewise displacement: mean "
        f"{motion.mean_mm:.2f} mm, largest {motion.largest_mm:.2f} mm, large in "
        f"{len(motion.large_displacements)} volumes."
    )
    return draw_motion(confounds, b0, name=f"{key}-motion", description=description)


def _profile_chart(glyph: Glyph, name: str) -> Markup:
    description = (
        "Signal against the angle to the axis of lowest signal, measured and sampled; "
        f"residual {glyph.signal.residual_rms:.3f} root mean square."
    )
    return draw_profile(glyph.signal, name=name, description=description)


def _largest_displacement_mm(runs: Sequence[CorrectionFacts]) -> float | None:
    values = [run.largest_displacement_mm for run in runs]
    return max((value for value in values if value is not None), default=None)


def _prediction_file(scan: ScanFiles) -> str:
    """Name of the table of the prediction; empty without one."""
    prediction = scan.facts.prediction
    return "" if prediction is None else scan.native(prediction_ending(prediction.network)).name


QUALITY = {
    "snr_b0": ("Signal to noise", "mean b0 in the brain over the noise of the background"),
    "cnr": ("Contrast to noise", "variation over directions over the misfit of the tensor"),
    "tensor_residual": ("Tensor misfit", "median in white matter, as a fraction of b0"),
    "neighbour_correlation": ("Neighbour correlation", "of volumes with nearest directions"),
    "mean_fa_white_matter": ("Mean FA", "of white matter (FA above 0.4)"),
}
"""Fields of QualityFacts in the order in which they are shown: name and meaning."""


def _quality_rows(quality: QualityFacts) -> list[tuple[str, str | Markup, str]]:
    """Name the measures in words; none if there is none."""
    if quality == QualityFacts():
        return []
    return [(name, show(getattr(quality, key)), hint) for key, (name, hint) in QUALITY.items()]


def _environment(output_dir: Path) -> list[tuple[str, str]]:
    """List the versions of what made the report, and the container it ran in, if any."""
    description = read_json(output_dir / "dataset_description.json")
    rows = list(list_versions().items())
    generated = description.get("GeneratedBy")
    first = generated[0] if isinstance(generated, list) and generated else {}
    container = first.get("Container") if isinstance(first, Mapping) else None
    if isinstance(container, Mapping) and container.get("Tag"):
        rows.append(("Container", str(container["Tag"])))
    return rows
