"""Draw the displacement by susceptibility in three planes, centred on zero."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import SOFT, figure, to_svg

_IN_PLANE = ((1, 2), (0, 2), (0, 1))


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
    from scipy.ndimage import binary_dilation

    shown = []
    for number, plane in enumerate(planes_mm):
        known = len(heads) == len(planes_mm) and heads[number].shape == plane.shape
        # Beyond the head there is no signal to see a field by.
        inside = binary_dilation(heads[number] > 0.5, iterations=1) if known else True
        shown.append(np.where(inside, plane, np.nan))
    largest = max(float(np.nanmax(np.abs(plane))) for plane in shown)
    limit = max(1.0, float(np.ceil(largest)))
    with figure(6.8, 2.6, ncols=3) as (drawing, axes):
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
            ax.text(0, 1, left, transform=ax.transAxes, va="top", color=SOFT)
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
        bar = drawing.colorbar(image, ax=list(axes), pad=0.01, shrink=0.85)
        bar.set_label("Displacement (mm)", color=SOFT)
        bar.solids.set_rasterized(True)
        bar.outline.set_visible(False)
        description = (
            "Displacement by susceptibility along the phase-encoding axis in three planes through "
            f"its largest value in the head, up to {largest:.1f} mm."
        )
        return to_svg(drawing, name, description)
