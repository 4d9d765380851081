"""Pages of results: what a person wrote below the tables is never lost."""

from pathlib import Path

from pages import NOTES, write_page


def test_notes_are_kept_and_tables_are_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_page(page, "# Title\n\nold figures\n")
    assert page.read_text() == "# Title\n\nold figures\n"
    page.write_text(f"{page.read_text()}\n{NOTES}\nWhat it means.\n")
    for _ in range(2):
        write_page(page, "# Title\n\nnew figures\n\n\n")
        assert page.read_text() == f"# Title\n\nnew figures\n\n{NOTES}\nWhat it means.\n"
