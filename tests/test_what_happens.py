"""The page of all cases lists those that the tests know, and no traceback."""

import re

from what_happens import PAGE, all_cases, listed_rows


def test_the_page_has_a_row_for_every_case():
    page = PAGE.read_text(encoding="utf-8")
    known = [(case.section, case.name) for case in all_cases()]
    assert list(listed_rows(page)) == known, "run make what-happens"
    assert len(known) == len(set(known)) > 100


def test_every_row_has_a_code_and_a_sentence_and_none_a_traceback():
    page = PAGE.read_text(encoding="utf-8")
    assert "Traceback (most" not in page
    rows = [line for line in page.splitlines() if re.match(r"\| (?!case|---)", line)]
    for row in rows:
        _, code, sentence, left = row.removeprefix("| ").removesuffix(" |").split(" | ")
        assert code in {"0", "1", "2", "70", "130", "143"}, row
        assert code == "0" or len(sentence) > 30, row
        assert left
