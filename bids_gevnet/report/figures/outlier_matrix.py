"""Draw how far every slice of every volume lies from its prediction."""

from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import SOFT, figure, label_whole_numbers, to_svg

_LEAST_LIMIT = 6.0
_HIGHEST_LIMIT = 20.0
_MARK = "black"
"""Not a colour of the page's theme: the ground of the matrix is white in all of them."""


def draw_outlier_matrix(
    z_scores: npt.NDArray[np.floating[Any]], replaced: npt.NDArray[np.bool_], *, name: str
) -> Markup:
    """Draw slices by volumes, with a mark on each slice that was replaced.

    Parameters
    ----------
    z_scores : (n, slices) array
        Distance of each slice's signal from its prediction, in standard deviations; negative
        where signal is lost, 0 where it was not compared.
    replaced : (n, slices) array of bool
    name : str
        Prefix of identifiers in the drawing.
    """
    limit = float(np.clip(np.abs(z_scores).max(initial=0), _LEAST_LIMIT, _HIGHEST_LIMIT))
    with figure(6.8, 2.9) as (drawing, ax):
        image = ax.imshow(
            z_scores.T, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", origin="lower",
            interpolation="none",
        )  # fmt: skip
        volume, number = np.nonzero(replaced)
        ax.plot(volume, number, "s", ms=5, mfc="none", mew=1.3, color=_MARK)
        ax.grid(visible=False)
        ax.set_xlabel("Volume")
        label_whole_numbers(ax.xaxis)
        label_whole_numbers(ax.yaxis)
        ax.set_ylabel("Slice")
        bar = drawing.colorbar(image, ax=ax, pad=0.01)
        bar.set_label("SD from the prediction", color=SOFT)
        bar.solids.set_rasterized(True)
        bar.outline.set_visible(False)
        description = (
            f"Signal of {z_scores.shape[1]} slices in {len(z_scores)} volumes against its "
            f"prediction: {len(volume)} slices were replaced, the lowest lies "
            f"{float(z_scores.min(initial=0)):.1f} standard deviations away."
        )
        return to_svg(drawing, name, description)
