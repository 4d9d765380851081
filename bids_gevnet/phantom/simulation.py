"""One participant on one scanner: from the plan to a scan with its truth, without files.

>>> from bids_gevnet.phantom import tiny_settings
>>> from bids_gevnet.phantom.cohort import plan_cohort
>>> settings = tiny_settings()
>>> scan = simulate_participant(settings, plan_cohort(settings)[0])
>>> scan.data.shape[:3] == scan.truth.mask.shape
True

For the same scan without noise, motion and distortion, pass
``dataclasses.replace(settings, snr=math.inf, motion_mm=0, motion_deg=0, eddy=0)``: everything
else stays the same, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.phantom import acquisition, fibres, signal
from bids_gevnet.phantom.anatomy import make_head
from bids_gevnet.phantom.cohort import participant_rng, plan_participant
from bids_gevnet.phantom.effects import participant_state, shell_coupling
from bids_gevnet.phantom.settings import tiny_settings
from bids_gevnet.phantom.sites import make_site, ras_to_fsl
from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.phantom.anatomy import Head
    from bids_gevnet.phantom.cohort import ParticipantSpec
    from bids_gevnet.phantom.effects import ShellCoupling, TissueState
    from bids_gevnet.phantom.settings import PhantomSettings
    from bids_gevnet.phantom.sites import Site

    Floats = NDArray[np.floating[Any]]

SCANNER_UNITS = 1000.0  # of white matter without diffusion weighting
_T1_CONTRAST = (1.0, 0.65, 0.2, 0.08, 0.8)  # in the order of anatomy.TISSUES
_MIN_FRACTION = 1e-3


@dataclass(frozen=True)
class Truth:
    """What is known of a scan; the package docstring explains frames, units and signs.

    Parameters
    ----------
    pose : (4, 4) array
    motion : (n_volumes, 6) array
    motion_matrices : (n_volumes, 4, 4) array
    eddy : (n_volumes, 4) array
    mask : (X, Y, Z) bool array
    tissue : (X, Y, Z, 3) array
    fibres : (X, Y, Z, 2, 3) array
    fractions : (X, Y, Z, 2) array
    regions : (X, Y, Z, 2) array
    state : TissueState
    gains : tuple of float
        Site gains of degrees 0, 2, 4.
    noise_sigma : float
        In the units of the data.
    field_hz : (X, Y, Z) array or None
    dropped : list of (volume, slice, factor)
    """

    pose: NDArray[np.float64]
    motion: NDArray[np.float64]
    motion_matrices: NDArray[np.float64]
    eddy: NDArray[np.float64]
    mask: NDArray[np.bool_]
    tissue: NDArray[np.float32]
    fibres: NDArray[np.float32]
    fractions: NDArray[np.float32]
    regions: NDArray[np.float32]
    state: TissueState
    gains: tuple[float, float, float]
    noise_sigma: float
    field_hz: NDArray[np.float32] | None
    dropped: list[tuple[int, int, float]]


@dataclass(frozen=True)
class Scan:
    """A simulated diffusion scan.

    Parameters
    ----------
    spec : ParticipantSpec
    site : Site
    data : (X, Y, Z, n_volumes) array
    affine : (4, 4) array
        Voxel index to scanner mm.
    bvals : (n_volumes,) array
    bvecs_ras, bvecs_fsl : (n_volumes, 3) array
        What the scanner believes, in scanner RAS and as BIDS stores it.
    truth : Truth
    reverse_b0 : (X, Y, Z) array or None
        A b0 with the opposite phase encoding.
    t1w : (X', Y', Z') array or None
    t1w_affine : (4, 4) array or None

    Examples
    --------
    >>> from bids_gevnet.phantom import simulate
    >>> scan = simulate(directions=6)
    >>> scan.data.shape[3] == len(scan.bvals) == len(scan.truth.motion)
    True
    """

    spec: ParticipantSpec
    site: Site
    data: NDArray[np.float32]
    affine: NDArray[np.float64]
    bvals: NDArray[np.float64]
    bvecs_ras: NDArray[np.float64]
    bvecs_fsl: NDArray[np.float64]
    truth: Truth
    reverse_b0: NDArray[np.float32] | None = None
    t1w: NDArray[np.float32] | None = None
    t1w_affine: NDArray[np.float64] | None = None


class HeadSignal:
    """Noise-free signal of a head at any b-value, gradient and point.

    Parameters
    ----------
    head : Head
    state : TissueState
    coupling : ShellCoupling, optional
        What changes the shells together or apart.
    """

    def __init__(
        self, head: Head, state: TissueState, coupling: ShellCoupling | None = None
    ) -> None:
        self.head, self.coupling = head, coupling
        self._change = None if coupling is None else coupling.log_change(head.points())
        self._white = np.flatnonzero(head.maps[0].ravel() > _MIN_FRACTION)
        points = head.points().reshape(-1, 3)[self._white]
        self.directions = fibres.fibre_directions(points, state)
        share = fibres.second_fibre_share(points)
        white = head.maps[0].ravel()[self._white] * signal.WHITE_AMPLITUDE
        self.amplitudes = (white * (1 - share), white * share)
        self.dispersion = fibres.dispersion(points, state)

    def on_grid(
        self, b: float, gradient: Floats, gains: tuple[float, float, float] = signal.UNIT_GAINS
    ) -> NDArray[np.float32]:
        """Signal at every grid node of the head.

        Parameters
        ----------
        b : float
            s/mm².
        gradient : (3,) array
            Unit vector in template axes.
        gains : tuple of float
            Scanner gains of degrees 0, 2, 4.
        """
        isotropic = (signal.GREY, signal.FLUID, signal.SKULL, signal.SCALP)
        weights = [signal.isotropic_signal(c, b, gains) for c in isotropic]
        total = np.tensordot(np.array(weights, np.float32), self.head.maps[1:], axes=1).ravel()
        for direction, amplitude in zip(self.directions, self.amplitudes, strict=True):
            cos_squared = (direction @ gradient) ** 2
            fibre = signal.fibre_signal(cos_squared, b, self.dispersion, gains)
            total[self._white] += amplitude * fibre
        grid: NDArray[np.float32] = total.reshape(self.head.maps.shape[1:]).astype(np.float32)
        if self.coupling is not None and self._change is not None:
            grid *= np.exp(np.float32(self.coupling.weight(b)) * self._change)
        return grid


def sample_head(head: Head, grid: Floats, points: Floats, order: int = 3) -> NDArray[np.float32]:
    """Read a map of the head at template points, zero outside.

    Parameters
    ----------
    head : Head
    grid : (X, Y, Z) array
        Values at the grid nodes of the head.
    points : (..., 3) array
        Template mm.
    order : int
        Of the spline.
    """
    from scipy import ndimage

    index = (points - head.affine[:3, 3]) / np.diag(head.affine)[:3]
    inside = np.all((index >= 0) & (index <= np.array(grid.shape) - 1), axis=-1)
    nearest = np.rint(index[inside]).astype(np.intp)
    inside[inside] = head.occupied[tuple(nearest.T)]
    values = np.zeros(points.shape[:-1], np.float32)
    values[inside] = ndimage.map_coordinates(
        grid, index[inside].T, output=np.float32, order=order, mode="mirror"
    )
    return values


def simulate(participant: int = 0, **settings: Any) -> Scan:
    """Simulate one scan with known truth, coarse and small unless told otherwise.

    Parameters
    ----------
    participant : int
        Position in the cohort, from 0: decides group, site and this person's random numbers.
    **settings
        Fields of `PhantomSettings`; those not given are as in `tiny_settings`.

    Returns
    -------
    scan : Scan

    Examples
    --------
    >>> scan = simulate(directions=6, voxel_mm=9, seed=1)
    >>> scan.data.shape[3], scan.bvals.shape, scan.truth.motion.shape
    (7, (7,), (7, 6))
    """
    chosen = tiny_settings(**settings)
    return simulate_participant(chosen, plan_participant(chosen, participant))


def simulate_participant(settings: PhantomSettings, spec: ParticipantSpec) -> Scan:
    """Simulate one participant.

    Parameters
    ----------
    settings : PhantomSettings
    spec : ParticipantSpec
        From :func:`~bids_gevnet.phantom.cohort.plan_cohort`; with ``dataclasses.replace(spec,
        site=...)`` the same person is scanned elsewhere.
    """
    site = make_site(settings, spec.site)
    state = participant_state(settings, spec)
    head = HeadSignal(
        make_head(settings.voxel_mm, state.atrophy), state, shell_coupling(settings, spec)
    )
    truth = _make_truth(settings, spec, site, head, state)
    volumes = [
        _sample_volume(settings, site, head, truth, volume, site.polarity)
        for volume in range(len(site.bvals))
    ]
    for volume, k, factor in truth.dropped:
        volumes[volume][:, :, k] *= factor
    rng = participant_rng(settings.seed, spec.index, "noise")
    data = np.stack(
        [acquisition.add_rician_noise(v, truth.noise_sigma, rng) for v in volumes], axis=-1
    )
    t1w, t1w_affine = _simulate_t1w(settings, spec, site, head.head, truth)
    return Scan(
        spec=spec,
        site=site,
        data=data,
        affine=site.affine,
        bvals=site.bvals,
        bvecs_ras=site.bvecs_ras,
        bvecs_fsl=ras_to_fsl(site.bvecs_ras, site.affine),
        truth=truth,
        reverse_b0=_simulate_reverse(settings, spec, site, head, truth),
        t1w=t1w,
        t1w_affine=t1w_affine,
    )


def _sample_volume(
    settings: PhantomSettings,
    site: Site,
    head: HeadSignal,
    truth: Truth,
    volume: int,
    polarity: int,
) -> NDArray[np.float32]:
    """One volume without noise, in one interpolation of the head."""
    motion = truth.motion_matrices[volume]
    points, gain = acquisition.seen_to_template(
        site,
        pose=truth.pose,
        motion=motion,
        eddy=truth.eddy[volume],
        polarity=polarity,
        susceptibility=settings.reverse_b0,
    )
    # The head turned by R sees the gradient turned by the inverse of R.
    turned = motion[:3, :3] @ acquisition.pose_rotation(truth.pose)
    b = float(site.bvals[volume])
    grid = head.on_grid(b, site.bvecs_ras[volume] @ turned, signal.volume_gains(b, site.gains))
    sampled = np.maximum(sample_head(head.head, grid, points), 0)
    volume_data: NDArray[np.float32] = (SCANNER_UNITS * gain * sampled).astype(np.float32)
    return volume_data


def _make_truth(
    settings: PhantomSettings,
    spec: ParticipantSpec,
    site: Site,
    head: HeadSignal,
    state: TissueState,
) -> Truth:
    """Draw pose and motion; read the head in the undistorted reference position."""
    pose = acquisition.draw_pose(settings, spec, site)
    motion = acquisition.draw_motion(settings, spec, len(site.bvals))
    points, _ = acquisition.seen_to_template(
        site,
        pose=pose,
        motion=np.eye(4),
        eddy=np.zeros(4),
        polarity=1,
        susceptibility=False,
    )
    tissue = np.stack(
        [np.clip(sample_head(head.head, m, points), 0, 1) for m in head.head.maps[:3]], axis=-1
    )
    mask = tissue.sum(axis=-1) > 0.5
    white = tissue[..., 0] * (tissue[..., 0] > 0.05)
    share = fibres.second_fibre_share(points)
    turn = acquisition.pose_rotation(pose).T
    directions = np.stack([d @ turn for d in fibres.fibre_directions(points, state)], axis=-2)
    regions = [fibres.crossing_region(points), fibres.dispersion_region(points)]
    weighted = np.flatnonzero(site.bvals >= B0_THRESHOLD)
    return Truth(
        pose=pose,
        motion=motion,
        motion_matrices=np.stack([acquisition.motion_matrix(m) for m in motion]),
        eddy=acquisition.eddy_parameters(site),
        mask=mask,
        tissue=tissue,
        fibres=(directions * (white > 0)[..., None, None]).astype(np.float32),
        fractions=np.stack([white * (1 - share), white * share], axis=-1).astype(np.float32),
        regions=np.stack(regions, axis=-1).astype(np.float32),
        state=state,
        gains=site.gains,
        noise_sigma=SCANNER_UNITS * signal.WHITE_AMPLITUDE / site.snr,
        field_hz=acquisition.field_hz(points).astype(np.float32) if settings.reverse_b0 else None,
        dropped=acquisition.drop_slices(settings, spec, mask, weighted),
    )


def _simulate_reverse(
    settings: PhantomSettings,
    spec: ParticipantSpec,
    site: Site,
    head: HeadSignal,
    truth: Truth,
) -> NDArray[np.float32] | None:
    """Simulate a b0 in the reference position with the phase encoding reversed."""
    if not settings.reverse_b0:
        return None
    clean = _sample_volume(settings, site, head, truth, 0, -site.polarity)
    rng = participant_rng(settings.seed, spec.index, "reverse")
    return acquisition.add_rician_noise(clean, truth.noise_sigma, rng)


def _simulate_t1w(
    settings: PhantomSettings, spec: ParticipantSpec, site: Site, head: Head, truth: Truth
) -> tuple[NDArray[np.float32] | None, NDArray[np.float64] | None]:
    """T1-weighted image in the reference position, at the resolution of the head's grid."""
    if not settings.t1w:
        return None, None
    size = float(head.affine[0, 0])
    shape = np.ceil(np.array(site.shape) * site.voxel_mm / size).astype(int)
    affine = np.diag([size, size, size, 1.0])
    affine[:3, 3] = site.centre_mm - size * (shape - 1) / 2
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    to_template = np.linalg.inv(truth.pose) @ affine
    points = index @ to_template[:3, :3].T + to_template[:3, 3]
    grid = np.tensordot(np.array(_T1_CONTRAST, np.float32), head.maps, axes=1)
    clean = SCANNER_UNITS * np.maximum(sample_head(head, grid, points), 0)
    rng = participant_rng(settings.seed, spec.index, "t1w")
    return acquisition.add_rician_noise(clean, truth.noise_sigma, rng), affine
