"""The scanners: gradient tables, image grids, gains per degree, noise.

The first site is the plain one. The others differ in what differs between real scanners: gain
of each spherical-harmonic degree of S/b0, number of directions, b-values that jitter, b0s with
b = 5, voxel size, noise, orientation of the voxel axes (det > 0 and < 0, oblique), sign of the
phase encoding. Without site effects every site is the first one under its own name.

BIDS stores gradients in voxel axes with x flipped when det(affine) > 0; ``ras_to_fsl`` does it.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.phantom.cohort import site_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.phantom.settings import PhantomSettings

    Floats = NDArray[np.floating[Any]]

FIELD_OF_VIEW_MM = (228.0, 258.0, 222.0)
_ECHO_SPACING_S = 0.0005
_DIRECTIONS_PER_B0 = 16


@dataclass(frozen=True)
class _Variant:
    """How one site differs from the first."""

    gains: tuple[float, float, float]
    directions: float
    b_jitter: float
    b0: float
    voxel: tuple[float, float, float]
    snr: float
    axes: tuple[int, int, int]
    oblique_deg: tuple[float, float, float]
    centre_mm: tuple[float, float, float]
    tesla: float


_VARIANTS = (
    _Variant((1.0, 1.0, 1.0), 1.0, 0, 0, (1, 1, 1), 1.0, (-1, 1, 1), (0, 0, 0), (0, 0, 0), 3.0),
    _Variant(
        (1.08, 0.85, 0.75), 0.94, 15, 5, (1, 1, 1.1), 0.85, (1, 1, 1), (9, -4, 3), (3, -8, 12), 3.0
    ),
    _Variant(
        (0.94, 1.12, 1.2),
        1.25,
        5,
        0,
        (0.95, 0.95, 1),
        1.1,
        (-1, -1, 1),
        (0, 0, 0),
        (0, 5, -6),
        3.0,
    ),
    _Variant(
        (1.04, 0.92, 0.9),
        0.75,
        25,
        5,
        (1.1, 1.1, 1),
        0.75,
        (1, -1, 1),
        (-6, 0, 0),
        (-4, 0, 8),
        1.5,
    ),
)


@dataclass(frozen=True)
class Site:
    """One scanner and its protocol.

    Parameters
    ----------
    index : int
    name : str
        "A", "B", ...
    gains : tuple of float
        Gain of degrees 0, 2, 4 of S/b0.
    bvals : (n_volumes,) array
        True b-values, s/mm²; whole numbers, as stored.
    bvecs_ras : (n_volumes, 3) array
        Gradients in scanner RAS; zero where b is 0.
    affine : (4, 4) array
        Voxel index to scanner mm.
    shape : tuple of int
        Voxels along i, j, k.
    phase_encoding : str
        "j" or "j-".
    snr : float
    tesla : float
        Field strength.
    eddy_matrix : (4, 3) array
        Eddy parameters per unit gradient in voxel axes at b = 1000.
    """

    index: int
    name: str
    gains: tuple[float, float, float]
    bvals: NDArray[np.float64]
    bvecs_ras: NDArray[np.float64]
    affine: NDArray[np.float64]
    shape: tuple[int, int, int]
    phase_encoding: str
    snr: float
    tesla: float
    eddy_matrix: NDArray[np.float64]

    @property
    def voxel_mm(self) -> NDArray[np.float64]:
        """Voxel size along i, j, k."""
        size: NDArray[np.float64] = np.linalg.norm(self.affine[:3, :3], axis=0)
        return size

    @property
    def voxel_axes(self) -> NDArray[np.float64]:
        """Unit vectors of the voxel axes in scanner RAS, as columns of a (3, 3) array."""
        axes: NDArray[np.float64] = self.affine[:3, :3] / self.voxel_mm
        return axes

    @property
    def centre_mm(self) -> NDArray[np.float64]:
        """Centre of the field of view in scanner mm."""
        middle = (np.array(self.shape) - 1) / 2
        centre: NDArray[np.float64] = self.affine[:3, :3] @ middle + self.affine[:3, 3]
        return centre

    @property
    def polarity(self) -> int:
        """+1 for phase encoding "j", -1 for "j-"."""
        return -1 if self.phase_encoding.endswith("-") else 1

    @property
    def echo_spacing_s(self) -> float:
        """Time between two lines of k-space."""
        return _ECHO_SPACING_S

    @property
    def readout_s(self) -> float:
        """Total readout time as BIDS and FSL count it."""
        return _ECHO_SPACING_S * (self.shape[1] - 1)

    @property
    def direction_label(self) -> str:
        """BIDS direction label, "AP" or "PA": from where to where the phase encoding goes."""
        return "PA" if self.voxel_axes[1, 1] * self.polarity > 0 else "AP"


@lru_cache(maxsize=64)
def make_site(settings: PhantomSettings, index: int) -> Site:
    """Make site `index`; it depends on the settings and the index alone."""
    physical = index if settings.site_effect else 0
    variant = _VARIANTS[physical % len(_VARIANTS)]
    affine, shape = _image_grid(settings.voxel_mm, variant)
    bvals, bvecs = _gradient_table(settings, physical, variant)
    rng = site_rng(settings.seed, physical, "eddy")
    scale = np.array([1.5, 0.008, 0.01, 0.008])[:, None]
    return Site(
        index=index,
        name=string.ascii_uppercase[index],
        gains=variant.gains,
        bvals=bvals,
        bvecs_ras=bvecs,
        affine=affine,
        shape=shape,
        phase_encoding="j" if physical % 2 else "j-",
        snr=settings.snr * variant.snr,
        tesla=variant.tesla,
        eddy_matrix=settings.eddy * scale * rng.uniform(-1, 1, (4, 3)),
    )


def ras_to_fsl(bvecs_ras: Floats, affine: Floats) -> NDArray[np.float64]:
    """Gradients from scanner RAS to the axes of BIDS and FSL.

    Parameters
    ----------
    bvecs_ras : (n, 3) array
    affine : (4, 4) array
        Voxel index to scanner mm.

    Returns
    -------
    (n, 3) array
        Along the voxel axes, the first reversed when det(affine) > 0.
    """
    linear = np.asarray(affine, dtype=np.float64)[:3, :3]
    axes = linear / np.linalg.norm(linear, axis=0)
    fsl: NDArray[np.float64] = bvecs_ras @ axes
    if np.linalg.det(linear) > 0:
        fsl = fsl * np.array([-1.0, 1.0, 1.0])
    return fsl


def _image_grid(
    voxel_mm: float, variant: _Variant
) -> tuple[NDArray[np.float64], tuple[int, int, int]]:
    """Affine and shape that cover the field of view about the site's centre."""
    from scipy.spatial.transform import Rotation

    size = voxel_mm * np.asarray(variant.voxel, dtype=np.float64)
    counts = 2 * np.ceil(np.asarray(FIELD_OF_VIEW_MM) / size / 2).astype(int)
    rotation = Rotation.from_euler("xyz", variant.oblique_deg, degrees=True).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = rotation @ np.diag(np.asarray(variant.axes)) @ np.diag(size)
    affine[:3, 3] = np.asarray(variant.centre_mm) - affine[:3, :3] @ ((counts - 1) / 2)
    return affine, (int(counts[0]), int(counts[1]), int(counts[2]))


