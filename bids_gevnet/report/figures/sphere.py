"""Draw gradient tables and signals on the sphere, as SVG that the page's script can turn.

A scene is a list of points in space and of marks on them. It is drawn here from a first point of
view, so that it is there without the script, in print and for readers of any kind; the script
only moves the marks. View axes: right is +x (left of the head is left), up is +z, towards the
reader is -y after the tilt below.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import PALETTE, SOFT, colour_table, figure, to_svg
from bids_gevnet.report.page import mark_as_html
from bids_gevnet.sphere.resampling import (
    distinct_directions,
    expand,
    healpix_points,
    resampling_matrix,
)

FloatArray = npt.NDArray[np.float64]

RADIUS = 100.0
"""Half the width of a scene's view box, a little more than the sphere."""

_TURN_DEG, _TILT_DEG = 30.0, 20.0


def first_view() -> FloatArray:
    """Rotation (3, 3) from world RAS to the view: right, up, towards the reader."""
    turn, tilt = np.radians(_TURN_DEG), np.radians(_TILT_DEG)
    about_z = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    # x to the right, z up, -y towards the reader, then look down a little.
    stand = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
    about_x = np.array(
        [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    )
    return np.asarray(about_x @ stand @ about_z)


@dataclass(frozen=True, slots=True)
class Mark:
    """A dot, a line or a face: indices into the points of its scene.

    Attributes
    ----------
    points : tuple of int
        One for a dot, two for a line, three for a face.
    group : str
        CSS class and what the page's buttons show or hide.
    colour : str
        CSS colour; empty where the class says it.
    size : float
        Radius of a dot.
    text : str
        A letter instead of a dot.
    """

    points: tuple[int, ...]
    group: str
    colour: str = ""
    size: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Scene:
    """Points (n, 3) in units of the sphere's radius and marks on them, drawn back to front."""

    points: FloatArray
    marks: list[Mark] = field(default_factory=list)

    @property
    def coordinates(self) -> str:
        """The points as the script reads them: thousandths, separated by spaces."""
        return " ".join(str(int(value)) for value in np.rint(1000 * self.points).ravel())

    @property
    def view(self) -> str:
        """The first view as the script reads it."""
        return " ".join(f"{value:.5f}" for value in first_view().ravel())

    def svg(self) -> Markup:
        """Draw all marks, the farthest first."""
        seen = self.points @ first_view().T
        depth = [float(np.mean([seen[i, 2] for i in mark.points])) for mark in self.marks]
        order = sorted(range(len(self.marks)), key=lambda i: (depth[i], i))
        return Markup("").join(_draw(self.marks[i], seen, depth[i]) for i in order)


def _draw(mark: Mark, seen: FloatArray, depth: float) -> Markup:
    flat = [(0.9 * RADIUS * seen[i, 0], -0.9 * RADIUS * seen[i, 1]) for i in mark.points]
    common = f'class="{mark.group}" data-i="{" ".join(map(str, mark.points))}"'
    if mark.colour:
        common += f' style="--mark:{mark.colour}"'
    if mark.text:
        (x, y) = flat[0]
        text = f'<text {common} x="{x:.1f}" y="{y:.1f}">{mark.text}</text>'
    elif len(flat) == 1:
        back = ' data-back=""' if depth < 0 else ""
        (x, y) = flat[0]
        text = f'<circle {common}{back} cx="{x:.1f}" cy="{y:.1f}" r="{mark.size:g}"/>'
    elif len(flat) == 2:
        (x1, y1), (x2, y2) = flat
        text = f'<line {common} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    else:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in flat)
        text = f'<polygon {common} points="{corners}"/>'
    return mark_as_html(text)  # numbers and our own words


def gradient_scene(
    tables: Sequence[tuple[str, FloatArray]], shell_of: npt.NDArray[np.intp]
) -> Scene:
    """Put several versions of a gradient table on one sphere.

    Parameters
    ----------
    tables : sequence of (str, (n, 3) array)
        Group of the marks and directions; the opposite point of each direction, which is the
        same measurement, gets a smaller mark.
    shell_of : (n,) array of int
        Number of the shell of each volume, which sets its colour; -1 for a b0.
    """
    # Right, anterior and superior: lines from the centre to letters just outside the sphere.
    points: list[FloatArray] = [np.zeros(3), *np.eye(3), *(1.17 * np.eye(3))]
    marks = [Mark((0, i), "axis") for i in (1, 2, 3)]
    marks += [Mark((i,), "axis", text=letter) for i, letter in zip((4, 5, 6), "RAS", strict=True)]
    for group, table in tables:
        for direction, shell in zip(table, shell_of, strict=True):
            length = np.linalg.norm(direction)
            if shell < 0 or not np.isfinite(length) or length < 1e-3:
                continue
            colour = f"var(--c{shell % len(PALETTE)})"
            for sign, size in ((1.0, 3.6), (-1.0, 1.8)):
                marks.append(Mark((len(points),), group, colour, size))
                points.append(sign * direction / length)
    return Scene(np.array(points).reshape(-1, 3), marks)


@dataclass(frozen=True, slots=True)
class VoxelSignal:
    """One voxel: what was measured, what the samples say, and where they differ.

    Attributes
    ----------
    measured : (n,) array
        S/b0 along ``directions``.
    predicted : (n,) array
        The samples, read back along the measured directions.
    samples : (6 nside²,) array
    """

    directions: FloatArray
    measured: FloatArray
    predicted: FloatArray
    samples: FloatArray
    nside: int

    @property
    def residual_rms(self) -> float:
        """Root mean square of measured minus predicted."""
        return float(np.sqrt(np.mean((self.measured - self.predicted) ** 2)))

    @property
    def axis(self) -> FloatArray:
        """Unit vector along which the signal is lowest: that of fibres, where there are any."""
        points = distinct_directions(self.nside)
        moments = np.einsum("p,pi,pj->ij", self.samples, points, points)
        return np.asarray(np.linalg.eigh(moments)[1][:, 0])


def voxel_signal(
    directions: FloatArray, measured: FloatArray, samples: FloatArray, nside: int
) -> VoxelSignal:
    """Read the samples back along the measured directions, as the sampling stage does."""
    back = resampling_matrix(distinct_directions(nside), directions)
    return VoxelSignal(directions, measured, back @ samples, samples, nside)


GLYPH_COLOURS = "cividis"
_LONGEST_RADIUS = 1.2


def common_radius(signals: Sequence[VoxelSignal]) -> float:
    """Return the S/b0 that reaches the rim in every glyph: the largest of all of them."""
    largest = [max(s.samples.max(), s.measured.max(initial=0)) for s in signals]
    return float(np.clip(max(largest, default=1.0), 1e-6, _LONGEST_RADIUS))


def glyph_scene(signal: VoxelSignal, rim: float) -> Scene:
    """Draw the samples as a surface of radius S/b0, measurements as dots, residuals as lines.

    Parameters
    ----------
    signal : VoxelSignal
    rim : float
        The S/b0 that reaches the rim and the end of the colours.
    """
    from scipy.spatial import ConvexHull

    sphere = healpix_points(signal.nside)
    radii = np.clip(expand(signal.samples, signal.nside), 0, rim)
    scale = 1 / rim
    colours = colour_table(GLYPH_COLOURS)
    marks = []
    for face in ConvexHull(sphere).simplices:
        share = radii[face].mean() / rim
        red, green, blue = colours[int(np.clip(255 * share, 0, 255))]
        corners = tuple(int(i) for i in face)
        marks.append(Mark(corners, "face", f"#{red:02x}{green:02x}{blue:02x}"))
    points = [radii[:, None] * sphere * scale]
    count = len(sphere)
    for direction, measured, predicted in zip(
        signal.directions, signal.measured, signal.predicted, strict=True
    ):
        for sign in (1.0, -1.0):
            ends = np.stack([measured * direction, predicted * direction]) * sign * scale
            points.append(ends)
            marks.append(Mark((count, count + 1), "residual"))
            marks.append(Mark((count,), "measured", size=2.4))
            count += 2
    return Scene(np.concatenate(points), marks)


def draw_profile(signal: VoxelSignal, *, name: str, description: str) -> Markup:
    """Draw S/b0 against the angle to the axis, and the residuals below."""
    with figure(3.4, 3.0, nrows=2, sharex=True, height_ratios=[2.2, 1]) as (drawing, axes):
        upper, lower = axes
        samples_at = _angle(distinct_directions(signal.nside), signal.axis)
        measured_at = _angle(signal.directions, signal.axis)
        upper.plot(samples_at, signal.samples, ".", ms=4, color=PALETTE[0], label="HEALPix")
        upper.plot(
            measured_at, signal.measured, "o", ms=5, mfc="none", mew=1.3, color=PALETTE[1],
            label="measured",
        )  # fmt: skip
        upper.set_ylabel("S/b0")
        top = max(1.0, float(signal.measured.max(initial=0)), float(signal.samples.max()))
        upper.set_ylim(0, 1.05 * top)
        upper.legend(loc="upper left", ncols=2, fontsize=9, labelcolor=SOFT, borderpad=0,
                     handletextpad=0.2, columnspacing=1, bbox_to_anchor=(0, 1.25))  # fmt: skip
        residual = signal.measured - signal.predicted
        lower.vlines(measured_at, 0, residual, color=PALETTE[1], lw=1.2)
        lower.axhline(0, color=SOFT, lw=0.8)
        reach = max(0.05, 1.15 * float(np.abs(residual).max(initial=0)))
        lower.set_ylim(-reach, reach)
        lower.set_ylabel("residual")
        lower.set_xlabel("Angle to the axis (°)")
        lower.set_xlim(-2, 92)
        lower.set_xticks([0, 30, 60, 90])
        drawing.align_ylabels(axes)
        return to_svg(drawing, name, description)


def _angle(directions: npt.NDArray[Any], axis: FloatArray) -> FloatArray:
    cosine = np.abs(directions @ axis) / np.maximum(np.linalg.norm(directions, axis=-1), 1e-9)
    return np.asarray(np.degrees(np.arccos(np.clip(cosine, 0, 1))))
