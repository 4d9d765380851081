"""Notes of the wrong kind are left out; everything else stays."""

import pytest

from bids_gevnet.report.facts import clean_facts


def test_good_facts_stay_as_they_are():
    facts = {
        "name": "sub-01",
        "acquisition": [{"name": "sub-01", "readout_s": 0.05, "readout_is_dummy": False}],
        "sphere": {"nside": 4, "b_value": 998.0, "smoothing": 0},
        "quality": {"cnr": 2.8, "anything": [1, "x"]},
        "of_a_later_version": {"a": 1},
    }
    assert clean_facts(facts) == facts


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("sphere", "nside", True),
        ("sphere", "nside", 0),
        ("sphere", "nside", 4.5),
        ("sphere", "b_value", float("nan")),
        ("sphere", "kernel", 3),
        ("registration", "poor", "no"),
        ("quality", "warnings", "one string"),
        ("quality", "warnings", [1]),
        ("mask", "volume_ml", None),
        ("join", "apart_mm", [0.0, "far"]),
    ],
)
def test_a_value_of_the_wrong_kind_is_left_out(part, key, value):
    assert clean_facts({part: {key: value, "other": 1}}) == {part: {"other": 1}}


def test_runs_keep_their_places():
    # The second run must not be taken for the first when the first has no notes.
    assert clean_facts({"conform": [None, {"not_finite": 3}]}) == {
        "conform": [{}, {"not_finite": 3}]
    }


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_no_facts_at_all(raw):
    assert clean_facts(raw) == {}
