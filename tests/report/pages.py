"""Read a report as a browser without eyes does: tags, identifiers, words."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

VOID = {"meta", "link", "img", "input", "br", "image", "path", "circle", "line", "polygon",
        "polyline", "rect", "use", "hr"}  # fmt: skip


class Page(HTMLParser):
    """What a page consists of, and whether its tags match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        self.loaded += [found[key] for key in ("src", "srcset", "data") if found.get(key)]
        if tag in {"link", "image", "use", "script", "iframe"} and found.get("href"):
            self.loaded.append(found["href"])
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if self._open and self._open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]

    def assert_accessible(self) -> None:
        """Check what screen readers need: one title, no level left out, names for all."""
        levels = [int(tag[1]) for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        assert all(found.get("alt") for found in self.named("img"))
        for found in self.named("svg"):
            assert found.get("aria-hidden") == "true" or (
                found.get("role") == "img" and found.get("aria-label")
            )
        for found in self.named("section"):
            assert found["aria-labelledby"] in self.ids
