"""Draw directionally encoded colours: red right-left, green anterior-posterior, blue up-down."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bids_gevnet.report.figures.brain import AXES, Box, Sampler, Slice, position_label
from bids_gevnet.report.figures.drawing import to_bytes, to_png_uri
from bids_gevnet.report.scan_files import Volume

_KEY_PIXELS = 72


def draw_direction_colours(
    channels: Sequence[Volume], mask: Volume, box: Box, *, positions: Sequence[tuple[int, float]]
) -> list[Slice]:
    """Draw the colours of the main direction, as bright as the tissue is anisotropic.

    Parameters
    ----------
    channels : three of Volume
        FA times the size of the x, y and z component of the main direction, world RAS.
    mask : Volume
    box : (low, high)
        Part of the world to show.
    positions : sequence of (axis, mm)
    """
    samplers = [Sampler(channel, order=1) for channel in channels]
    inside = mask.data > 0.5
    strongest = np.max([channel.data for channel in channels], axis=0)
    top = float(np.percentile(strongest[inside], 99.5)) if inside.any() else 1.0
    slices = []
    for axis, position in positions:
        planes = [sampler.slice(box, axis, position) for sampler in samplers]
        colours = to_bytes(np.stack(planes, axis=-1), 0, max(top, 1e-6))
        height, width = colours.shape[:2]
        slices.append(
            Slice(
                position_label(axis, position),
                AXES[axis],
                width,
                height,
                {"colours": to_png_uri(colours)},
            )
        )
    return slices


def draw_direction_key(axis: int) -> str:
    """Draw a ball in the colours of its directions, seen along a world axis, as a data URI."""
    right, up = ((1, 2), (0, 2), (0, 1))[axis]
    steps = np.linspace(-1, 1, _KEY_PIXELS)
    across, along = np.meshgrid(steps, -steps)
    radius = np.hypot(across, along)
    normal: npt.NDArray[np.float64] = np.zeros((_KEY_PIXELS, _KEY_PIXELS, 3))
    normal[..., right], normal[..., up] = np.abs(across), np.abs(along)
    normal[..., axis] = np.sqrt(np.maximum(1 - radius**2, 0))
    colours = np.where(radius[..., None] <= 1, normal, 0)
    return to_png_uri(to_bytes(colours, 0, 1))
