"""A scan beside the others: ranges from enough of them, of the same protocol where there are."""

import json
import shutil

import pytest
from report.fact_files import drop_images
from report.pages import Page

from bids_gevnet.bids.derivatives import CONFOUNDS, FACTS
from bids_gevnet.report.measures import usual_range
from bids_gevnet.report.subject.comparison import compare, measure, read_others
from bids_gevnet.report.subject.page import build_subject_report


def add_others(derivatives, count, **scanner):
    """Copy facts and confounds of sub-01 to others, with a signal to noise that varies."""
    source = derivatives / "sub-01" / "dwi"
    for number in range(count):
        label = f"x{scanner.get('model', '')}{number}"
        folder = derivatives / f"sub-{label}" / "dwi"
        folder.mkdir(parents=True)
        facts = json.loads((source / f"sub-01_{FACTS}").read_text())
        facts["quality"]["snr_b0"] = 28.0 + number
        facts["acquisition"][0]["scanner"] |= scanner
        (folder / f"sub-{label}_{FACTS}").write_text(json.dumps(facts))
        shutil.copy(source / f"sub-01_{CONFOUNDS}", folder / f"sub-{label}_{CONFOUNDS}")


def snr_of(derivatives):
    own = measure(derivatives / "sub-01" / "dwi" / f"sub-01_{FACTS}")
    comparison = compare(own, read_others(derivatives, "01"))
    (snr,) = [m for m in comparison.measures if m.name == "Signal to noise"]
    return comparison, snr


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_others_give_no_range(derivatives, count):
    drop_images(derivatives)
    add_others(derivatives, count)
    comparison, snr = snr_of(derivatives)
    assert not comparison.has_ranges
    assert snr.others is None
    text = Page(build_subject_report(derivatives, "01")).text
    assert f"No range yet: {count} scan" in text


def test_a_range_is_that_of_the_others_alone(derivatives):
    drop_images(derivatives)
    add_others(derivatives, 9)
    own = derivatives / "sub-01" / "dwi" / f"sub-01_{FACTS}"
    facts = json.loads(own.read_text())
    facts["quality"]["snr_b0"] = 300.0
    own.write_text(json.dumps(facts))
    comparison, snr = snr_of(derivatives)
    assert (comparison.count, comparison.same_protocol) == (9, True)
    assert (snr.others.low, snr.others.high) == pytest.approx((28.4, 35.6))
    assert snr.others.far
    assert snr.start < snr.end < snr.at  # the dot lies beyond the bar
    text = Page(build_subject_report(derivatives, "01")).text
    assert "28.4 to 35.6" in text
    assert "9 scans of other finished participants with the same scanner" in text


def test_of_very_many_others_a_part_is_read_evenly(derivatives):
    drop_images(derivatives)
    add_others(derivatives, 9)
    snr = [other.facts.quality.snr_b0 for other in read_others(derivatives, "01", most=3)]
    assert snr == [28.0, 31.0, 34.0]
    assert len(read_others(derivatives, "01", most=9)) == 9
    assert read_others(derivatives, "01", most=0) == []


def test_other_scanners_count_only_where_there_are_too_few_alike(derivatives):
    add_others(derivatives, 6, model="other")
    assert snr_of(derivatives)[0].same_protocol is False
    add_others(derivatives, 5)
    comparison, snr = snr_of(derivatives)
    assert (comparison.count, comparison.same_protocol) == (5, True)
    assert snr.others.high < 33


def test_constant_others_call_nobody_far():
    assert usual_range(5.0, [1.0] * 10).far is False
