"""What a run left on disk, held against the reference pages of the documentation."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"

NAMES_OF_THE_STUDY = {"files", "inputs", "models", "ours", "paper"}
"""Keys whose objects have files, folds or tasks for keys."""

OF_THE_STUDY = ("fold_", "prob_", "value_")
"""Beginnings of columns that end with a task, a label or a column of participants.tsv."""


def load_extension(name: str) -> ModuleType:
    """Load a module of the documentation, such as the one that writes the reference pages."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def documented_words() -> set[str]:
    """Everything the reference pages set as code."""
    pages = load_extension("reference_pages")
    text = pages.facts_page() + pages.model_card_page() + pages.files_page()
    text += pages.saliency_page()
    for name in ("tables.md", "json_files.md"):
        text += (DOCS / "reference" / name).read_text(encoding="utf-8")
    return set(re.findall(r"`([^`\n]+)`", text))


def undocumented(output: Path, raw: Path) -> list[str]:
    """List columns and keys of OUTPUT_DIR that no reference page explains.

    Parameters
    ----------
    output : Path
        OUTPUT_DIR of both levels.
    raw : Path
        BIDS_DIR, whose sidecars are copied.
    """
    known = documented_words()
    for path in raw.rglob("*.json"):
        known |= set(_keys(json.loads(path.read_text(encoding="utf-8"))))
    found = {}
    for path in sorted(output.rglob("*")):
        if "work" in path.relative_to(output).parts:
            continue
        for word in words_of(path):
            if word not in known and not word.startswith(OF_THE_STUDY):
                found.setdefault(word, f"{word} in {path.name}")
    return list(found.values())


def words_of(path: Path) -> Iterator[str]:
    """Columns of a table, or keys of a JSON file."""
    if path.suffix in (".tsv", ".csv"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        yield from first.split("," if path.suffix == ".csv" else "\t")
    elif path.suffix == ".json":
        yield from _keys(json.loads(path.read_text(encoding="utf-8")))


def _keys(content: Any, parent: str = "") -> Iterator[str]:
    if isinstance(content, list):
        for item in content:
            yield from _keys(item)
    elif isinstance(content, dict):
        for key, value in content.items():
            if parent not in NAMES_OF_THE_STUDY:
                yield key
            yield from _keys(value, key)
