"""Spherical samples of simulated participants in template space, with their scanner's noise.

The head's signal is read on its own grid along every gradient of the site's table, with the
site's gains and Rician noise, divided by the b0 and resampled to HEALPix: what the participant
level does to a scan that did not move.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.anatomy import Head, make_head
from bids_gevnet.phantom.cohort import ParticipantSpec, plan_cohort
from bids_gevnet.phantom.effects import participant_state
from bids_gevnet.phantom.fibres import dispersion_region
from bids_gevnet.phantom.signal import volume_gains
from bids_gevnet.phantom.simulation import HeadSignal
from bids_gevnet.phantom.sites import make_site
from bids_gevnet.sphere.resampling import distinct_directions, resample, resampling_matrix

STEP = 2  # every second node of the head's grid: the same signal, an eighth of the voxels


@lru_cache(maxsize=32)
def _coarse_head(atrophy: float) -> Head:
    head = make_head(6.0, atrophy)
    affine = head.affine.copy()
    affine[:3, :3] *= STEP
    return Head(
        np.ascontiguousarray(head.maps[:, ::STEP, ::STEP, ::STEP]),
        affine,
        head.occupied[::STEP, ::STEP, ::STEP],
    )


@dataclass(frozen=True)
class SimulatedScan:
    """One scan: (V, 96) samples in a mask."""

    spec: ParticipantSpec
    samples: np.ndarray
    mask: np.ndarray
    region: np.ndarray
    voxel_mm: float

    @property
    def site(self) -> str:
        return "ABCD"[self.spec.site]


def simulate(settings: PhantomSettings, spec: ParticipantSpec) -> SimulatedScan:
    site = make_site(settings, spec.site)
    state = participant_state(settings, spec)
    head = _coarse_head(round(state.atrophy * 20) / 20)
    signal = HeadSignal(head, state)
    mask = head.maps[:3].sum(axis=0) > 0.5
    rng = np.random.default_rng((settings.seed, spec.index, spec.site))
    sigma = 0.0 if np.isinf(site.snr) else 1 / site.snr

    def volume(b: float, gradient: np.ndarray) -> np.ndarray:
        clean = signal.on_grid(b, gradient, volume_gains(b, site.gains))[mask]
        noise = rng.normal(0, sigma, (2, clean.size)) if sigma else np.zeros((2, clean.size))
        return np.hypot(clean + noise[0], noise[1])

    volumes = [volume(b, g) for b, g in zip(site.bvals, site.bvecs_ras, strict=True)]
    weighted = site.bvals >= 50
    b0 = np.mean([v for v, w in zip(volumes, weighted, strict=True) if not w], axis=0)
    ratio = np.stack([v for v, w in zip(volumes, weighted, strict=True) if w], axis=-1)
    matrix = resampling_matrix(site.bvecs_ras[weighted], distinct_directions(4))
    return SimulatedScan(
        spec=spec,
        samples=resample(ratio / b0[:, None], matrix),
        mask=mask,
        region=(dispersion_region(head.points()) > 0.5) & (head.maps[0] > 0.3),
        voxel_mm=float(head.affine[0, 0]),
    )


@dataclass(frozen=True)
class Cohort:
    """People who train the harmonisation, and others who were scanned at both sites."""

    training: list[SimulatedScan]
    training_at_a: list[SimulatedScan]
    travellers: list[SimulatedScan]


@pytest.fixture(scope="session")
def cohort() -> Cohort:
    settings = PhantomSettings(voxel_mm=6.0, per_group=15, groups=("AD", "DLB", "PD"))
    specs = plan_cohort(settings)
    # Diagnosis and site lean on each other: two thirds of AD at A, two thirds of PD at B.
    lean = {0: (0, 0, 1), 1: (0, 1), 2: (1, 1, 0)}
    training = [
        replace(s, site=lean[s.group][(s.index // 3) % len(lean[s.group])]) for s in specs[:36]
    ]
    return Cohort(
        training=[simulate(settings, s) for s in training],
        training_at_a=[simulate(settings, replace(s, site=0)) for s in training],
        travellers=[simulate(settings, replace(s, site=k)) for s in specs[36:] for k in (0, 1)],
    )
