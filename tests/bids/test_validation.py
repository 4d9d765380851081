"""The BIDS validator, as the program runs it."""

import json
from pathlib import Path

from bids_gevnet.bids.validation import ValidatorIssue, name_issues, validate_dataset

BEYOND_A_THOUSAND = 1001
"""The validator reads no more than a thousand rows of a table unless it is told to."""


def codes_of_errors(dataset: Path) -> set[str]:
    return {issue.code for issue in validate_dataset(dataset) if issue.severity == "error"}


def test_every_row_of_a_long_table_of_participants_is_read(tmp_path: Path) -> None:
    description = {"Name": "many", "BIDSVersion": "1.10.0"}
    (tmp_path / "dataset_description.json").write_text(json.dumps(description))
    (tmp_path / "README").write_text("Many participants.\n" * 10)
    names = [f"sub-{number:05d}" for number in range(BEYOND_A_THOUSAND)]
    for name in names:
        (tmp_path / name / "anat").mkdir(parents=True)
        (tmp_path / name / "anat" / f"{name}_T1w.json").write_text("{}")
    table = tmp_path / "participants.tsv"
    table.write_text("\n".join(["participant_id", *names, ""]))
    assert "PARTICIPANT_ID_MISMATCH" not in codes_of_errors(tmp_path)
    table.write_text("\n".join(["participant_id", *names[:-1], ""]))
    assert "PARTICIPANT_ID_MISMATCH" in codes_of_errors(tmp_path)


def test_what_is_found_in_thousands_of_files_takes_a_few_lines() -> None:
    often = [ValidatorIssue("NOT_INCLUDED", "error", f"/out/{i}", "") for i in range(1000)]
    once = ValidatorIssue("EMPTY_FILE", "error", "/sub-01/dwi/x", "")
    lines = list(name_issues([*often[:500], once, *often[500:]]))
    assert len(lines) == 7
    assert lines[0] == "NOT_INCLUDED in /out/0"
    assert lines[-2] == "NOT_INCLUDED in 995 more places"
    assert "/sub-01/dwi/x" in lines[-1]
