"""Draw the displacement by susceptibility in three planes, centred on zero."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import SOFT, figure, to_svg

_IN_PLANE = ((1, 2), (0, 2), (0, 1))
_WIDTH, _PANELS, _TITLE, _HIGHEST = 6.8, 5.4, 0.5, 3.6
"""Inches: of the figure, of its three panels together, of a title, and at most in height."""


def draw_susceptibility(
    planes_mm: Sequence[npt.NDArray[np.floating[Any]]],
    heads: Sequence[npt.NDArray[np.floating[Any]]],
    voxel_mm: Sequence[float],
    *,
    name: str,
) -> Markup:
    """Draw the displacement inside the head.

    Parameters
    ----------
    planes_mm : three arrays
        Displacement along the phase-encoding axis in a sagittal, coronal and axial plane.
    heads : three arrays
        The same planes, above 0.5 in the head; none where it is not known.
    voxel_mm : (3,) sequence
        For the shape of the pixels.
    name : str
        Prefix of identifiers in the drawing.
    """
    shown = [
        _inside(plane, heads[number] if len(heads) == len(planes_mm) else None)
        for number, plane in enumerate(planes_mm)
    ]
    largest = max(float(np.nanmax(np.abs(plane))) for plane in shown)
    limit = max(1.0, float(np.ceil(largest)))
    # One scale in mm for all three, as wide as the page allows.
    sizes = [
        (plane.shape[0] * voxel_mm[right], plane.shape[1] * voxel_mm[up])
        for plane, (right, up) in zip(shown, _IN_PLANE, strict=True)
    ]
    widths, heights = zip(*sizes, strict=True)
    height = _PANELS * max(heights) / sum(widths) + _TITLE
    with figure(_WIDTH, min(height, _HIGHEST), ncols=3, width_ratios=widths) as (drawing, axes):
        for ax, plane, (title, left), (right, up) in zip(
            axes,
            shown,
            (("Sagittal", "P"), ("Coronal", "L"), ("Axial", "L")),
            _IN_PLANE,
            strict=True,
        ):
            image = ax.imshow(
                plane.T, cmap="RdBu_r", vmin=-limit, vmax=limit, origin="lower",
                interpolation="none", aspect=voxel_mm[up] / voxel_mm[right],
            )  # fmt: skip
            ax.set_title(title)
            ax.text(-0.03, 0.5, left, transform=ax.transAxes, ha="right", va="center", color=SOFT)
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
        bar = drawing.colorbar(image, ax=list(axes), pad=0.01, shrink=0.85)
        for ax in axes:
            ax.set_anchor("N")  # titles in one line; the colour bar has its own idea of it
        bar.set_label("Displacement (mm)", color=SOFT)
        bar.solids.set_rasterized(True)
        bar.outline.set_visible(False)
        description = (
            "Displacement by susceptibility along the phase-encoding axis in three planes through "
            f"its largest value in the head, up to {largest:.1f} mm."
        )
        return to_svg(drawing, name, description)


def _inside(
    plane: npt.NDArray[np.floating[Any]], head: npt.NDArray[np.floating[Any]] | None
) -> npt.NDArray[np.floating[Any]]:
    """Cut a plane to the head, beyond which there is no signal to see a field by."""
    from scipy.ndimage import binary_dilation, find_objects

    if head is None or head.shape != plane.shape or not (head > 0.5).any():
        return plane
    inside = binary_dilation(head > 0.5, iterations=1)
    (box,) = find_objects(inside.astype(np.uint8))
    return np.asarray(np.where(inside, plane, np.nan)[box])