def _gradient_table(
    settings: PhantomSettings, physical: int, variant: _Variant
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shells of spread directions with a b0 before every 16 of them."""
    rng = site_rng(settings.seed, physical, "table")
    count = max(6, round(settings.directions * variant.directions))
    bvals: list[float] = []
    bvecs: list[NDArray[np.float64]] = []
    shells = [(b, d) for b in settings.b_values for d in _spread_directions(count, rng)]
    # Whole-sphere schemes balance eddy currents; some scanners only offer half spheres.
    signs = np.ones(len(shells)) if physical % 2 else rng.choice([-1.0, 1.0], len(shells))
    for n, ((b, direction), sign) in enumerate(zip(shells, signs, strict=True)):
        if n % _DIRECTIONS_PER_B0 == 0:
            bvals.append(variant.b0)
            bvecs.append(np.array([0.0, 0.0, 1.0]) if variant.b0 else np.zeros(3))
        bvals.append(float(np.round(b + rng.uniform(-1, 1) * variant.b_jitter)))
        bvecs.append(sign * direction)
    return np.array(bvals), np.array(bvecs)


def _spread_directions(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Directions of a half sphere that repel each other, in random order, (count, 3)."""
    from dipy.core.sphere import HemiSphere, disperse_charges
    from scipy.spatial.transform import Rotation

    # From a spiral the repulsion settles in few steps; from random points it would need
    # thousands for 64 directions.
    height = (np.arange(count) + 0.5) / count
    azimuth = np.arange(count) * np.pi * (3 - np.sqrt(5))
    radius = np.sqrt(1 - height**2)
    spiral = np.stack([radius * np.cos(azimuth), radius * np.sin(azimuth), height], axis=1)
    start = rng.permutation(spiral) @ Rotation.random(random_state=rng).as_matrix().T
    # The force of a charge on itself is 0/0; DIPY sets it to zero afterwards.
    with np.errstate(divide="ignore", invalid="ignore"):
        spread, _ = disperse_charges(HemiSphere(xyz=start), 300)
    directions = np.asarray(spread.vertices, dtype=np.float64)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions
