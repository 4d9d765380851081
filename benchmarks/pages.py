"""Pages of results: tables that a program writes, and notes below them that a person writes."""

import subprocess
from pathlib import Path

from bids_gevnet.bids.writing import write_text

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NOTES = "### Notes\n"


def write_page(path: Path, text: str) -> None:
    """Write a page; of an old one, everything from its notes on is kept."""
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    notes = old[old.index(NOTES) :] if NOTES in old else ""
    write_text(path, "\n\n".join(part for part in (text.rstrip(), notes.rstrip()) if part) + "\n")


def current_commit() -> str:
    """Short name of the commit that measures, "unknown" outside a repository."""
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
