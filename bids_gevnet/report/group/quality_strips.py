"""Draw strip plots of quality measures: one dot per scan, in columns of sites.

Of very many scans, bars say how many have which value, and only scans far from the others of their
site are dots: the size of the page grows with the sites, not with the scans.

Dots are SVG elements of their own, with the scan's key, so that the page's script can light up
one scan in every plot at once; without the script they are a picture all the same. Shape and
colour both say the class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from bids_gevnet.report.figures.drawing import PALETTE, plain_label
from bids_gevnet.report.group.cohort import ENOUGH_SCANS, Measure
from bids_gevnet.report.group.limits import LIMITS
from bids_gevnet.report.group.study_files import CohortScan
from bids_gevnet.report.measures import robust_distances, usual_range

NARROW, WIDE, HEIGHT = 300, 620, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 6, 8, 20
_TICK_LETTERS = 6
_SQUEEZED = Markup(' textLength="{}" lengthAdjust="spacingAndGlyphs"').format(_LEFT - 6)
"""For numbers with more letters than there is room for, where all scans are nearly alike."""
_MOST_NAMED = 6
_LONGEST_NAME = 18
_LINE = 10.0
"""Distance of two names in a column, above the height of their letters."""
MOST_FAR = 60
"""Dots beside the bars, at most."""
_MOST_FAR_NAMES = 8
_BARS = 54
_CROWDED = ((200, 0.7), (80, 0.85), (0, 1.0))
"""Scans from which dots are smaller, and how much."""

SHAPES = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0",
    "M-3-3h6v6h-6z",
    "M0-4L3.8 3h-7.6z",
    "M0 4L3.8-3h-7.6z",
    "M0-4.2L4.2 0L0 4.2L-4.2 0z",
    "M-1.2-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
)
"""Circle, square, two triangles, diamond, cross: a shape for each colour."""


@dataclass(frozen=True)
class StripPlot:
    """A plot and what to say about it."""

    measure: Measure
    svg: Markup
    summary: str
    wide: bool
    binned: bool = False
    most_far: int = MOST_FAR


def class_style(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each class; they repeat where there are more than six."""
    return {
        label: (f"var(--c{i % len(PALETTE)})", SHAPES[i % len(SHAPES)])
        for i, label in enumerate(labels)
    }


def draw_strips(
    scans: Sequence[CohortScan], measures: Sequence[Measure], *, most_dots: int = LIMITS.dots
) -> list[StripPlot]:
    """Draw every measure: each scan, or bars where there are more scans than `most_dots`."""
    binned = len(scans) > most_dots
    return [_draw(scans, measure, binned=binned) for measure in measures]


def _draw(scans: Sequence[CohortScan], measure: Measure, *, binned: bool) -> StripPlot:
    sites = sorted({scan.site for scan in scans})
    style = class_style(sorted({scan.label for scan in scans}))
    known = [value for value in measure.values if value is not None]
    ticks = nice_ticks(min(known), max(known))
    low, high = min(ticks[0], *known), max(ticks[-1], *known)
    span = max(high - low, 1e-12)
    width = NARROW if len(sites) <= _MOST_NAMED else WIDE
    column = (width - _LEFT - _RIGHT) / len(sites)
    size = next(size for count, size in _CROWDED if len(known) >= count)
    parts = [
        _axes(ticks, low, span, sites, column),
        *_usual_bands(scans, measure, sites, low, span, column),
    ]
    seen: dict[tuple[str, int], int] = {}
    far: list[tuple[CohortScan, float, float]] = []
    places = {site: number for number, site in enumerate(sites)}
    drawn = list(range(len(scans)))
    if binned:
        parts += _bars(scans, measure, sites, low, span, column)
        drawn, size = _farthest(scans, measure)[:MOST_FAR], 1.0
    ringed = set(drawn if binned else measure.far)
    named = set(drawn[:_MOST_FAR_NAMES]) if binned else ringed
    for number in drawn:
        scan, value = scans[number], measure.values[number]
        if value is None:
            continue
        y = _height(value, low, span)
        # Dots at about the same place stand side by side, turn by turn left and right.
        place = scan.site, round(y / (6 * size))
        rank = seen[place] = seen.get(place, -1) + 1
        offset = (rank + 1) // 2 * (1 if rank % 2 else -1) * min(7.0 * size, 0.3 * column)
        reach = 0.44 * column
        x = _LEFT + column * (places[scan.site] + 0.5) + max(-reach, min(reach, offset))
        colour, shape = style[scan.label]
        parts.append(
            Markup('<path class="dot" data-p="{}" d="{}" transform="translate({} {}){}" ').format(
                scan.key, shape, f"{x:.1f}", f"{y:.1f}", "" if size == 1 else f" scale({size})"
            )
            + Markup('style="--mark:{}" data-v="{}"/>').format(colour, f"{value:.4g}")
        )
        if number in named:
            far.append((scan, x, y))
        elif number in ringed:
            parts.append(_ring(x, y))
    parts += _name_far(far, width)  # above the dots
    summary = _summary(measure, known)
    head = Markup('<svg class="strip" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        width, HEIGHT, summary
    )
    svg = head + Markup("").join(parts) + Markup("</svg>")
    return StripPlot(measure, svg, summary, width == WIDE, binned)


def _bars(
    scans: Sequence[CohortScan],
    measure: Measure,
    sites: Sequence[str],
    low: float,
    span: float,
    column: float,
) -> list[Markup]:
    """Draw how many scans of each site and class have which value: one path for each class."""
    labels = sorted({scan.label for scan in scans})
    style = class_style(labels)
    counts = np.zeros((len(sites), _BARS, len(labels)), int)
    known = [(s, v) for s, v in zip(scans, measure.values, strict=True) if v is not None]
    values = np.array([value for _, value in known])
    rows = np.clip(((values - low) / span * _BARS).astype(int), 0, _BARS - 1)
    site_of = {site: number for number, site in enumerate(sites)}
    label_of = {label: number for number, label in enumerate(labels)}
    for (scan, _), row in zip(known, rows.tolist(), strict=True):
        counts[site_of[scan.site], row, label_of[scan.label]] += 1
    longest = np.maximum(counts.sum(axis=2).max(axis=1), 1)
    height = (HEIGHT - _TOP - _BOTTOM) / _BARS
    paths: list[list[str]] = [[] for _ in labels]
    for site, row in zip(*np.nonzero(counts.sum(axis=2)), strict=True):
        lengths = counts[site, row] * 0.88 * column / longest[site]
        x = _LEFT + column * (site + 0.5) - lengths.sum() / 2
        y = HEIGHT - _BOTTOM - (row + 1) * height
        for path, length in zip(paths, lengths, strict=True):
            if length:
                path.append(f"M{x:.1f} {y:.1f}h{max(length, 0.4):.1f}v{height:.1f}H{x:.1f}z")
            x += length
    return [
        Markup('<path class="bars" d="{}" style="--mark:{}"/>').format(
            "".join(path), style[label][0]
        )
        for label, path in zip(labels, paths, strict=True)
        if path
    ]


def _farthest(scans: Sequence[CohortScan], measure: Measure) -> list[int]:
    """Sort the scans that are far from the others of their site, the farthest first."""
    distance = dict.fromkeys(measure.far, 0.0)
    for site in sorted({scans[number].site for number in measure.far}):
        members = [
            number
            for number, (scan, value) in enumerate(zip(scans, measure.values, strict=True))
            if scan.site == site and value is not None
        ]
        values = np.array([measure.values[number] for number in members], np.float64)
        for number, z in zip(members, robust_distances(values).tolist(), strict=True):
            if number in distance:
                distance[number] = z
    return sorted(distance, key=lambda number: (-distance[number], number))


def _usual_bands(
    scans: Sequence[CohortScan],
    measure: Measure,
    sites: Sequence[str],
    low: float,
    span: float,
    column: float,
) -> list[Markup]:
    """Draw the middle 90 % of each site that has enough scans."""
    bands = []
    for number, site in enumerate(sites):
        values = [v for s, v in zip(scans, measure.values, strict=True) if s.site == site]
        usual = usual_range(None, values)
        if usual is None or usual.count < ENOUGH_SCANS:
            continue
        top, bottom = _height(usual.high, low, span), _height(usual.low, low, span)
        bands.append(
            Markup('<rect class="usual" x="{}" y="{}" width="{}" height="{}"/>').format(
                f"{_LEFT + column * (number + 0.06):.1f}",
                f"{top:.1f}",
                f"{0.88 * column:.1f}",
                f"{max(bottom - top, 1):.1f}",
            )
        )
    return bands


