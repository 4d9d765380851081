"""Scans that several test modules look at; simulated once."""

import math

import pytest

from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.simulation import Scan, simulate_participant

STILL = {"snr": math.inf, "motion_mm": 0, "motion_deg": 0, "eddy": 0}


@pytest.fixture(scope="session")
def clean_scans() -> list[Scan]:
    """One participant without noise, motion or eddy currents on each of four sites."""
    settings = tiny_settings(groups=("A", "B", "C", "D"), sites=4, voxel_mm=6, **STILL)
    return [simulate_participant(settings, spec) for spec in plan_cohort(settings)]
