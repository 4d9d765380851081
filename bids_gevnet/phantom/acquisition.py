"""What the scanner does to the head: pose, motion, eddy currents, susceptibility, noise.

From a head point to where it is seen in volume k (frames and signs: package docstring):

    template y --pose--> reference x --M_k--> moved x' --displacement--> seen at x' + d(x') p

``seen_to_template`` goes the other way for every voxel, so that each volume is one
interpolation of the head. With v the millimetres along the voxel axes, D = eddy + susceptibility:

    v'_j + D(v') = v_j    by    v'_j <- (v_j - const - per_i v_i - per_k v_k - s) / (1 + per_j)

with s the susceptibility displacement at the current v', a contraction because s is smooth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.phantom.anatomy import HEAD_CENTRE_MM
from bids_gevnet.phantom.cohort import participant_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.phantom.cohort import ParticipantSpec
    from bids_gevnet.phantom.settings import PhantomSettings
    from bids_gevnet.phantom.sites import Site

    Floats = NDArray[np.floating[Any]]

# Off-resonance above the nasal sinuses and the ear canals: template mm, Hz, width in mm.
_FIELD_BLOBS = (
    ((0.0, 58.0, -18.0), 70.0, 22.0),
    ((48.0, -18.0, -32.0), -45.0, 18.0),
    ((-48.0, -18.0, -32.0), -45.0, 18.0),
)
# The field displaces by at most 9 mm with a slope of 0.25: 0.25^12 of that is nothing.
_INVERSION_STEPS = 12


def draw_pose(settings: PhantomSettings, spec: ParticipantSpec, site: Site) -> NDArray[np.float64]:
    """Draw the pose, template mm to scanner mm, linear part ``R @ diag(size)``; (4, 4)."""
    from scipy.spatial.transform import Rotation

    rng = participant_rng(settings.seed, spec.index, "pose")
    rotation = Rotation.from_euler("xyz", rng.uniform(-1, 1, 3) * settings.pose_deg, degrees=True)
    shift = rng.uniform(-1, 1, 3) * settings.pose_mm
    # Men's heads are larger on average: half the range is the sex, half the person.
    sex = 0.3 if spec.sex == "M" else -0.3
    common, *stretches = rng.uniform(-1, 1, 4)
    size = 1 + settings.pose_size * (sex + 0.5 * common + 0.2 * np.array(stretches))
    pose = np.eye(4)
    pose[:3, :3] = rotation.as_matrix() @ np.diag(size)
    pose[:3, 3] = site.centre_mm + shift - pose[:3, :3] @ np.asarray(HEAD_CENTRE_MM)
    return pose


def pose_rotation(pose: Floats) -> NDArray[np.float64]:
    """Rotation ``R`` of a pose ``R @ diag(size)``, (3, 3)."""
    linear = np.asarray(pose, dtype=np.float64)[:3, :3]
    rotation: NDArray[np.float64] = linear / np.linalg.norm(linear, axis=0)
    return rotation


def draw_motion(
    settings: PhantomSettings, spec: ParticipantSpec, volumes: int
) -> NDArray[np.float64]:
    """Draw head motion: a drift with a few jumps, none in volume 0.

    Returns
    -------
    (volumes, 6) array
        trans_x, trans_y, trans_z in mm, rot_x, rot_y, rot_z in rad.
    """
    rng = participant_rng(settings.seed, spec.index, "motion")
    steps = rng.normal(size=(volumes, 6))
    jumps = (rng.random(volumes) < 0.06)[:, None] * rng.normal(0, 5, (volumes, 6))
    walk = np.cumsum(steps + jumps, axis=0)
    walk -= walk[0]
    # Each axis reaches its own share of the largest excursion; some people lie still.
    peak = np.maximum(np.abs(walk).max(axis=0), 1e-9)
    reach = rng.uniform(0.3, 1.0, 6) * np.repeat(
        [settings.motion_mm, np.deg2rad(settings.motion_deg)], 3
    )
    motion: NDArray[np.float64] = walk / peak * reach
    return motion


def motion_matrix(parameters: Floats) -> NDArray[np.float64]:
    """Rigid matrix of six parameters (mm, rad): reference to moved, scanner mm, (4, 4)."""
    from scipy.spatial.transform import Rotation

    matrix = np.eye(4)
    # Lower-case axes are fixed: Rz @ Ry @ Rx.
    matrix[:3, :3] = Rotation.from_euler("xyz", parameters[3:]).as_matrix()
    matrix[:3, 3] = parameters[:3]
    return matrix


def eddy_parameters(site: Site) -> NDArray[np.float64]:
    """Eddy parameters of every volume, linear in its gradient, (n_volumes, 4)."""
    gradients = site.bvecs_ras @ site.voxel_axes  # (n, 3), along the voxel axes
    strength = np.sqrt(site.bvals / 1000)[:, None]
    parameters: NDArray[np.float64] = (gradients * strength) @ site.eddy_matrix.T
    return parameters


def field_hz(points: Floats) -> Floats:
    """Off-resonance of the head at template points (..., 3), in Hz."""
    total = np.zeros(points.shape[:-1])
    for centre, hertz, width in _FIELD_BLOBS:
        squared = np.sum((points - np.asarray(centre)) ** 2, axis=-1)
        total += hertz * np.exp(-squared / (2 * width**2))
    return total


def seen_to_template(
    site: Site,
    *,
    pose: Floats,
    motion: Floats,
    eddy: Floats,
    polarity: int,
    susceptibility: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Find what each voxel of a volume sees.

    Parameters
    ----------
    site : Site
    pose, motion : (4, 4) array
        Template to reference, reference to moved.
    eddy : (4,) array
    polarity : int
        Sign of the phase encoding.
    susceptibility : bool
        Whether off-resonance of the head displaces the signal.

    Returns
    -------
    points : (X, Y, Z, 3) array
        Template mm.
    gain : (X, Y, Z) array
        Intensity change 1 / (1 + dD/dv_j).
    """
    axes, centre = site.voxel_axes, site.centre_mm
    offsets = [
        size * (np.arange(n) - (n - 1) / 2)
        for size, n in zip(site.voxel_mm, site.shape, strict=True)
    ]
    seen = np.stack(np.meshgrid(*offsets, indexing="ij"), axis=-1)
    to_template = np.linalg.inv(motion @ pose)
    linear = to_template[:3, :3] @ axes
    constant = to_template[:3, :3] @ centre + to_template[:3, 3]
    const, per_i, per_j, per_k = eddy
    without = seen[..., 1] - const - per_i * seen[..., 0] - per_k * seen[..., 2]
    true = seen.copy()
    true[..., 1] = without / (1 + per_j)
    stretch = np.full(site.shape, 1 + per_j)
    points = true @ linear.T + constant
    if susceptibility:
        mm_per_hz = polarity * site.readout_s * site.voxel_mm[1]
        for _ in range(_INVERSION_STEPS):
            true[..., 1] = (without - mm_per_hz * field_hz(points)) / (1 + per_j)
            points = true @ linear.T + constant
        # Central difference along the phase-encoding axis, 0.01 mm either way.
        step = 0.01 * linear[:, 1]
        stretch += mm_per_hz * (field_hz(points + step) - field_hz(points - step)) / 0.02
    return points, 1 / stretch


