"""Draw for the reports: lines as SVG that follows the page's theme, images as PNG.

A figure is drawn by matplotlib in the sentinel colours of ``INK`` and written with references to
the page's CSS variables instead, so that one drawing serves the light theme, the dark one and
print. Identifiers get the figure's name as prefix, because several figures share one document.
The same input gives the same bytes: identifiers are numbered anew, dates left out.
"""

import base64
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from bids_gevnet.report.page import mark_as_html

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""

INK: Mapping[str, str] = {
    "#010203": "var(--ink)",
    "#040506": "var(--soft)",
    "#070809": "var(--line)",
    **{colour.lower(): f"var(--c{number})" for number, colour in enumerate(PALETTE)},
}
"""Sentinel colours and what stands for them in the page."""

FOREGROUND, SOFT, LINE = list(INK)[:3]

_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bids_gevnet",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": FOREGROUND,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "text.parse_math": False,  # a label with a dollar is a label
}


@contextmanager
def figure(width: float, height: float, **grid: Any) -> Iterator[tuple[Any, Any]]:
    """Give a figure of some inches and its axes, in the reports' style, and close it.

    No pyplot: it keeps global state, and reports may be built in threads.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(dict(_STYLE)):
        drawing = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(drawing)
        yield drawing, drawing.subplots(**grid)


def label_whole_numbers(axis: Any) -> None:
    """Label an axis, such as that of volumes, with whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def plain_label(text: str, length: int = 24) -> str:
    """Shorten a label of the dataset for a chart; what cannot be printed becomes a blank."""
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def to_svg(drawing: Any, name: str, description: str) -> Markup:
    """Write a figure as inline SVG.

    Parameters
    ----------
    drawing : matplotlib.figure.Figure
        From `figure`, while its context is open.
    name : str
        Prefix of all identifiers, different from every other figure's in the document.
    description : str
        What a person who cannot see the figure should know.
    """
    stream = io.StringIO()
    with warnings.catch_warnings():
        # The reader's browser has the letters that our font for measuring lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawing.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = _rename_identifiers(text, re.sub(r"[^A-Za-z0-9-]", "-", name))
    for sentinel, variable in INK.items():
        text = text.replace(sentinel, variable)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"(?<=[\s\"])(-?\d+\.\d{3})\d+", r"\1", text)  # a thousandth of a pixel will do
    view = re.search(r'viewBox="[^"]*"', text)
    head = (
        f'<svg class="chart" role="img" aria-label="{escape(description)}" '
        f"{view.group(0) if view else ''}>"
    )
    return mark_as_html(head + text[text.index(">") + 1 :])


def _rename_identifiers(svg: str, prefix: str) -> str:
    """Give numbers to the identifiers that are referred to, and drop the others.

    Matplotlib makes some from the addresses of objects, which differ between two runs.
    """
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    names = {old: f"{prefix}-{number}" for number, old in enumerate(used)}
    svg = re.sub(r'\sid="([^"]+)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", svg)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + names[m[2]], svg)


def to_png_uri(values: npt.NDArray[np.uint8], colours: npt.NDArray[np.uint8] | None = None) -> str:
    """Write an image as a data URI.

    Parameters
    ----------
    values : (height, width) or (height, width, 3) array of uint8
        Shades, numbers of colours, or red, green and blue.
    colours : (256, 3) array of uint8, optional
        What the values stand for (default: shades of grey).
    """
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(values))
    if colours is not None:
        image = image.convert("P")
        image.putpalette(colours.tobytes())
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def colour_table(name: str) -> npt.NDArray[np.uint8]:
    """Return a matplotlib colour map as (256, 3) bytes."""
    import matplotlib as mpl

    table = mpl.colormaps[name](np.arange(256) / 255.0)
    return np.asarray(np.rint(255 * table[:, :3]), dtype=np.uint8)


def colour_bar(name: str) -> str:
    """Draw a matplotlib colour map as a bar of one pixel's height, as a data URI."""
    return to_png_uri(np.arange(256, dtype=np.uint8)[None], colour_table(name))


def to_bytes(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.uint8]:
    """Map low to 0 and high to 255, clipping what lies outside."""
    span = max(high - low, 1e-12)
    return np.asarray(np.rint(255 * np.clip((values - low) / span, 0, 1)), dtype=np.uint8)
