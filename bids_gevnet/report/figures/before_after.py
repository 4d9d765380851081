"""Draw an image before and after correction on the same pixels and greys, to be flickered."""

from collections.abc import Sequence

from bids_gevnet.report.figures.brain import Box, Sampler, Slice, draw_layers, window
from bids_gevnet.report.scan_files import Volume


def draw_before_after(
    before: Volume,
    after: Volume,
    mask: Volume,
    box: Box,
    *,
    positions: Sequence[tuple[int, float]],
) -> list[Slice]:
    """Draw two images of one head, with the outline of the brain after correction.

    Parameters
    ----------
    before, after, mask : Volume
        In one world.
    box : (low, high)
        Part of the world to show.
    positions : sequence of (axis, mm)
    """
    samplers = {"before": Sampler(before, order=1), "after": Sampler(after, order=1)}
    tops = {"before": window(before, mask), "after": window(after, mask)}
    outlined = {"mask": Sampler(mask, order=1)}
    return draw_layers(samplers, tops, outlined, box, positions)
