import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

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


def shown_pixels(chart):
    """Count the pixels that are drawn in each of the pictures of a chart."""
    uris = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", chart)
    images = [Image.open(io.BytesIO(base64.b64decode(uri))).convert("RGBA") for uri in uris]
    return [int((np.asarray(image)[..., 3] > 0).sum()) for image in images]


def test_the_field_is_drawn_in_the_head_and_not_beyond_it():
    head = np.zeros((9, 8))
    head[2:4, 2:4] = 1
    with_head = replace(RUN, field=replace(FIELD, head=(to_rows(head),) * 3))
    (view,) = describe_corrections([with_head], "s1")
    (bare,) = describe_corrections([RUN], "s1")
    # Two by two voxels with a rim of one voxel (a cross dilates four by four without corners).
    assert shown_pixels(view.field_chart)[:3] == [12] * 3
    assert shown_pixels(bare.field_chart)[:3] == [72] * 3
    assert "Displacement (mm)" in view.field_chart  # the colour bar says what it shows


def test_every_slice_has_a_place_in_the_matrix_and_replaced_ones_a_mark():
    z_scores = np.zeros((7, 20))
    z_scores[3, 17], z_scores[5, 2] = -8.5, -4.25
    (view,) = describe_corrections([replace(RUN, slice_z_scores=to_rows(z_scores))], "s1")
    assert "20 slices in 7 volumes" in view.outlier_chart
    assert "2 slices were replaced" in view.outlier_chart
    assert "-8.5 standard deviations" in view.outlier_chart
    (none,) = describe_corrections([RUN], "s1")
    assert none.outlier_chart is None


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
        {"slice_z_scores": ((1.0, 2.0), (3.0,))},
        {"slice_z_scores": ((), ())},
        {"slice_z_scores": ((0.0, 1.0),)},  # fewer than the outliers name
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
    assert describe_corrections([CorrectionFacts(method="ants"), CorrectionFacts()], "s1") == []


def test_eddy_tells_whether_the_tensor_fits_better():
    run = replace(RUN, method="eddy", misfit_before=0.0354, misfit_after=0.0241, outliers=())
    (view,) = describe_corrections([run], "s1")
    shown = {name: (value, remark) for name, value, remark in view.figures}
    assert shown["Tensor misfit"] == ("0.024", "of b0; 0.035 before")
    page = render_fragment([view])
    assert "Correction by FSL eddy" in page
    assert "Not done" not in page


def render_fragment(views):
    scan = {"corrections": views, "facts": {"correction": views}}
    return render_page("subject_correction.html.j2", {"scan": scan})


def test_the_fragment_lists_the_slices_and_escapes_what_it_shows():
    (view,) = describe_corrections([RUN], "s1")
    page = render_fragment([replace(view, not_done="<b>bold</b>")])
    assert "&lt;b&gt;bold" in page
    assert "Outlier slices" in page
    assert "-8.5" in page
