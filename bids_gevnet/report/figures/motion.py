"""Draw how the head moved: framewise displacement, translations and rotations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import (
    FOREGROUND,
    LINE,
    PALETTE,
    SOFT,
    figure,
    label_whole_numbers,
    to_svg,
)

LARGE_DISPLACEMENT_MM = 1.0
"""Framewise displacement above this is marked; half a voxel of a usual diffusion scan."""

_LEGEND: Mapping[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (0.0, 0.98),
    "ncols": 4,
    "fontsize": 9,
    "labelcolor": SOFT,
    "borderpad": 0,
    "columnspacing": 1.2,
    "handletextpad": 0.5,
}


@dataclass(frozen=True, slots=True)
class MotionSummary:
    """Numbers of the motion trace.

    Attributes
    ----------
    mean_mm, largest_mm : float
        Framewise displacement.
    large_displacements : list of int
        Volumes whose framewise displacement is above ``LARGE_DISPLACEMENT_MM``.
    outlier_slices : int or None
        Slices that were replaced; None where the method does not look for them.
    volumes_with_outliers : list of int
    """

    mean_mm: float
    largest_mm: float
    large_displacements: list[int]
    outlier_slices: int | None
    volumes_with_outliers: list[int]


def confound(table: pd.DataFrame, name: str) -> npt.NDArray[np.float64]:
    """Read a column of the table of confounds; all NaN where it is missing."""
    if name not in table:
        return np.full(len(table), np.nan)
    return pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)


def summarise_motion(table: pd.DataFrame) -> MotionSummary | None:
    """Summarise a table of confounds; nothing if it has no framewise displacement."""
    steps = confound(table, "framewise_displacement")
    if not np.isfinite(steps).any():
        return None
    outliers = np.nan_to_num(confound(table, "outlier_slices")).astype(int)
    return MotionSummary(
        mean_mm=float(np.nanmean(steps)),
        largest_mm=float(np.nanmax(steps)),
        large_displacements=np.flatnonzero(np.nan_to_num(steps) > LARGE_DISPLACEMENT_MM).tolist(),
        outlier_slices=int(outliers.sum()) if "outlier_slices" in table else None,
        volumes_with_outliers=np.flatnonzero(outliers).tolist(),
    )


def draw_motion(
    table: pd.DataFrame, b0_volumes: npt.NDArray[np.intp], *, name: str, description: str
) -> Markup:
    """Draw framewise displacement, translations and rotations, one above the other."""
    volumes = np.arange(len(table))
    with figure(6.8, 4.8, nrows=3, sharex=True, height_ratios=[1.2, 1, 1]) as (drawing, axes):
        _draw_steps(axes[0], table, b0_volumes)
        for ax, stem, scale, unit in (
            (axes[1], "trans", 1.0, "Translation (mm)"),
            (axes[2], "rot", np.degrees(1.0), "Rotation (°)"),
        ):
            for axis, colour, dash in zip("xyz", PALETTE, ("-", "--", "-."), strict=False):
                values = scale * confound(table, f"{stem}_{axis}")
                ax.plot(volumes, values, dash, color=colour, label=axis)
            ax.set_ylabel(unit)
            ax.legend(**_LEGEND)
        axes[2].set_xlabel("Volume")
        label_whole_numbers(axes[2].xaxis)
        axes[2].set_xlim(-0.7, len(table) - 0.3)
        drawing.align_ylabels(axes)
        return to_svg(drawing, name, description)


def _draw_steps(ax: Any, table: pd.DataFrame, b0_volumes: npt.NDArray[np.intp]) -> None:
    steps = confound(table, "framewise_displacement")
    outliers = np.nan_to_num(confound(table, "outlier_slices")) > 0
    volumes = np.arange(len(table))
    top = max(1.15 * float(np.nanmax(steps, initial=0.0)), 1.15 * LARGE_DISPLACEMENT_MM)
    draw = ax.plot
    ax.fill_between(volumes, 0, steps, color=LINE)
    draw(volumes, steps, color=FOREGROUND, label="framewise displacement")
    ax.axhline(LARGE_DISPLACEMENT_MM, color=PALETTE[1], lw=1, ls=":")
    large = np.nan_to_num(steps) > LARGE_DISPLACEMENT_MM
    draw(
        volumes[large],
        steps[large],
        "o",
        ms=5,
        color=PALETTE[1],
        label=f"above {LARGE_DISPLACEMENT_MM:g} mm",
    )
    if outliers.any():
        draw(volumes[outliers], np.nan_to_num(steps)[outliers], "x", ms=7, mew=2,
             color=PALETTE[3], label="slices replaced")  # fmt: skip
    draw(b0_volumes, np.full(len(b0_volumes), 0.02 * top), "^", ms=4, color=SOFT, label="b0")
    ax.set_ylim(0, top)
    ax.set_ylabel("FD (mm)")
    ax.legend(**_LEGEND)
