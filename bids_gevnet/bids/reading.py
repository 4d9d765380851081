"""Read small files that may be missing, damaged or no files at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bids_gevnet.errors import describe_unreadable

_LARGEST_TEXT = 1 << 26
"""Bytes; the longest sidecars that converters write are a hundred times shorter."""


def read_text(path: Path) -> str:
    """Read a text file, or raise an `OSError` or `ValueError` that says why it cannot be read.

    A link may point anywhere: nothing but a regular file of sensible size is opened, because a
    device or a pipe would never end.
    """
    if not path.exists():
        raise FileNotFoundError("there is no such file, or it is a link to one that is not there")
    if not path.is_file():
        raise OSError("it is no regular file")
    if path.stat().st_size > _LARGEST_TEXT:
        raise ValueError(f"it has {path.stat().st_size} bytes, more than any such file needs")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(describe_unreadable(error)) from None


def parse_json(path: Path) -> Any:
    """Read a JSON file, or raise an `OSError` or `ValueError` that says why it cannot be read."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError(describe_unreadable(error)) from None


def read_json(path: Path) -> Mapping[str, Any]:
    """Read the object in a JSON file; empty if there is none."""
    try:
        content = parse_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}
