import numpy as np
import pytest

from bids_gevnet.report.page import render_page
from bids_gevnet.report.subject.correction import describe_corrections

FACTS = {
    "method": "model",
    "largest_eddy_mm": 1.25,
    "eddy_terms_mm": np.random.default_rng(0).normal(size=(7, 10)).round(3).tolist(),
    "outlier_slices": 2,
    "outlier_list": [[3, 17, -8.5], [5, 2, -4.25]],
    "susceptibility": True,
    "susceptibility_field": {
        "largest_mm": 6.5,
        "correlation_before": 0.68,
        "correlation_after": 0.95,
        "planes_mm": [np.outer(np.arange(9.0), np.arange(8.0)).tolist()] * 3,
    },
    "not_done": "motion within a volume",
}


def test_everything_is_told():
    (view,) = describe_corrections([FACTS, {"method": "ants"}], "s1")
    shown = {name: (value, remark) for name, value, remark in view.figures}
    assert shown["Largest eddy displacement"][0] == "1.25 mm"
    assert shown["Lost slices"][0] == "2"
    assert shown["Opposite b0s agree"] == ("0.95", "correlation; 0.68 before")
    assert view.lost == [(3, 17, -8.5), (5, 2, -4.25)]
    assert "7 volumes" in view.eddy_chart
    assert "three planes" in view.field_chart


def test_the_field_is_drawn_over_the_head_and_not_beyond_it():
    head = np.zeros((9, 8))
    head[1:3, 1:3] = 1
    field = FACTS["susceptibility_field"]
    with_head = field | {"head": [head.tolist()] * 3}
    (view,) = describe_corrections([FACTS | {"susceptibility_field": with_head}], "s1")
    (bare,) = describe_corrections([FACTS | {"susceptibility_field": field}], "s1")
    # All contours of this field but one lie beyond the head.
    assert len(view.field_chart) < len(bare.field_chart)


def test_without_an_opposite_b0_it_says_so():
    (view,) = describe_corrections([FACTS | {"susceptibility_field": None}], "s1")
    assert view.field_chart is None
    assert ("Susceptibility", "not corrected", "no usable b0 of opposite encoding") in view.figures


@pytest.mark.parametrize(
    "broken",
    [
        {"eddy_terms_mm": "nonsense"},
        {"eddy_terms_mm": [[1, 2], [3]]},
        {"outlier_list": [[1, 2]]},
        {"susceptibility_field": {"planes_mm": [[[1.0]]] * 3}},
        {"susceptibility_field": {"planes_mm": [[1.0], [], None]}},
        {"susceptibility_field": {"planes_mm": 3, "largest_mm": "six"}},
        {"susceptibility_field": FACTS["susceptibility_field"] | {"head": [[[1]]] * 3}},
        {"susceptibility_field": FACTS["susceptibility_field"] | {"head": "round"}},
        {"largest_eddy_mm": None},
    ],
)
def test_broken_facts_leave_gaps_and_do_not_fail(broken):
    (view,) = describe_corrections([FACTS | broken], "s1")
    assert view.not_done == "motion within a volume"


def test_other_methods_have_no_section():
    assert describe_corrections([{"method": "eddy"}, {}], "s1") == []


def test_the_fragment_escapes_what_it_shows():
    views = describe_corrections([FACTS | {"not_done": "<b>bold</b>"}], "s1")
    page = render_page("subject_correction.html.j2", {"scan": {"corrections": views}})
    assert "&lt;b&gt;bold" in page
    assert "Replaced slices" in page
    assert "-8.5" in page
