"""Spherical samples of simulated participants in template space, with their scanner's noise.

The head's signal is read on its own grid along every gradient of the site's table, with the
site's gains and Rician noise, divided by the b0 and resampled to HEALPix: what the participant
level does to a scan that did not move.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.anatomy import Head, make_head
from bids_gevnet.phantom.cohort import ParticipantSpec, plan_cohort
from bids_gevnet.phantom.effects import participant_state
from bids_gevnet.phantom.signal import volume_gains
from bids_gevnet.phantom.simulate import HeadSignal
from bids_gevnet.phantom.sites import make_site
from bids_gevnet.sphere.resampling import distinct_directions, resample, resampling_matrix

STEP = 2  # every second node of the head's grid: the same signal, an eighth of the voxels


def _coarse(head: Head) -> Head:
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
    white: np.ndarray
    voxel_mm: float

    @property
    def site(self) -> str:
        return "ABCD"[self.spec.site]


def simulate(settings: PhantomSettings, spec: ParticipantSpec) -> SimulatedScan:
    site = make_site(settings, spec.site)
    state = participant_state(settings, spec)
    head = _coarse(make_head(settings.voxel_mm, state.atrophy))
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
        white=head.maps[0] > 0.5,
        voxel_mm=float(head.affine[0, 0]),
    )


@pytest.fixture(scope="session")
def simulate_cohort() -> Callable[..., list[SimulatedScan]]:
    """Simulate a cohort; `site` sends everybody to one scanner (travelling subjects)."""

    def make(*, site: int | None = None, first: int = 0, **settings: object) -> list[SimulatedScan]:
        plan = PhantomSettings(voxel_mm=6.0, **settings)  # type: ignore[arg-type]
        specs = plan_cohort(plan)[first:]
        if site is not None:
            specs = tuple(replace(spec, site=site) for spec in specs)
        return [simulate(plan, spec) for spec in specs]

    return make
