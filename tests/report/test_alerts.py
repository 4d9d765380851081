"""Alerts that follow from facts alone."""

import pytest

from bids_gevnet.facts import (
    AcquisitionFacts,
    CorrectionFacts,
    GradientCheck,
    QualityFacts,
    RegistrationFacts,
    ScanFacts,
    StandardFacts,
    TensorFacts,
)
from bids_gevnet.report.alerts import MOST_EDDY_MM, collect_alerts
from bids_gevnet.report.scan_files import ScanFiles


@pytest.fixture
def alerts_of(tmp_path):
    def collect(facts):
        files = ScanFiles(tmp_path, "sub-01", facts)
        return {(alert.level, alert.text) for alert in collect_alerts(files, None)}

    return collect


def of_level(alerts, level, word):
    return [text for found, text in alerts if found == level and word in text]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"misfit_before": 0.03, "misfit_after": 0.05}, "0.030 to 0.050"),
        ({"largest_eddy_mm": MOST_EDDY_MM + 5.8}, "10.8 mm"),
    ],
)
def test_eddy_that_made_things_worse_is_an_error_with_a_way_out(alerts_of, changes, said):
    facts = ScanFacts(correction=(CorrectionFacts(method="eddy", **changes),))
    (text,) = of_level(alerts_of(facts), "error", "eddy has made the run worse")
    assert said in text
    assert "--correction model" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"misfit_before": 0.03, "misfit_after": 0.03, "largest_eddy_mm": 1.2},
        {"misfit_before": None, "misfit_after": 0.03},
        {},
    ],
)
def test_eddy_that_did_well_is_not_blamed(alerts_of, changes):
    facts = ScanFacts(correction=(CorrectionFacts(method="eddy", **changes),))
    assert not of_level(alerts_of(facts), "error", "worse")


def test_every_run_with_a_doubtful_table_is_named(alerts_of):
    checks = tuple(
        GradientCheck(outcome=outcome, text=outcome) for outcome in ("fits", "wrong", "undecided")
    )
    runs = tuple(AcquisitionFacts(name=f"sub-01_run-{n}") for n in (1, 2, 3))
    facts = ScanFacts(acquisition=runs, quality=QualityFacts(gradient_checks=checks))
    # What could not be checked is never "Good": that takes a page without warnings.
    wrong, undecided = sorted(of_level(alerts_of(facts), "warning", "Gradients"))
    assert wrong == "Gradients of sub-01_run-2: wrong."
    assert undecided.startswith("Gradients of sub-01_run-3: undecided. Look for yourself: ")
    assert facts.quality.gradient_check.outcome == "wrong"


def test_a_slab_and_a_rejected_t1w_are_warnings(alerts_of):
    facts = ScanFacts(registration=RegistrationFacts(coverage=0.61, t1w_dice=0.7))
    found = alerts_of(facts)
    assert of_level(found, "warning", "61%")
    assert of_level(found, "warning", "another person")
    whole = alerts_of(ScanFacts(registration=RegistrationFacts(coverage=0.97)))
    assert not of_level(whole, "warning", "Field of view")


@pytest.mark.parametrize(("directions", "warnings"), [(6, 1), (11, 1), (12, 0), (32, 0)])
def test_few_directions_are_a_warning(alerts_of, directions, warnings):
    facts = ScanFacts(tensor=TensorFacts(b_value=1000.0, directions=directions))
    assert len(of_level(alerts_of(facts), "warning", f"the shell has {directions}.")) == warnings


@pytest.mark.parametrize(
    ("susceptibility", "level"), [("corrected", "warning"), ("no_opposite_b0", "note")]
)
def test_a_dummy_readout_is_grave_only_where_a_field_depends_on_it(
    alerts_of, susceptibility, level
):
    facts = ScanFacts(
        acquisition=(AcquisitionFacts(readout_is_dummy=True),),
        correction=(CorrectionFacts(method="model", susceptibility=susceptibility),),
    )
    assert [alert[0] for alert in alerts_of(facts) if "Readout" in alert[1]] == [level]


def test_voxels_without_data_are_counted(alerts_of):
    facts = ScanFacts(standard=StandardFacts(without_data=1053, lost_volumes=1))
    assert of_level(alerts_of(facts), "note", "1053 voxels")
    single = ScanFacts(standard=StandardFacts(without_data=1))
    assert of_level(alerts_of(single), "note", "1 voxel)")
    assert of_level(alerts_of(facts), "error", "no data")


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"snr_b0": 391.0}, "signal to noise of 391"),
        ({"mean_fa_white_matter": 0.84}, "mean FA of 0.84"),
        ({"tensor_residual": 0.7}, "tensor misfit of 0.70"),
    ],
)
def test_numbers_that_no_brain_has_are_errors(alerts_of, measured, said):
    (text,) = of_level(alerts_of(ScanFacts(quality=QualityFacts(**measured))), "error", "Quality")
    assert said in text


def test_numbers_of_real_scans_are_not(alerts_of):
    quality = QualityFacts(snr_b0=60.0, mean_fa_white_matter=0.6, tensor_residual=0.1)
    assert not of_level(alerts_of(ScanFacts(quality=quality)), "error", "Quality")
    assert not of_level(alerts_of(ScanFacts()), "error", "Quality")
