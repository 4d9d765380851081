"""Names of tasks."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.learn.cohort.tasks import Task, choose_tasks, make_tasks, slug


@settings(deadline=None)
@given(st.text(min_size=1))
def test_slug_is_a_safe_folder_name(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9]+(-[0-9a-f]{4})?", slug(text))


@settings(deadline=None)
@given(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
def test_labels_that_look_alike_get_different_folders(first: str, second: str) -> None:
    if first != second and re.sub(r"\W", "", first) == re.sub(r"\W", "", second):
        assert slug(first) != slug(second)


def test_pairs_and_all() -> None:
    assert [t.slug for t in make_tasks("BAC")] == ["A-v-B", "A-v-C", "B-v-C"]
    assert make_tasks("BAC", pairs=False) == (Task(("A", "B", "C")),)


def test_title_keeps_the_label_as_it_is() -> None:
    assert Task(("<b>", "PD")).title == "<b> v. PD"


def test_many_labels_are_told_apart_at_once_and_that_is_said() -> None:
    tasks, warnings = choose_tasks("ABCDE", "pairs")
    assert (len(tasks), warnings) == (10, ())
    tasks, warnings = choose_tasks("ABCDEF", "pairs")
    assert tasks == (Task(tuple("ABCDEF")),)
    assert "15 pairs" in warnings[0]


def test_all_at_once_when_asked() -> None:
    assert choose_tasks("BCA", "all") == ((Task(("A", "B", "C")),), ())
