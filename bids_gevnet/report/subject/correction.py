"""Show what a correction estimated: eddy currents, outliers, susceptibility, tensor misfit."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.facts import CorrectionFacts, SusceptibilityField
from bids_gevnet.facts.json_form import Rows
from bids_gevnet.report.correction_methods import MODEL_NOT_DONE, WHY_NOT_SUSCEPTIBILITY
from bids_gevnet.report.figures.drawing import (
    FOREGROUND,
    PALETTE,
    SOFT,
    figure,
    label_whole_numbers,
    to_svg,
)
from bids_gevnet.report.figures.outlier_matrix import draw_outlier_matrix
from bids_gevnet.report.figures.susceptibility import draw_susceptibility
from bids_gevnet.report.page import show

TERMS = ("constant", "x", "y", "z")
N_TERMS = 10
"""Constant, linear and quadratic terms."""


@dataclass(frozen=True, slots=True)
class CorrectionView:
    """One run.

    Attributes
    ----------
    number : int
        Of the run, counted from 1.
    facts : CorrectionFacts
    figures : list of (str, str, str)
        Name, value and remark.
    eddy_chart : Markup or None
        Constant and linear eddy terms over the volumes.
    field_chart : Markup or None
        The susceptibility displacement in three planes.
    outlier_chart : Markup or None
        Distance of every slice of every volume from its prediction.
    title : str
    not_done : str
        What FSL eddy can do and this correction does not; empty for eddy itself.
    """

    number: int
    facts: CorrectionFacts
    figures: list[tuple[str, str | Markup, str]]
    eddy_chart: Markup | None
    field_chart: Markup | None
    outlier_chart: Markup | None
    title: str
    not_done: str


def describe_corrections(
    runs: Sequence[CorrectionFacts], key: str, voxel_mm: Sequence[float] = (1.0, 1.0, 1.0)
) -> list[CorrectionView]:
    """Describe the runs that the model-based correction or eddy has worked on.

    Parameters
    ----------
    runs : sequence of CorrectionFacts
    key : str
        Makes identifiers unique in the page.
    voxel_mm : (3,) sequence
        For the shape of pixels.
    """
    return [
        _describe(run, number, voxel_mm, f"{key}-correction-{number}")
        for number, run in enumerate(runs, 1)
        if run.method in {"model", "eddy"}
    ]


def _describe(
    run: CorrectionFacts, number: int, voxel_mm: Sequence[float], key: str
) -> CorrectionView:
    eddy = np.array(run.eddy_terms_mm, dtype=np.float64)
    complete = eddy.ndim == 2 and eddy.shape[1] == N_TERMS
    field = run.field
    return CorrectionView(
        number,
        run,
        [*_eddy_figures(run), *_misfit_figures(run), *_susceptibility_figures(run)],
        _draw_eddy(eddy, f"{key}-eddy") if run.eddy_currents is not False and complete else None,
        None if field is None else _draw_field(field, voxel_mm, f"{key}-field"),
        _draw_outliers(run, f"{key}-outliers"),
        *(
            ("Model-based correction", MODEL_NOT_DONE)
            if run.method == "model"
            else ("Correction by FSL eddy", "")
        ),
    )


def _eddy_figures(run: CorrectionFacts) -> list[tuple[str, str | Markup, str]]:
    if run.eddy_currents is False:
        return [("Eddy currents", "not estimated", "no shell has enough volumes")]
    figures = [
        ("Largest eddy displacement", show(run.largest_eddy_mm, "mm"), "over a ball of 50 mm")
    ]
    if run.outlier_slices is not None:
        figures.append(("Outlier slices", show(run.outlier_slices), "replaced by prediction"))
    return figures


def _misfit_figures(run: CorrectionFacts) -> list[tuple[str, str | Markup, str]]:
    if run.misfit_after is None:
        return []
    remark = "of b0" if run.misfit_before is None else f"of b0; {show(run.misfit_before)} before"
    return [("Tensor misfit", show(run.misfit_after), remark)]


def _susceptibility_figures(run: CorrectionFacts) -> list[tuple[str, str | Markup, str]]:
    if run.susceptibility != "corrected" and run.susceptibility is not None:
        reason = WHY_NOT_SUSCEPTIBILITY[run.susceptibility]
        return [("Susceptibility", "not corrected", reason)]
    if run.field is None:
        return [("Susceptibility", show(run.susceptibility), "")]
    before = run.field.correlation_before
    remark = "correlation" if before is None else f"correlation; {show(before)} before"
    return [
        ("Susceptibility", show(run.field.largest_mm, "mm"), "largest displacement"),
        ("Opposite b0s agree", show(run.field.correlation_after), remark),
    ]


def _draw_eddy(eddy: npt.NDArray[np.float64], name: str) -> Markup:
    volumes = np.arange(len(eddy))
    with figure(6.8, 2.4) as (drawing, ax):
        colours = (FOREGROUND, *PALETTE)
        for term, label in enumerate(TERMS):
            dash = ("-", "--", "-.", ":")[term]
            ax.plot(volumes, eddy[:, term], dash, color=colours[term], label=label)
        curved = np.abs(eddy[:, 4:]).max(axis=1)
        ax.plot(volumes, curved, color=SOFT, linewidth=0.8, label="largest quadratic (size)")
        ax.set_xlabel("Volume")
        label_whole_numbers(ax.xaxis)
        ax.set_ylabel("Displacement (mm)")
        ax.set_xlim(-0.7, len(eddy) - 0.3)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=5, fontsize=9, labelcolor=SOFT)
        largest = float(np.abs(eddy[:, :4]).max())
        description = (
            f"Constant and linear eddy-current terms over {len(eddy)} volumes, in mm at 50 mm "
            f"from the centre; the largest is {largest:.2f} mm. The largest quadratic term is "
            f"{float(curved.max()):.2f} mm."
        )
        return to_svg(drawing, name, description)


def _three_planes(planes: Sequence[Rows]) -> list[npt.NDArray[np.float64]]:
    """Give three planes as arrays; none of them if any is too small to draw."""
    arrays = [np.array(plane, dtype=np.float64) for plane in planes]
    usable = len(arrays) == 3 and all(a.ndim == 2 and min(a.shape) >= 2 for a in arrays)
    return arrays if usable else []


def _draw_field(field: SusceptibilityField, voxel_mm: Sequence[float], name: str) -> Markup | None:
    """Draw the displacement in sagittal, coronal and axial planes, if the facts hold them."""
    shown, heads = _three_planes(field.planes_mm), _three_planes(field.head)
    return draw_susceptibility(shown, heads, voxel_mm, name=name) if shown else None


def _draw_outliers(run: CorrectionFacts, name: str) -> Markup | None:
    """Draw slices by volumes, if the facts hold a number for each."""
    widths = {len(row) for row in run.slice_z_scores}
    if len(widths) != 1 or min(widths) < 1:
        return None
    z_scores = np.nan_to_num(np.array(run.slice_z_scores, dtype=np.float64))
    replaced = np.zeros(z_scores.shape, bool)
    for outlier in run.outliers:
        volume, number = outlier.volume, outlier.slice
        if volume is None or number is None:
            continue
        if volume < len(z_scores) and number < z_scores.shape[1]:
            replaced[volume, number] = True
    return draw_outlier_matrix(z_scores, replaced, name=name)
