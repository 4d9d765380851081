"""Draw a carpet: every volume by brain voxels, with motion and outlier slices above it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import (
    LINE,
    PALETTE,
    SOFT,
    figure,
    label_whole_numbers,
    to_svg,
)
from bids_gevnet.report.figures.motion import LARGE_DISPLACEMENT_MM, confound

LIMIT = 1.5
"""Robust standard deviations at the ends of the greys."""


def standardise(
    signals: npt.NDArray[np.floating[Any]], shell_of: npt.NDArray[np.intp]
) -> npt.NDArray[np.float32]:
    """Express each voxel's signal by its robust distance from its median in the same shell.

    Parameters
    ----------
    signals : (voxels, n) array
    shell_of : (n,) array of int
        Number of the shell of each volume; b0s are a shell of their own.

    Returns
    -------
    distance : (voxels, n) array
        In robust standard deviations; 0 in shells whose spread cannot be told.
    """
    distance = np.zeros(signals.shape, np.float32)
    for shell in np.unique(shell_of):
        volumes = np.flatnonzero(shell_of == shell)
        values = signals[:, volumes]
        centred = values - np.median(values, axis=1, keepdims=True)
        spread = 1.4826 * np.median(np.abs(centred), axis=1, keepdims=True)
        scaled = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)
        distance[:, volumes] = scaled if len(volumes) > 2 else 0
    return distance


def draw_carpet(
    distance: npt.NDArray[np.floating[Any]],
    confounds: pd.DataFrame,
    b0_volumes: npt.NDArray[np.intp],
    *,
    name: str,
) -> Markup:
    """Draw framewise displacement, outlier slices and the carpet over one axis of volumes.

    Parameters
    ----------
    distance : (rows, n) array
        From `standardise`, single voxels or means of neighbours, from the lowest to the highest.
    confounds : DataFrame
        Of n rows.
    b0_volumes : (k,) array of int
    name : str
        Prefix of identifiers in the drawing.
    """
    count = distance.shape[1]
    volumes = np.arange(count)
    steps = confound(confounds, "framewise_displacement")
    outliers = np.nan_to_num(confound(confounds, "outlier_slices"))
    looked_for = "outlier_slices" in confounds
    with figure(6.8, 4.2, nrows=3, sharex=True, height_ratios=[1, 0.7, 3]) as (drawing, axes):
        edges = np.arange(count + 1) - 0.5
        axes[0].stairs(steps, edges, fill=True, color=LINE)
        axes[0].stairs(steps, edges, baseline=None, color=PALETTE[0], lw=1.2)
        axes[0].axhline(LARGE_DISPLACEMENT_MM, color=PALETTE[1], lw=1, ls=":")
        axes[0].set_ylabel("FD (mm)")
        highest = float(np.nanmax(steps, initial=0.0))
        axes[0].set_ylim(0, 1.1 * max(highest, LARGE_DISPLACEMENT_MM))
        axes[1].bar(volumes, outliers, width=0.8, color=PALETTE[3])
        axes[1].set_ylim(0, 1.1 * max(float(outliers.max(initial=0)), 1.0))
        axes[1].set_ylabel("Outlier\nslices")
        if not looked_for:
            axes[1].set_yticks([])
            axes[1].text(
                0.5, 0.5, "not looked for, or not known", transform=axes[1].transAxes,
                ha="center", va="center", color=SOFT, fontsize=9,
            )  # fmt: skip
        carpet = axes[2].imshow(
            distance, cmap="gray", vmin=-LIMIT, vmax=LIMIT, aspect="auto", origin="lower",
            interpolation="none", extent=(-0.5, count - 0.5, 0, 1),
        )  # fmt: skip
        axes[2].grid(visible=False)
        axes[2].set_yticks([0.05, 0.95], ["inferior", "superior"])
        axes[2].set_ylabel("Brain voxels")
        axes[2].plot(
            b0_volumes, np.full(len(b0_volumes), -0.03), "^", ms=4, color=SOFT, clip_on=False
        )
        axes[2].set_xlabel("Volume (▲ b0)")
        label_whole_numbers(axes[2].xaxis)
        axes[2].set_xlim(-0.5, count - 0.5)
        bar = drawing.colorbar(carpet, ax=list(axes), shrink=0.62, anchor=(0, 0), pad=0.01)
        bar.set_label("Robust SD from the median", color=SOFT)
        bar.solids.set_rasterized(True)
        bar.outline.set_visible(False)
        drawing.align_ylabels(axes)
        striking = int(np.argmax(np.abs(distance).mean(axis=0)))
        description = (
            f"Signal of {len(distance)} groups of brain voxels over {count} volumes, in robust "
            "standard deviations from the median of the voxel in its shell, below framewise "
            f"displacement and outlier slices. Volume {striking} differs most."
        )
        return to_svg(drawing, name, description)
