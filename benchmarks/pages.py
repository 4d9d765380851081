"""Pages of results: tables that a program writes, and notes below them that a person writes."""

from pathlib import Path

from bids_gevnet.bids.writing import write_text

RESULTS = Path(__file__).parent / "results"
NOTES = "### Notes\n"


def write_page(path: Path, text: str) -> None:
    """Write a page; of an old one, everything from its notes on is kept."""
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    notes = old[old.index(NOTES) :] if NOTES in old else ""
    write_text(path, "\n\n".join(part for part in (text.rstrip(), notes.rstrip()) if part) + "\n")
