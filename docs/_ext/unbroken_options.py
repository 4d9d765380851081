"""Options such as --strides stay in one piece where a page is narrow; long names may break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LONGEST = 16
"""Letters that fit into a column of a telephone."""


def _mark(app: Sphinx, doctree: nodes.document, name: str) -> None:  # noqa: ARG001
    for literal in doctree.findall(nodes.literal):
        if all(len(word) <= _LONGEST for word in literal.astext().split()):
            literal["classes"].append("unbroken")


def setup(app: Sphinx) -> dict[str, bool]:
    """Give short code a class of its own, which site.css keeps from breaking."""
    app.connect("doctree-resolved", _mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
