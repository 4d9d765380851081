"""Draw orientation functions of a plane of voxels as glyphs: pixels, because there are so many.

Every glyph is a surface whose radius is the orientation function above its minimum, all on one
scale. It is drawn as points on the half that faces the reader, the farthest first. View axes are
those of a coronal slice: right is +x, up is +z, towards the reader is -y.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.report.figures.drawing import colour_table, to_png_uri

AMPLITUDE_COLOURS = "viridis"
_POINTS = 7000
_OVERSAMPLING = 2
_LONGEST = 0.7
"""Radius of the longest glyph in voxels; a little more than half lets neighbours touch."""

_CUT = 80.0
"""Percentile of white matter whose radius is the longest; what is longer is cut to it."""

_BACKGROUND = 0.22


@dataclass(frozen=True, slots=True)
class GlyphField:
    """A picture of glyphs in two colourings, as data URIs, and the value of the longest radius."""

    width: int
    height: int
    by_direction: str
    by_amplitude: str
    longest: float


def facing_directions() -> npt.NDArray[np.float64]:
    """Return directions (n, 3) spread evenly over the half of the sphere that the reader sees."""
    index = np.arange(_POINTS) + 0.5
    towards = 1 - index / _POINTS  # from 1, straight at the reader, to 0, the rim
    turn = np.pi * (1 + np.sqrt(5)) * index
    radius = np.sqrt(1 - towards**2)
    return np.stack([radius * np.cos(turn), -towards, radius * np.sin(turn)], axis=1)


def draw_glyph_field(
    odf: npt.NDArray[np.floating[Any]],
    inside: npt.NDArray[np.bool_],
    white: npt.NDArray[np.bool_],
    *,
    pixels_per_voxel: int,
) -> GlyphField:
    """Draw a plane of glyphs.

    Parameters
    ----------
    odf : (columns, rows, n) array
        Orientation functions above their minimum, along `facing_directions`; first column is
        the leftmost, first row the lowest.
    inside : (columns, rows) array of bool
        Voxels to draw.
    white : (columns, rows) array of bool
        White matter, which sets the scale.
    pixels_per_voxel : int
    """
    directions = facing_directions()
    peaks = odf.max(axis=-1)[white if white.any() else inside]
    longest = max(float(np.percentile(peaks, _CUT)), 1e-9) if peaks.size else 1.0
    columns, rows = inside.shape
    step = pixels_per_voxel * _OVERSAMPLING
    shade = 0.45 + 0.55 * -directions[:, 1]
    hues = np.abs(directions) / np.abs(directions).max(axis=1, keepdims=True) * shade[:, None]
    table = colour_table(AMPLITUDE_COLOURS) / 255.0
    ground = np.clip(odf.max(axis=-1) / longest, 0, 1) * inside * _BACKGROUND
    blank = np.repeat(np.repeat(ground.T[::-1], step, axis=0), step, axis=1)
    pictures = [np.repeat(blank[..., None], 3, axis=-1) for _ in range(2)]
    for column, row in np.argwhere(inside):
        share = np.clip(odf[column, row] / longest, 0, 1)
        reach = share * _LONGEST * step
        order = np.argsort(-directions[:, 1] * reach, kind="stable")
        x = ((column + 0.5) * step + reach * directions[:, 0])[order].astype(int)
        y = ((rows - row - 0.5) * step - reach * directions[:, 2])[order].astype(int)
        kept = (x >= 0) & (x < columns * step) & (y >= 0) & (y < rows * step)
        x, y, order = x[kept], y[kept], order[kept]
        pictures[0][y, x] = hues[order]
        pictures[1][y, x] = table[(255 * share[order]).astype(int)] * shade[order, None]
    by_direction, by_amplitude = (_to_uri(picture) for picture in pictures)
    return GlyphField(
        columns * pixels_per_voxel, rows * pixels_per_voxel, by_direction, by_amplitude, longest
    )


def _to_uri(picture: npt.NDArray[np.floating[Any]]) -> str:
    height, width, channels = picture.shape
    n = _OVERSAMPLING
    small = picture.reshape(height // n, n, width // n, n, channels).mean(axis=(1, 3))
    # Steps of 8 are below what an eye tells in such small shapes, and compress to a third.
    return to_png_uri(np.asarray(np.clip(np.rint(small * 31) * 8, 0, 255), dtype=np.uint8))
