"""Formulas as MathML, which browsers draw themselves: pages need no script and no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_log = logging.getLogger(__name__)


def _draw(node: nodes.math | nodes.math_block, display: str) -> str:
    """Convert a formula; a command that the converter does not know is a warning."""
    drawn = str(convert(node.astext(), display=display))
    if "\\" in drawn:
        _log.warning("A formula with an unknown command: %s", node.astext(), location=node)
    return drawn


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_draw(node, "inline"))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{_draw(node, "block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer as ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_inline, None), block_renderers=(_block, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
