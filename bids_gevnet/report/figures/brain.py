"""Draw slices of brains: images as PNG, outlines as vector paths over them.

Every picture is sampled in world millimetres on pixels of one size, whatever the grid of the
image: a 6 mm scan, a 2 mm template and an oblique series come out alike. Left of the picture is
left of the head; up is superior, or anterior in axial slices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.report.figures.drawing import colour_table, to_bytes, to_png_uri
from bids_gevnet.report.scan_files import Volume

AXES = ("sagittal", "coronal", "axial")
_IN_PLANE = ((1, 2), (0, 2), (0, 1))
"""World axes that run to the right and upwards in a slice across each world axis."""

PIXEL_MM = 1.5
_COARSE_MM = 3.0
"""Above this voxel size cubic interpolation is worth its time; below nobody sees a difference."""

_FEWEST_VOXELS = 50

Box = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Slice:
    """One picture: layers of images and paths over each other, in pixels of one size.

    Attributes
    ----------
    images : mapping of str to str
        Name of a layer to data URI.
    paths : mapping of str to str
        Name of an outline to SVG path data.
    """

    label: str
    axis: str
    width: int
    height: int
    images: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)


def bounding_box(mask: Volume, margin_mm: float = 8.0) -> Box | None:
    """Lowest and highest world coordinates (3,) of a mask, with a margin; None if it is empty."""
    index = np.argwhere(mask.data > 0.5)
    if not len(index):
        return None
    low, high = index.min(axis=0) - 0.5, index.max(axis=0) + 0.5
    ends = np.stack([low, high])
    corners = np.array([[ends[a, 0], ends[b, 1], ends[c, 2]] for a, b, c in np.ndindex(2, 2, 2)])
    world = corners @ mask.affine[:3, :3].T + mask.affine[:3, 3]
    return world.min(axis=0) - margin_mm, world.max(axis=0) + margin_mm


def slice_positions(box: Box, axis: int, count: int, *, margin: float = 0.26) -> list[float]:
    """Spread positions evenly over the box, leaving out a part of it at both ends."""
    low, high = box[0][axis], box[1][axis]
    fractions = np.linspace(margin, 1 - margin, count) if count > 1 else np.array([0.5])
    return [float(round(low + fraction * (high - low))) for fraction in fractions]


class Sampler:
    """Reads slices of a volume at world positions.

    Parameters
    ----------
    volume : Volume
    order : int, optional
        Of the spline (default: cubic for coarse voxels, linear for fine ones).
    """

    def __init__(self, volume: Volume, order: int | None = None) -> None:
        from scipy import ndimage

        sizes = np.linalg.norm(volume.affine[:3, :3], axis=0)
        self.order = order if order is not None else 3 if sizes.max() > _COARSE_MM else 1
        self._inverse = np.linalg.inv(volume.affine)
        # The spline filter is applied once, not again for every slice.
        data = volume.data.astype(np.float32)
        self._data = (
            ndimage.spline_filter(data, self.order, output=np.float32) if self.order > 1 else data
        )

    def slice(
        self, box: Box, axis: int, position_mm: float, *, pixel_mm: float = PIXEL_MM
    ) -> npt.NDArray[np.float32]:
        """Sample a slice, (height, width), first row on top; zero outside the volume."""
        from scipy import ndimage

        right, up = _IN_PLANE[axis]
        columns = np.arange(box[0][right], box[1][right], pixel_mm)
        rows = np.arange(box[1][up], box[0][up], -pixel_mm)
        points = np.empty((len(rows), len(columns), 3))
        points[..., axis] = position_mm
        points[..., right] = columns
        points[..., up] = rows[:, None]
        index = points @ self._inverse[:3, :3].T + self._inverse[:3, 3]
        sampled: npt.NDArray[np.float32] = ndimage.map_coordinates(
            self._data,
            np.moveaxis(index, -1, 0),
            order=self.order,
            prefilter=False,
            mode="grid-constant",
            cval=0.0,
        )
        return sampled


def outline(values: npt.NDArray[Any], level: float = 0.5) -> str:
    """Trace where an image crosses a level, as SVG path data in pixels."""
    from contourpy import contour_generator

    # A frame of zeros closes outlines that run into the border of the picture.
    lines: Any = contour_generator(z=np.pad(values, 1)).lines(level)
    pieces = []
    for line in lines:
        points = np.round(np.asarray(line) - 0.5, 1)
        pieces.append("M" + "L".join(f"{x:g} {y:g}" for x, y in points))
    return "".join(pieces)


def position_label(axis: int, position_mm: float) -> str:
    """Name a slice by its place in the world."""
    return f"{'xyz'[axis]} = {position_mm:.0f} mm"


def window(volume: Volume, mask: Volume | None, high: float = 99.5) -> float:
    """Value that is shown white: a percentile inside the brain."""
    inside = volume.data
    if mask is not None and mask.data.shape == volume.data.shape and (mask.data > 0.5).any():
        inside = volume.data[mask.data > 0.5]
    return max(float(np.percentile(inside, high)), 1e-9)


def inner(mask: Volume) -> Volume:
    """Take two layers of voxels off a mask; its rim holds half of something else.

    A mask that would hardly leave anything is given back as it is.
    """
    from scipy import ndimage

    deep = ndimage.binary_erosion(mask.data > 0.5, iterations=2)
    if deep.sum() < _FEWEST_VOXELS:
        return mask
    return Volume(deep.astype(np.float32), mask.affine)


def draw_outlines(image: Volume, mask: Volume, *, counts: Mapping[int, int]) -> list[Slice]:
    """Draw an image with the outline of a mask.

    Parameters
    ----------
    image, mask : Volume
    counts : mapping of int to int
        World axis to number of slices across it.
    """
    box = bounding_box(mask, margin_mm=16.0)
    if box is None:
        return []
    positions = [
        (axis, position)
        for axis, count in counts.items()
        for position in slice_positions(box, axis, count)
    ]
    outlined = {"mask": Sampler(mask, order=1)}
    return draw_layers(
        {"scan": Sampler(image)}, {"scan": window(image, mask)}, outlined, box, positions
    )


def draw_overlay(
    scan: Volume,
    template: Volume,
    template_mask: Volume,
    box: Box,
    *,
    positions: Sequence[tuple[int, float]],
) -> list[Slice]:
    """Draw a scan and a template on the same pixels, with the template's outline.

    Parameters
    ----------
    scan, template, template_mask : Volume
        In one world.
    box : (low, high)
        Part of the world to show.
    positions : sequence of (axis, mm)
    """
    samplers = {"scan": Sampler(scan), "template": Sampler(template, order=1)}
    tops = {"scan": window(scan, None), "template": window(template, template_mask)}
    outlined = {"template": Sampler(template_mask, order=1)}
    return draw_layers(samplers, tops, outlined, box, positions)


def draw_layers(
    samplers: Mapping[str, Sampler],
    tops: Mapping[str, float],
    outlined: Mapping[str, Sampler],
    box: Box,
    positions: Sequence[tuple[int, float]],
) -> list[Slice]:
    """Draw several images on the same pixels, with outlines.

    Parameters
    ----------
    samplers : mapping of name to Sampler
    tops : mapping of name to float
        What is drawn white.
    outlined : mapping of name to Sampler
        Masks.
    box : (low, high)
        Part of the world to show.
    positions : sequence of (axis, mm)
    """
    slices = []
    for axis, position in positions:
        layers = {
            name: to_bytes(sampler.slice(box, axis, position), 0, tops[name])
            for name, sampler in samplers.items()
        }
        height, width = next(iter(layers.values())).shape
        slices.append(
            Slice(
                position_label(axis, position),
                AXES[axis],
                width,
                height,
                {name: to_png_uri(layer) for name, layer in layers.items()},
                {
                    name: outline(mask.slice(box, axis, position))
                    for name, mask in outlined.items()
                },
            )
        )
    return slices


@dataclass(frozen=True, slots=True)
class ColourMap:
    """A map in colours with the range that the colours span."""

    name: str
    slices: list[Slice]
    low: float
    high: float
    bar: str


def draw_map(
    name: str,
    volume: Volume,
    mask: Volume,
    box: Box,
    *,
    positions: Sequence[tuple[int, float]],
    colours: str = "viridis",
    limits: tuple[float, float] | None = None,
) -> ColourMap:
    """Draw a map inside a mask.

    Parameters
    ----------
    name : str
    volume, mask : Volume
    box : (low, high)
        Part of the world to show.
    positions : sequence of (axis, mm)
    colours : str
        Name of a matplotlib colour map.
    limits : (float, float), optional
        Values at the ends of the colours (default: zero and the 98th percentile of the inner
        voxels).
    """
    table = colour_table(colours)
    table[0] = 0  # black outside the mask
    low, high = limits or (0.0, window(volume, inner(mask), 98.0))
    sampler, mask_sampler = Sampler(volume), Sampler(mask, order=1)
    slices = []
    for axis, position in positions:
        inside = mask_sampler.slice(box, axis, position) > 0.5
        shades = np.maximum(to_bytes(sampler.slice(box, axis, position), low, high), 1)
        shades[~inside] = 0
        height, width = shades.shape
        slices.append(
            Slice(
                position_label(axis, position),
                AXES[axis],
                width,
                height,
                {"map": to_png_uri(shades, table)},
            )
        )
    ramp = np.arange(1, 256, dtype=np.uint8)[None]
    return ColourMap(name, slices, low, high, to_png_uri(ramp, table))
