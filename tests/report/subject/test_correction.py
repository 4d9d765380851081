from dataclasses import replace

import numpy as np
import pytest

from bids_gevnet.facts import CorrectionFacts, OutlierSlice, SusceptibilityField
from bids_gevnet.interfaces.series import to_rows
from bids_gevnet.report.correction_methods import WHY_NOT_SUSCEPTIBILITY
from bids_gevnet.report.page import render_page
from bids_gevnet.report.subject.correction import describe_corrections

FIELD = SusceptibilityField(
    largest_mm=6.5,
    correlation_before=0.68,
    correlation_after=0.95,
    planes_mm=(to_rows(np.outer(np.arange(9.0), np.arange(8.0))),) * 3,
)
RUN = CorrectionFacts(
    method="model",
    eddy_currents=True,
    largest_eddy_mm=1.25,
    eddy_terms_mm=to_rows(np.random.default_rng(0).normal(size=(7, 10)).round(3)),
    outlier_slices=2,
    outliers=(
        OutlierSlice(volume=3, slice=17, z_score=-8.5),
        OutlierSlice(volume=5, slice=2, z_score=-4.25),
    ),
    susceptibility="corrected",
    field=FIELD,
)


def test_everything_is_told():
    (view,) = describe_corrections([CorrectionFacts(method="ants"), RUN], "s1")
    shown = {name: (value, remark) for name, value, remark in view.figures}
    assert view.number == 2
    assert shown["Largest eddy displacement"][0] == "1.25 mm"
    assert shown["Outlier slices"][0] == "2"
    assert shown["Opposite b0s agree"] == ("0.95", "correlation; 0.68 before")
    assert "7 volumes" in view.eddy_chart
    assert "three planes" in view.field_chart


def test_the_field_is_drawn_over_the_head_and_not_beyond_it():
    head = np.zeros((9, 8))
    head[1:3, 1:3] = 1
    with_head = replace(RUN, field=replace(FIELD, head=(to_rows(head),) * 3))
    (view,) = describe_corrections([with_head], "s1")
    (bare,) = describe_corrections([RUN], "s1")
    # All contours of this field but one lie beyond the head.
    assert len(view.field_chart) < len(bare.field_chart)


@pytest.mark.parametrize("reason", WHY_NOT_SUSCEPTIBILITY)
def test_why_susceptibility_was_not_corrected_is_said(reason):
    (view,) = describe_corrections([replace(RUN, susceptibility=reason, field=None)], "s1")
    assert view.field_chart is None
    figure = ("Susceptibility", "not corrected", WHY_NOT_SUSCEPTIBILITY[reason])
    assert figure in view.figures


def test_eddy_currents_that_were_not_estimated_are_not_shown():
    (view,) = describe_corrections([replace(RUN, eddy_currents=False)], "s1")
    assert view.eddy_chart is None
    assert ("Eddy currents", "not estimated", "no shell has enough volumes") in view.figures
    page = render_fragment([view])
    assert "eddy currents were not" in page
    assert "estimated together" not in page


@pytest.mark.parametrize(
    "missing",
    [
        {"eddy_terms_mm": ()},
        {"eddy_terms_mm": ((1.0, 2.0), (3.0, 4.0))},
        {"outliers": ()},
        {"outlier_slices": None},
        {"field": SusceptibilityField()},
        {"field": replace(FIELD, planes_mm=(((1.0,),),) * 3)},
        {"field": replace(FIELD, planes_mm=FIELD.planes_mm[:2])},
        {"field": replace(FIELD, head=(((1.0,),),) * 3)},
        {"susceptibility": None, "field": None},
        {"largest_eddy_mm": None},
    ],
)
def test_missing_facts_leave_gaps_and_do_not_fail(missing):
    (view,) = describe_corrections([replace(RUN, **missing)], "s1")
    assert "Model-based correction" in render_fragment([view])


def test_other_methods_have_no_section():
    assert describe_corrections([CorrectionFacts(method="eddy"), CorrectionFacts()], "s1") == []


def render_fragment(views):
    scan = {"corrections": views, "facts": {"correction": views}}
    return render_page("subject_correction.html.j2", {"scan": scan})


def test_the_fragment_lists_the_slices_and_escapes_what_it_shows():
    (view,) = describe_corrections([RUN], "s1")
    page = render_fragment([replace(view, not_done="<b>bold</b>")])
    assert "&lt;b&gt;bold" in page
    assert "Outlier slices" in page
    assert "-8.5" in page
