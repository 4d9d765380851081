"""Who takes part: labels, exclusions and the participants file, resolved together."""

import pytest

from bids_gevnet.bids.participants import is_missing, trim_cell
from bids_gevnet.bids.selection import EXCLUDED, NOT_ASKED_FOR, read_selection
from bids_gevnet.errors import InputError
from bids_gevnet.settings import SelectionSettings

PRESENT = ("01", "02", "03", "04")


def members(**options):
    selection = read_selection(SelectionSettings(**options), PRESENT)
    return [label for label in PRESENT if selection.reason_against(label) is None]


def test_without_options_everybody_takes_part():
    assert members() == list(PRESENT)


def test_exclusion_wins_over_choice():
    options = {"participant_label": ("01", "sub-02"), "exclude_participant_label": ("sub-02",)}
    assert members(**options) == ["01"]
    selection = read_selection(SelectionSettings(**options), PRESENT)
    assert selection.reason_against("02") == EXCLUDED
    assert selection.reason_against("03") == NOT_ASKED_FOR


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("01\nsub-03\n", ["01", "03"]),
        ("\ufeff01\r\n\r\n 03 \r\n", ["01", "03"]),
        ('"sub-01"\n01\n', ["01"]),
        ("participant_id\nsub-04\n", ["04"]),
        ("participant_id\tinclude\nsub-01\tyes\nsub-02\tno\nsub-03\tTRUE\n", ["01", "03"]),
        ("include\tparticipant_id\n1\tsub-01\n0\tsub-02\n", ["01"]),
        (
            "participant_id\tage\texclude\nsub-01\t70\tYes\nsub-02\tn/a\tfalse\n",
            ["02", "03", "04"],
        ),
        ("participant_id\texclude\nsub-01\t0\n", list(PRESENT)),
    ],
)
def test_participants_files(tmp_path, content, expected):
    path = tmp_path / "who.tsv"
    path.write_bytes(content.encode())
    assert members(participants_file=path) == expected


def test_file_and_labels_are_taken_together(tmp_path):
    path = tmp_path / "who.txt"
    path.write_text("01\n02\n")
    assert members(participants_file=path, participant_label=("02", "03")) == ["02"]
    assert members(participants_file=path, exclude_participant_label=("02",)) == ["01"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found nothing"),
        (b"\n \n", "found nothing"),
        (b"01,02\n", "found '01,02' in line 1"),
        (b"01 02\n", "found '01 02' in line 1"),
        (b"01\n02\tyes\n", "in line 2"),
        (b"participant_id,include\n01,yes\n", "in line 1"),
        (b"participant_id\tage\n01\t70\n", "the columns participant_id, age"),
        (b"id\tinclude\n01\tyes\n", "the columns id, include"),
        (b"participant_id\tinclude\texclude\n01\t1\t0\n", "the columns participant_id, include"),
        (b"participant_id\tinclude\n01\tmaybe\n", "'maybe' for include in line 2"),
        (b"participant_id\tinclude\n01\t\n", "'' for include in line 2"),
        (b"participant_id\tinclude\n01\n", "1 cells instead of 2 in line 2"),
        (b"participant_id\tinclude\n01\tyes\nsub-01\tno\n", "both yes and no for 01"),
        (b"participant_id\tinclude\n\tyes\n", "in line 2"),
        (b"\xff\xfe0\x001\x00", "UTF-8"),
        (b"99\n", "99, which the dataset does not have"),
        (b"participant_id\texclude\nsub-99\tyes\n", "99, which the dataset does not have"),
        (b"participant_id\tinclude\n01\tno\n", "at least one participant"),
    ],
)
def test_unusable_files_are_a_sentence(tmp_path, content, message):
    path = tmp_path / "who.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        members(participants_file=path)
    assert message in str(caught.value)
    assert "--participants-file" in str(caught.value)


@pytest.mark.parametrize("where", ["missing.txt", "."])
def test_a_file_that_is_none(tmp_path, where):
    with pytest.raises(InputError, match="a readable text file for --participants-file"):
        members(participants_file=tmp_path / where)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("participant_label", "--participant-label"),
        ("exclude_participant_label", "--exclude-participant-label"),
    ],
)
def test_unknown_labels_are_named(option, name):
    with pytest.raises(InputError, match=rf"for {name}; found 98, 99, which"):
        members(**{option: ("99", "01", "sub-98")})


def test_nobody_left_is_a_sentence():
    with pytest.raises(InputError, match="at least one participant"):
        members(exclude_participant_label=PRESENT)


@pytest.mark.parametrize("text", ["it's", 'a "b" c', "AD"])
def test_quotes_inside_stay(text):
    assert trim_cell(f' "{text}" ') == text


def test_missing_is_what_bids_r_and_python_write():
    assert all(map(is_missing, ["", " ", "n/a", '"NA"', " NaN", "None"]))
    assert not any(map(is_missing, ["none", "0", "-", "unknown", "NAS"]))
