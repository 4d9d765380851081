"""One simulated scan with known truth for the whole folder."""

import numpy as np
import pytest

from bids_gevnet.dwi.conform import conform
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant


@pytest.fixture(scope="session")
def scan():
    """A head turned by up to 20 degrees, 15 % off in size, that moves by up to 2 mm."""
    settings = PhantomSettings(
        per_group=1,
        voxel_mm=4.5,
        directions=8,
        eddy=0.0,
        pose_deg=20.0,
        pose_size=0.15,
        seed=3,
        t1w=True,
    )
    return simulate_participant(settings, plan_cohort(settings)[0])


@pytest.fixture(scope="session")
def conformed(scan):
    return conform(scan.data, scan.affine, scan.bvecs_ras)


@pytest.fixture(scope="session")
def true_mask(scan):
    return conform(scan.truth.mask, scan.affine).data


@pytest.fixture(scope="session")
def true_motion(scan, conformed):
    """Volume to reference in the conformed world."""
    there = conformed.old_to_new
    return there @ np.linalg.inv(scan.truth.motion_matrices) @ np.linalg.inv(there)


@pytest.fixture(scope="session")
def brain_points(scan, conformed):
    """Points of the brain in the conformed world, homogeneous."""
    index = np.argwhere(scan.truth.mask)[::11]
    return np.c_[index, np.ones(len(index))] @ (conformed.old_to_new @ scan.affine).T
