"""Render a template into the look that all reports share: one self-contained HTML file.

Styles and the script stand in the file itself, pictures are data URIs, and a content security
policy forbids everything else: the page cannot make a request, and no script but ours, known by
its hash, can run in it. Text from a dataset is escaped by the template engine; only pictures
that this package draws are marked as safe.
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from bids_gevnet.learn.evaluate.permutation import p_text

MISSING = Markup('<span class="missing">not available</span>')

SCRIPTS = ("page.js", "tables.js", "ratings.js")

_TEMPLATES = files(__package__) / "templates"

_MOST_NAMES = 500


def mark_as_html(text: str) -> Markup:
    """Mark what this package wrote or drew itself as HTML, so that it is not escaped again."""
    return Markup(text)  # noqa: S704  # nosec B704


def render_page(template: str, context: Mapping[str, Any]) -> str:
    """Render a template of this package into a self-contained page.

    Parameters
    ----------
    template : str
        Name of a template that extends ``base.html.j2``.
    context : mapping
        What the template shows; it is escaped.
    """
    script = "\n".join(read_template(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            style=mark_as_html(read_template("style.css")),
            script=mark_as_html(script),
            script_hash=f"sha256-{digest}",
            **context,
        )
    )


def read_template(name: str) -> str:
    """Read a file of the templates folder."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["show"] = show
    environment.filters["chance"] = p_text
    environment.filters["packed"] = pack
    environment.filters["some_names"] = some_names
    return environment


def pack(draw: Callable[[Any], str], items: Iterable[Any]) -> str:
    """Write the HTML of many things small: JSON, compressed, as base64; tables.js unpacks it.

    Parameters
    ----------
    draw : callable
        Macro that writes one of them; it escapes what it shows.
    items : iterable

    Examples
    --------
    >>> text = pack(lambda number: f"<td>{number}</td>", range(2))
    >>> json.loads(gzip.decompress(base64.b64decode(text)))
    ['<td>0</td>', '<td>1</td>']
    """
    text = json.dumps([str(draw(item)).strip() for item in items], ensure_ascii=False)
    # No time in it: the same files give the same page.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def some_names(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    """List names, of very many the first ones.

    >>> some_names(["sub-01", "sub-02", "sub-03"], most=2)
    'sub-01, sub-02 and 1 more'
    """
    listed: Sequence[str] = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def show(value: object, unit: str = "", digits: int = 3) -> str | Markup:
    """Write a value for a person: few digits, a thin space before the unit, or "not available".

    >>> show(1.23456, "mm")
    '1.23 mm'
    >>> show([2.0, 2.0, 2.5], "mm")
    '2 × 2 × 2.5 mm'
    """
    text = _plain(value, digits)
    if not text:
        return MISSING
    return f"{text} {unit}" if unit else text


def _plain(value: object, digits: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value, digits)
    if isinstance(value, list | tuple):
        return " × ".join(_plain(item, digits) or "?" for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item, digits) or '?'}" for key, item in value.items())
    return "" if value is None else str(value).strip()


def _number(value: float, digits: int) -> str:
    """Write some digits in fixed notation: 1e+03 helps nobody."""
    if not math.isfinite(value):
        return ""
    if 0 < abs(value) < 1e-3:
        return f"{value:.2g}"
    before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:.{max(digits - before, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
