"""Show what the model-based correction estimated: eddy currents, outliers, susceptibility."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.facts import CorrectionFacts, SusceptibilityField
from bids_gevnet.facts.json_form import Rows
from bids_gevnet.report.correction_methods import MODEL_NOT_DONE, WHY_NOT_SUSCEPTIBILITY
from bids_gevnet.report.figures.drawing import FOREGROUND, PALETTE, SOFT, figure, to_svg
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
    not_done : str
        What FSL eddy can do and this correction does not.
    """

    number: int
    facts: CorrectionFacts
    figures: list[tuple[str, str | Markup, str]]
    eddy_chart: Markup | None
    field_chart: Markup | None
    not_done: str = MODEL_NOT_DONE


def describe_corrections(runs: Sequence[CorrectionFacts], key: str) -> list[CorrectionView]:
    """Describe the runs that the model-based correction has worked on.

    Parameters
    ----------
    runs : sequence of CorrectionFacts
    key : str
        Makes identifiers unique in the page.
    """
    return [
        _describe(run, number, f"{key}-correction-{number}")
        for number, run in enumerate(runs, 1)
        if run.method == "model"
    ]


def _describe(run: CorrectionFacts, number: int, key: str) -> CorrectionView:
    eddy = np.array(run.eddy_terms_mm, dtype=np.float64)
    complete = eddy.ndim == 2 and eddy.shape[1] == N_TERMS
    field = run.field
    return CorrectionView(
        number,
        run,
        [*_eddy_figures(run), *_susceptibility_figures(run)],
        _draw_eddy(eddy, f"{key}-eddy") if run.eddy_currents is not False and complete else None,
        None if field is None else _draw_field(field, f"{key}-field"),
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


def _draw_field(field: SusceptibilityField, name: str) -> Markup | None:
    """Draw contours of the displacement over the head, in sagittal, coronal and axial planes."""
    from scipy.ndimage import binary_dilation

    shown, behind = _three_planes(field.planes_mm), _three_planes(field.head)
    if not shown:
        return None
    largest = max(1.0, float(np.ceil(max(np.abs(a).max() for a in shown))))
    levels = [level for level in np.linspace(-largest, largest, 9) if level]
    with figure(6.8, 2.4, ncols=3) as (drawing, axes):
        for n, title in enumerate(("Sagittal", "Coronal", "Axial")):
            ax, plane = axes[n], shown[n]
            if behind and np.any(behind[n] > 0.5):
                ax.contourf(behind[n].T, levels=[0.5, np.inf], colors=[SOFT], alpha=0.2)
            if behind and behind[n].shape == plane.shape:
                # Beyond the head there is no signal to see a field by.
                plane = np.where(binary_dilation(behind[n] > 0.5, iterations=2), plane, np.nan)
            above, below = [x for x in levels if x > 0], [x for x in levels if x < 0]
            ax.contour(plane.T, levels=above, colors=[PALETTE[1]], linewidths=1)
            ax.contour(plane.T, levels=below, colors=[PALETTE[0]], linewidths=1, linestyles="--")
            ax.set_title(title)
            ax.set_aspect("equal")
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
        description = (
            "Contours of the displacement by susceptibility in three planes through its largest "
            f"value in the head, every {largest / 4:.2f} mm; solid along the axis, dashed against "
            "it."
        )
        return to_svg(drawing, name, description)
