r"""A second simulator, to score the corrector on what it was not made for.

It shares no code with `bids_gevnet.phantom` and differs from it in all that could be tuned to:

- anatomy: nilearn's tissue maps of the MNI template, bent by a smooth random deformation, with
  fibres along smooth random fields;
- signal: a ball and two sticks,
  :math:`S = S_0 \bigl[(1 - f_1 - f_2) e^{-b d} + \sum_i f_i e^{-b d (g \cdot v_i)^2}\bigr]`;
- motion: slow drift and sudden jumps, not a walk;
- eddy currents: linear in the gradient, with a cubic term in space, which the corrector's model
  has not;
- b0s and shells interleaved.

Seeds in `DEVELOPMENT` may be used to find errors in the simulator. Those in `HELD_OUT` are for the
table of results alone: nothing is ever chosen on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.model_corrector.corrector import DiffusionSeries
from bids_gevnet.dwi.shells import find_shells

DEVELOPMENT = (1, 2)
HELD_OUT = (71, 72)

AXIS = 1
"""Voxel axis of the phase encoding."""

_RADIUS_MM = 60.0
_GRID_MM = 2.0
_PADDING = 14
_WHITE, _GREY, _FLUID, _SCALP = 1.0, 1.25, 2.4, 0.35  # signal without diffusion weighting
_DIFFUSIVITY = {"white": 1.6e-3, "grey": 0.95e-3, "fluid": 3.0e-3, "scalp": 1.1e-3}


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes
    ----------
    b_values : tuple of float
    directions : int
        Per shell.
    voxel_mm : float
    snr : float
        Of white matter without diffusion weighting.
    motion_mm, motion_deg : float
        Largest drift and jump.
    eddy : float
        1 displaces by about 2 mm at the edge of the brain at b = 1000.
    lost : float
        Share of the weighted volumes that lose a slice.
    field_of_view_mm : (float, float, float)
    """

    b_values: tuple[float, ...] = (1000.0,)
    directions: int = 32
    voxel_mm: float = 3.0
    snr: float = 20.0
    motion_mm: float = 3.0
    motion_deg: float = 3.0
    eddy: float = 1.0
    lost: float = 0.1
    field_of_view_mm: tuple[float, float, float] = (204.0, 234.0, 186.0)


@dataclass(frozen=True)
class Scan:
    """A simulated series with its truth.

    Attributes
    ----------
    series : DiffusionSeries
    points : (v, 3) array
        Of the brain, mm.
    displacement : (n, v, 3) array
        From the reference to where each volume saw them, mm.
    lost : set of (int, int)
        Volumes and slices without signal.
    """

    series: DiffusionSeries
    points: np.ndarray
    displacement: np.ndarray
    lost: set[tuple[int, int]]


@lru_cache(maxsize=1)
def tissue_maps() -> tuple[np.ndarray, np.ndarray]:
    """Return white and grey matter, fluid and scalp on a grid of 2 mm, and its central voxel."""
    from nilearn import datasets

    white, grey, brain = (
        load(resolution=2).get_fdata(dtype=np.float32)
        for load in (
            datasets.load_mni152_wm_template,
            datasets.load_mni152_gm_template,
            datasets.load_mni152_brain_mask,
        )
    )
    pad = [(_PADDING, _PADDING)] * 3
    white, grey = np.clip(np.pad(white, pad), 0, 1), np.clip(np.pad(grey, pad), 0, 1)
    inside = ndimage.binary_fill_holes(np.pad(brain, pad) > 0.5)
    white, grey = white * inside, np.minimum(grey, 1 - white) * inside
    away = ndimage.distance_transform_edt(~inside, sampling=_GRID_MM)
    maps = np.stack([white, grey, inside - white - grey, (away > 5) & (away < 11)])
    centre = np.array(ndimage.center_of_mass(inside))
    return maps.astype(np.float32), centre


