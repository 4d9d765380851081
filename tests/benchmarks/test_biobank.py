"""The cohort of the benchmark of biobank size is what its page says, and growth is growth."""

from collections import Counter
from pathlib import Path

import pytest
from biobank import _growth
from biobank_cohort import SITES, plan_scans, write_dataset

from bids_gevnet.learn.cohort.left_out import UNREADABLE, no_label
from bids_gevnet.learn.cohort.members import read_cohort
from bids_gevnet.report.group.study_files import read_scan_table


def test_a_tenth_have_two_sessions_and_every_site_has_both_classes() -> None:
    scans = list(plan_scans(4000, seed=0))
    assert len(scans) == 4400
    assert len({scan.name for scan in scans}) == 4400
    assert len({(scan.site, scan.group) for scan in scans}) == 2 * SITES


def test_the_damaged_and_the_unlabelled_are_left_out_and_nobody_else(tmp_path: Path) -> None:
    assert write_dataset(tmp_path, 120, seed=0) == 132
    cohort = read_cohort(tmp_path / "out", tmp_path / "raw", folds=5)
    assert Counter(entry.reason for entry in cohort.left_out) == {
        UNREADABLE: 1,
        no_label("diagnosis"): 1,
    }
    assert len(cohort.rows) == 130
    (scan,) = read_scan_table(
        tmp_path / "out", [{"participant_id": "sub-000000", "scan": "sub-000000"}], "diagnosis"
    )
    assert scan.files is not None
    assert not [alert for alert in scan.alerts if alert.level == "error"]


@pytest.mark.parametrize(("seconds", "growth"), [((1, 2, 11), "1.00"), ((1, 2, 101), "2.00")])
def test_growth_is_the_exponent_beyond_the_smallest(
    seconds: tuple[float, ...], growth: str
) -> None:
    assert _growth([0, 10, 100], seconds) == growth
    assert _growth([10, 100], seconds[:2]) == "-"
