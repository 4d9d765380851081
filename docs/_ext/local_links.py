"""Every link of the built site leads to a page and a place that is there; nothing is fetched."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_log = logging.getLogger(__name__)
_LINKS = {"a": "href", "link": "href", "img": "src", "script": "src"}


class _Page(HTMLParser):
    """Names that can be linked to, and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := found.get(key))}
        link = found.get(_LINKS.get(tag, ""))
        if link:
            self.links.add(link)


def broken_links(root: Path) -> list[str]:
    """Name every local link without a target, and every other one that is no address.

    Parameters
    ----------
    root : Path
        Folder of the built site.
    """
    pages = {
        path.resolve(): _Page(path.read_text(encoding="utf-8"))
        for path in root.rglob("*.html")
        if "_static" not in path.parts  # templates of the theme
    }
    problems = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme in {"http", "https"}:
                leads = bool(parts.hostname and "." in parts.hostname)
            elif parts.scheme:
                leads = parts.scheme in {"data", "mailto"}
            else:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                name = unquote(parts.fragment)
                known = not name or target not in pages or name in pages[target].names
                leads = target.exists() and known
            if not leads:
                problems.append(f"{path.relative_to(root.resolve())}: {link}")
    return problems


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for problem in broken_links(Path(app.outdir)):
            _log.warning("A link that leads nowhere: %s", problem)


def setup(app: Sphinx) -> dict[str, bool]:
    """Check once the site is written."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