def smooth_noise(
    rng: np.random.Generator, shape: tuple[int, ...], width_mm: float, count: int
) -> np.ndarray:
    """Return smooth random fields of unit variance, (count, X, Y, Z)."""
    step = 3  # drawn on a coarser grid: nobody sees the difference
    coarse = [n // step + 2 for n in shape]
    fields = []
    for _ in range(count):
        drawn = ndimage.gaussian_filter(rng.normal(size=coarse), width_mm / _GRID_MM / step)
        zoomed = ndimage.zoom(drawn / drawn.std(), step, order=1)
        fields.append(zoomed[: shape[0], : shape[1], : shape[2]])
    return np.stack(fields)


class Head:
    """One person: tissue and fibres on a grid of 2 mm around the origin."""

    def __init__(self, rng: np.random.Generator) -> None:
        template, centre = tissue_maps()
        shape = template.shape[1:]
        index = np.indices(shape, dtype=np.float32)
        bent = index + 1.5 * smooth_noise(rng, shape, 30.0, 3)
        self.size = rng.uniform(0.94, 1.06, 3)
        bent = (bent - centre[:, None, None, None]) * self.size[:, None, None, None] + centre[
            :, None, None, None
        ]
        self.maps = np.stack([ndimage.map_coordinates(m, bent, order=1) for m in template])
        self.white = self.maps[0] > 0
        self.centre = centre
        sticks = smooth_noise(rng, shape, 14.0, 6).reshape(2, 3, *shape)
        sticks = sticks[:, :, self.white]
        self.sticks = sticks / np.linalg.norm(sticks, axis=1, keepdims=True)
        share = ndimage.gaussian_filter(rng.normal(size=shape), 10.0 / _GRID_MM)
        share = 1 / (1 + np.exp(-2 * share[self.white] / share.std()))
        self.fractions = np.stack([0.35 + 0.3 * share, 0.3 - 0.25 * share])

    def signal(self, b: float, gradient: np.ndarray) -> np.ndarray:
        """Return the signal for a unit gradient in the axes of the head, (X, Y, Z)."""
        total = np.zeros(self.maps.shape[1:], np.float32)
        along = _DIFFUSIVITY["white"]
        fibres = (1 - self.fractions.sum(axis=0)) * np.exp(-b * along)
        for fraction, stick in zip(self.fractions, self.sticks, strict=True):
            fibres += fraction * np.exp(-b * along * (gradient @ stick) ** 2)
        total[self.white] = _WHITE * self.maps[0][self.white] * fibres
        for part, amplitude, name in zip(
            self.maps[1:], (_GREY, _FLUID, _SCALP), ("grey", "fluid", "scalp"), strict=True
        ):
            total += part * np.float32(amplitude * np.exp(-b * _DIFFUSIVITY[name]))
        return total


def gradient_table(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return b-values and unit gradients, shells interleaved and a b0 every twelve volumes."""
    from dipy.core.sphere import HemiSphere, disperse_charges

    shells = []
    for b in setting.b_values:
        start = rng.normal(size=(setting.directions, 3))
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        spread = disperse_charges(HemiSphere(xyz=start), 1000)[0].vertices
        spread = spread * rng.choice([-1.0, 1.0], len(spread))[:, None]
        shells.append([(b, g) for g in rng.permutation(spread)])
    weighted = [volume for volumes in zip(*shells, strict=True) for volume in volumes]
    table = []
    for number, volume in enumerate(weighted):
        if number % 12 == 0:
            table.append((0.0, np.zeros(3)))
        table.append(volume)
    return np.array([b for b, _ in table]), np.stack([g for _, g in table])


def draw_motion(setting: Setting, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rigid matrices, (n, 4, 4): drift with a slow swing, and a few jumps."""
    time = np.linspace(0, 1, count)[:, None]
    reach = np.repeat([setting.motion_mm, np.radians(setting.motion_deg)], 3)
    drift = rng.uniform(-0.6, 0.6, 6) * time
    swing = rng.uniform(-0.15, 0.15, 6) * (np.sin(2 * np.pi * (2 * time + rng.random(6))))
    jumps = np.zeros((count, 6))
    for when in rng.integers(3, count, max(1, count // 16)):
        jumps[when:] += rng.uniform(-0.4, 0.4, 6)
    parameters = (drift + swing + jumps) * reach
    parameters -= parameters[0]
    parameters += rng.normal(scale=0.01, size=parameters.shape) * reach
    parameters[0] = 0
    matrices = np.tile(np.eye(4), (count, 1, 1))
    matrices[:, :3, :3] = Rotation.from_euler("xyz", parameters[:, 3:]).as_matrix()
    matrices[:, :3, 3] = parameters[:, :3]
    return matrices


class EddyCurrents:
    """Displacement along the phase encoding, linear in the gradient, cubic in space."""

    def __init__(self, setting: Setting, rng: np.random.Generator) -> None:
        # Constant, linear, quadratic, cubic terms; the last are outside the corrector's model.
        sizes = np.array([0.8, *[1.4] * 3, *[0.4] * 6, *[0.25] * 3])
        self.matrix = setting.eddy * sizes[:, None] * rng.normal(scale=0.6, size=(13, 3))

    @staticmethod
    def terms(points: np.ndarray) -> np.ndarray:
        """Return the thirteen terms at points (v, 3) in mm, (v, 13)."""
        x, y, z = points.T / _RADIUS_MM
        one = np.ones_like(x)
        quadratic = (x * x, y * y, z * z, x * y, x * z, y * z)
        return np.stack([one, x, y, z, *quadratic, x**3, y**3, z * z * y], axis=1)

    def __call__(self, points: np.ndarray, drive: np.ndarray) -> np.ndarray:
        """Return the displacement in mm, (v,)."""
        return np.asarray(self.terms(points) @ (self.matrix @ drive))

    def undo(self, seen: np.ndarray, drive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where signal seen at points came from, and how far it was stretched."""
        points = seen.copy()
        for _ in range(12):
            points[:, AXIS] = seen[:, AXIS] - self(points, drive)
        step = np.zeros(3)
        step[AXIS] = 0.05
        slope = (self(points + step, drive) - self(points - step, drive)) / 0.1
        return points, 1 + slope


def simulate(setting: Setting, seed: int) -> Scan:
    """Simulate one scan."""
    rng = np.random.default_rng([seed, 20])
    head, eddy = Head(rng), EddyCurrents(setting, rng)
    bvals, bvecs = gradient_table(setting, rng)
    motion = draw_motion(setting, len(bvals), rng)
    drive = bvecs * np.sqrt(bvals / 1000)[:, None]
    shape = np.rint(np.array(setting.field_of_view_mm) / setting.voxel_mm).astype(int)
    affine = np.diag([*[setting.voxel_mm] * 3, 1.0])
    affine[:3, 3] = -setting.voxel_mm * (shape - 1) / 2
    voxels = np.indices(shape).reshape(3, -1).T
    places = voxels @ affine[:3, :3].T + affine[:3, 3]
    blur = blur_of(setting.voxel_mm)
    sigma = _WHITE / setting.snr
    data = np.empty((*shape, len(bvals)), np.float32)
    lost = set()
    brain_slices = slices_with_brain(head, places, shape)
    for k, (b, gradient) in enumerate(zip(bvals, bvecs, strict=True)):
        points, stretch = eddy.undo(places, drive[k])
        back = np.linalg.inv(motion[k])
        reference = points @ back[:3, :3].T + back[:3, 3]
        # The head, turned by R, sees the gradient turned by the inverse of R.
        image = ndimage.gaussian_filter(head.signal(b, motion[k, :3, :3].T @ gradient), blur)
        index = reference / _GRID_MM + head.centre
        volume = (ndimage.map_coordinates(image, index.T, order=3) / stretch).reshape(shape)
        if b > 0 and rng.random() < setting.lost:
            z = int(rng.choice(brain_slices))
            volume[..., z] *= rng.uniform(0.05, 0.4)
            lost.add((k, z))
        real, imaginary = rng.normal(scale=sigma, size=(2, *shape))
        data[..., k] = 1000 * np.hypot(np.maximum(volume, 0) + real, imaginary)
    series = DiffusionSeries(data, affine, bvals, bvecs, find_shells(bvals), AXIS, 2)
    inside = brain_at(head, places)
    points = places[inside][::37]
    return Scan(series, points, true_displacement(points, motion, drive, eddy), lost)


def blur_of(voxel_mm: float) -> float:
    """Return the width of a voxel's blur in voxels of the head's grid."""
    return float(np.sqrt(max(0.0, (0.42 * voxel_mm) ** 2 - 0.5)) / _GRID_MM)


def image_at(head: Head, places: np.ndarray, voxel_mm: float) -> np.ndarray:
    """Return the signal without diffusion weighting at points in mm, (v,)."""
    image = ndimage.gaussian_filter(head.signal(0.0, np.zeros(3)), blur_of(voxel_mm))
    return ndimage.map_coordinates(image, (places / _GRID_MM + head.centre).T, order=1)


def onto_template(head: Head) -> np.ndarray:
    """Return the affine from the head in mm to the template it was bent from, (4, 4)."""
    from nilearn.datasets import load_mni152_brain_mask

    to_index = np.diag([*head.size / _GRID_MM, 1.0])
    to_index[:3, 3] = head.centre - _PADDING
    return np.asarray(load_mni152_brain_mask(resolution=2).affine @ to_index)


def brain_at(head: Head, places: np.ndarray) -> np.ndarray:
    """Tell which points in mm are in the brain, (v,) of bool."""
    tissue = ndimage.map_coordinates(
        head.maps[:3].sum(axis=0), (places / _GRID_MM + head.centre).T, order=1
    )
    return np.asarray(tissue > 0.5)


def slices_with_brain(head: Head, places: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return slices with at least a third as much brain as the fullest."""
    area = brain_at(head, places).reshape(shape).sum(axis=(0, 1))
    return np.flatnonzero(area > area.max() / 3)


def true_displacement(
    points: np.ndarray, motion: np.ndarray, drive: np.ndarray, eddy: EddyCurrents
) -> np.ndarray:
    """Return how far each volume saw points from where they are in the reference, (n, v, 3)."""
    displaced = []
    for matrix, gradient in zip(motion, drive, strict=True):
        moved = points @ matrix[:3, :3].T + matrix[:3, 3]
        moved[:, AXIS] += eddy(moved, gradient)
        displaced.append(moved - points)
    return np.stack(displaced)
