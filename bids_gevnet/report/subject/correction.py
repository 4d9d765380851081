"""What the model-based correction found: eddy currents, lost slices, the susceptibility field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import FOREGROUND, PALETTE, SOFT, figure, to_svg

TERMS = ("constant", "x", "y", "z")


@dataclass(frozen=True, slots=True)
class CorrectionView:
    """One run.

    Attributes
    ----------
    figures : list of (str, str, str)
        Name, value and remark.
    eddy_chart : Markup or None
        Constant and linear eddy terms over the volumes.
    field_chart : Markup or None
        The susceptibility displacement in three planes.
    lost : list of (int, int, float)
        Volume, slice and z-score of replaced slices.
    not_done : str
        What FSL eddy can do and this correction does not.
    """

    figures: list[tuple[str, str, str]]
    eddy_chart: Markup | None
    field_chart: Markup | None
    lost: list[tuple[int, int, float]]
    not_done: str


def describe_corrections(runs: Sequence[Mapping[str, Any]], key: str) -> list[CorrectionView]:
    """Describe the runs that the model-based correction has worked on.

    Parameters
    ----------
    runs : sequence of mapping
        The part "correction" of a scan's facts.
    key : str
        Makes identifiers unique in the page.
    """
    return [
        _describe(run, f"{key}-correction-{number}")
        for number, run in enumerate(runs)
        if run.get("method") == "model"
    ]


def _describe(run: Mapping[str, Any], key: str) -> CorrectionView:
    eddy = _matrix(run.get("eddy_terms_mm"), 10)
    field = run.get("susceptibility_field")
    field = field if isinstance(field, Mapping) else {}
    lost = [(int(k), int(z), float(score)) for k, z, score in _rows(run.get("outlier_list"))]
    figures = [
        (
            "Largest eddy displacement",
            _number(run.get("largest_eddy_mm"), "mm"),
            "over a ball of 50 mm",
        ),
        ("Lost slices", str(run.get("outlier_slices", len(lost))), "replaced by their prediction"),
    ]
    if field:
        after, before = field.get("correlation_after"), field.get("correlation_before")
        figures += [
            ("Susceptibility", _number(field.get("largest_mm"), "mm"), "largest displacement"),
            ("Opposite b0s agree", _number(after), f"correlation; {_number(before)} before"),
        ]
    else:
        figures.append(("Susceptibility", "not corrected", "no usable b0 of opposite encoding"))
    return CorrectionView(
        figures,
        None if eddy is None else _draw_eddy(eddy, f"{key}-eddy"),
        _draw_field(field.get("planes_mm"), field.get("head"), f"{key}-field"),
        lost,
        str(run.get("not_done") or ""),
    )


def _number(value: Any, unit: str = "") -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return "not available"
    return f"{value:.2f} {unit}".strip()


def _matrix(value: Any, columns: int) -> npt.NDArray[np.float64] | None:
    try:
        matrix = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    usable = matrix.ndim == 2 and matrix.shape[1] == columns and np.isfinite(matrix).all()
    return matrix if usable and len(matrix) else None


def _rows(value: Any) -> list[Sequence[float]]:
    matrix = _matrix(value, 3)
    return [] if matrix is None else matrix.tolist()


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


def _three_planes(planes: Any) -> list[npt.NDArray[np.float64]]:
    """Read three planes from the facts; none of them if any is not what it should be."""
    if not isinstance(planes, list) or len(planes) != 3:
        return []
    arrays = [
        _matrix(plane, len(plane[0]))
        if isinstance(plane, list) and plane and isinstance(plane[0], list)
        else None
        for plane in planes
    ]
    return [array for array in arrays if array is not None and min(array.shape) >= 2]


def _draw_field(planes: Any, head: Any, name: str) -> Markup | None:
    """Draw contours of the displacement over the head, in sagittal, coronal and axial planes."""
    from scipy.ndimage import binary_dilation

    shown, behind = _three_planes(planes), _three_planes(head)
    if len(shown) != 3:
        return None
    largest = max(1.0, float(np.ceil(max(np.abs(a).max() for a in shown))))
    levels = [level for level in np.linspace(-largest, largest, 9) if level]
    with figure(6.8, 2.4, ncols=3) as (drawing, axes):
        for n, title in enumerate(("Sagittal", "Coronal", "Axial")):
            ax, plane = axes[n], shown[n]
            if len(behind) == 3 and np.any(behind[n] > 0.5):
                ax.contourf(behind[n].T, levels=[0.5, np.inf], colors=[SOFT], alpha=0.2)
            if len(behind) == 3 and behind[n].shape == plane.shape:
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