def _name_far(far: Sequence[tuple[CohortScan, float, float]], width: int) -> list[Markup]:
    """Put a ring and the name beside each scan that is far from the others of its site.

    Names of one column that would overlap are moved apart, downwards as far as there is room.
    """
    marks = []
    lines: dict[tuple[str, bool], list[float]] = {}
    for scan, x, y in sorted(far, key=lambda mark: mark[2]):
        right = x < 0.6 * width
        taken = lines.setdefault((scan.site, right), [])
        line = max(y, taken[-1] + _LINE) if taken else y
        taken.append(line)
        marks.append((scan, x, y, right, len(taken) - 1))
    for taken in lines.values():
        for number, lowest in enumerate(reversed(taken)):
            taken[-1 - number] = min(lowest, HEIGHT - _BOTTOM - number * _LINE)
    return [
        _ring(x, y)
        + Markup('<text class="far-name" x="{}" y="{}" text-anchor="{}">{}</text>').format(
            f"{x + 9 if right else x - 9:.1f}",
            f"{lines[scan.site, right][number]:.1f}",
            "start" if right else "end",
            plain_label(scan.scan, _LONGEST_NAME),
        )
        for scan, x, y, right, number in marks
    ]


def _ring(x: float, y: float) -> Markup:
    return Markup('<circle class="far-ring" cx="{}" cy="{}" r="6.5"/>').format(
        f"{x:.1f}", f"{y:.1f}"
    )


def _height(value: float, low: float, span: float) -> float:
    return HEIGHT - _BOTTOM - (value - low) / span * (HEIGHT - _TOP - _BOTTOM)


def _axes(
    ticks: Sequence[float], low: float, span: float, sites: Sequence[str], column: float
) -> Markup:
    lines = []
    for tick in ticks:
        y = f"{_height(tick, low, span):.1f}"
        right = f"{_LEFT + column * len(sites):.0f}"
        lines.append(
            Markup('<line x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, right, y, y)
            + Markup('<text x="{}" y="{}" class="tick"{}>{:g}</text>').format(
                _LEFT - 5, y, _SQUEEZED if len(f"{tick:g}") > _TICK_LETTERS else "", tick
            )
        )
    for number, site in enumerate(sites):
        x = f"{_LEFT + column * (number + 0.5):.1f}"
        # With many sites their numbers are named in the legend.
        name = site if len(sites) <= _MOST_NAMED else str(number + 1)
        room = int(column / 5.6)
        text = name if len(name) <= room else name[: max(room - 1, 1)] + "…"
        lines.append(
            Markup('<text x="{}" y="{}" class="name">{}<title>{}</title></text>').format(
                x, HEIGHT - 6, text, site
            )
        )
    return Markup('<g class="frame">') + Markup("").join(lines) + Markup("</g>")


def numbered_sites(sites: Sequence[str]) -> list[tuple[int, str]]:
    """Numbers that stand for sites in the plots; none where names are written out."""
    return list(enumerate(sites, 1)) if len(sites) > _MOST_NAMED else []


def _summary(measure: Measure, known: Sequence[float]) -> str:
    unit = f" {measure.unit}" if measure.unit else ""
    return (
        f"{measure.name} of {len(known)} scans: median {np.median(known):.3g}{unit}, "
        f"from {min(known):.3g} to {max(known):.3g}{unit}"
        + (f"; {len(measure.far)} far from the others of their site." if measure.far else ".")
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that span a range; a constant gets some room on both sides.

    >>> nice_ticks(0.13, 0.94)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        room = 0.5 * abs(low) or 0.5
        low, high = low - room if low else 0.0, high + room
    rough = (high - low) / count
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(f for f in (1, 2, 2.5, 5, 10) if f * power >= rough * (1 - 1e-9))
    first, last = np.floor(low / step + 1e-9), np.ceil(high / step - 1e-9)
    return [float(round(k * step, 12)) for k in np.arange(first, last + 1)]


def key_mark(colour: str, shape: str) -> Markup:
    """Draw the mark of a class for a legend."""
    return Markup(
        '<svg class="key-mark" viewBox="-5 -5 10 10" aria-hidden="true">'
        '<path class="dot" d="{}" style="--mark:{}"/></svg>'
    ).format(escape(shape), colour)