def add_rician_noise(
    signal: Floats, sigma: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Magnitude of the signal with complex Gaussian noise of standard deviation `sigma`.

    Parameters
    ----------
    signal : (...) array
    sigma : float
        Of the real and of the imaginary part.
    rng : numpy.random.Generator
    """
    real = signal + sigma * rng.standard_normal(signal.shape, dtype=np.float32)
    imaginary = sigma * rng.standard_normal(signal.shape, dtype=np.float32)
    noisy: NDArray[np.float32] = np.hypot(real, imaginary).astype(np.float32)
    return noisy


def drop_slices(
    settings: PhantomSettings,
    spec: ParticipantSpec,
    mask: NDArray[np.bool_],
    weighted: NDArray[np.intp],
) -> list[tuple[int, int, float]]:
    """Draw the slices that lose their signal.

    Parameters
    ----------
    settings : PhantomSettings
    spec : ParticipantSpec
    mask : (X, Y, Z) array
        Only slices with a fair part of brain are dropped.
    weighted : (n,) array
        Volumes that are diffusion weighted.

    Returns
    -------
    list of (volume, slice along k, factor)
    """
    rng = participant_rng(settings.seed, spec.index, "outliers")
    area = mask.sum(axis=(0, 1))
    candidates = np.flatnonzero(area > 0.3 * area.max())
    dropped: list[tuple[int, int, float]] = []
    for volume in weighted:
        lucky, count = rng.random(), 1 + int(rng.random() < 0.3)
        slices = rng.choice(candidates, size=min(count, len(candidates)), replace=False)
        factors = rng.uniform(0.05, 0.4, len(slices))
        if lucky < settings.outliers:
            dropped += [
                (int(volume), int(k), float(np.round(f, 4)))
                for k, f in sorted(zip(slices, factors, strict=True))
            ]
    return dropped
