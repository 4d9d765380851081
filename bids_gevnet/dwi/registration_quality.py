r"""Tell whether a registration to the template is right.

How much information a b0 shares with the template depends on its contrast more than on its place:
right ones have a normalised mutual information of 1.01 to 1.05. So images are compared with
themselves elsewhere, well inside the brain, where the outline says nothing:

- *rival*: the information above chance at the best of 24 places nearby (moved by 8 or 16 mm along
  an axis, or turned by 10 or 20 degrees), over that at the place found. Above 1 the place found is
  not even the best in its neighbourhood.
- *edges*: correlation of the gradient magnitudes of both images. Tissue borders lie on each
  other or they do not, whatever the contrast; an optimum far off, such as a head upside down,
  fails here.
- *overlap*: the Dice overlap of the brain masks within the field of view.
- *size*: by how much the affine stretches the head along its axes; heads differ only so much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.ndimage import distance_transform_edt, gaussian_gradient_magnitude

from bids_gevnet.dwi.interpolation import coarsen, resample_volume
from bids_gevnet.dwi.mask import dice

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMPARED_MM = 4.0
"""Voxels on which two images are compared."""

_FEWEST_VOXELS = 100

POOR_DICE = 0.85
MOST_RIVAL = 1.0
LEAST_EDGES = 0.25
SIZES = (0.7, 1.5)
"""Outside of these limits a registration is poor; benchmarks/results/accuracy.md says what right
and wrong ones reach."""

INNER_MM = 8.0
"""As deep inside the template's brain images are compared with themselves elsewhere."""

NEARBY_MM, NEARBY_DEG = (8.0, 16.0), (10.0, 20.0)


@dataclass(frozen=True)
class Volume:
    """A volume with its place in the world and its brain.

    Attributes
    ----------
    data : (X, Y, Z) array
    affine : (4, 4) array
        Voxel to world RAS.
    mask : (X, Y, Z) array of bool
        Brain.
    seen : (X, Y, Z) array of bool, optional
        Where brain and background were told apart; all of it by default. A T1w with the mask of
        a b0 that covers less of the head is seen in the field of view of the b0 only.
    """

    data: NDArray[np.floating[Any]]
    affine: NDArray[np.float64]
    mask: NDArray[np.bool_]
    seen: NDArray[np.bool_] | None = None

    @property
    def field(self) -> NDArray[np.bool_]:
        """Where the volume can be compared, (X, Y, Z)."""
        return np.ones(self.data.shape, bool) if self.seen is None else self.seen


@dataclass(frozen=True)
class Registration:
    """A linear transform and its quality.

    Attributes
    ----------
    moving_to_fixed : (4, 4) array
        World RAS, mm.
    dice : float
        Overlap of the brain masks within the field of view of the moving image.
    information : float
        Normalised mutual information of the brains, from 1 (none) to 2.
    rival : float or None
        Information at the best place nearby over that at this one; None where it was not asked
        for.
    edges : float or None
        Correlation of gradient magnitudes within the brain.
    retried : bool
        Whether a first result was poor and more starts were tried.
    """

    moving_to_fixed: NDArray[np.float64]
    dice: float
    information: float
    rival: float | None = None
    edges: float | None = None
    retried: bool = False

    @property
    def sizes(self) -> tuple[float, float]:
        """Smallest and largest factor by which the moving image is stretched."""
        stretch = np.linalg.svd(self.moving_to_fixed[:3, :3], compute_uv=False)
        return float(stretch.min()), float(stretch.max())

    @property
    def faults(self) -> tuple[str, ...]:
        """What speaks against the registration, as phrases."""
        faults = []
        if self.dice < POOR_DICE:
            faults.append(f"brains overlap by {self.dice:.2f} (expected at least {POOR_DICE})")
        if self.is_outdone:
            faults.append(
                f"a place nearby has {self.rival:.2f} times the information (expected at most "
                f"{MOST_RIVAL:g})"
            )
        if self.edges is not None and self.edges < LEAST_EDGES:
            faults.append(
                f"tissue borders correlate by {self.edges:.2f} (expected at least {LEAST_EDGES})"
            )
        low, high = self.sizes
        if low < SIZES[0] or high > SIZES[1]:
            faults.append(
                f"the head is stretched by {low:.2f} to {high:.2f} (expected {SIZES[0]} to "
                f"{SIZES[1]})"
            )
        return tuple(faults)

    @property
    def is_outdone(self) -> bool:
        """Whether a place nearby is better."""
        return self.rival is not None and self.rival > MOST_RIVAL

    @property
    def is_poor(self) -> bool:
        """Whether someone should look at it."""
        return bool(self.faults)

    @property
    def worth(self) -> tuple[bool, float]:
        """What to choose the better of two registrations of one image by."""
        return not self.is_poor, self.dice * self.information

    def __str__(self) -> str:
        verdict = "POOR, look at the figure" if self.is_poor else "good"
        again = ", after more starts were tried" if self.retried else ""
        reasons = "; ".join(self.faults) or f"overlap of brains {self.dice:.3f}"
        return f"registration {verdict}{again}: {reasons}"


class Overlay:
    """Compare a moving image with a fixed one at any place, on a coarse grid of the fixed one.

    Parameters
    ----------
    moving, fixed : Volume
    voxel_mm : float
        Grid on which to compare.
    """

    def __init__(self, moving: Volume, fixed: Volume, voxel_mm: float = COMPARED_MM) -> None:
        self.moving = moving
        self.brain_is_known = not bool(fixed.mask.all())
        self.reference, self.affine = coarsen(fixed.data, fixed.affine, voxel_mm)
        x, y, z = self.reference.shape
        self.shape = (x, y, z)
        self.brain = onto_grid(fixed.mask, fixed.affine, np.eye(4), self.shape, self.affine)
        self.smooth, self.smooth_affine = coarsen(moving.data, moving.affine, voxel_mm)
        padded = np.pad(self.brain, 1)
        depth = distance_transform_edt(padded, sampling=voxel_mm)[1:-1, 1:-1, 1:-1]
        self.inner = np.asarray(depth > INNER_MM)

    def warped(self, transform: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the moving image on the grid, (X', Y', Z')."""
        return resample_volume(
            self.smooth, self.smooth_affine, transform, self.shape, self.affine, order=1
        )

    def mask(self, transform: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the moving image's brain on the grid, (X', Y', Z')."""
        moving = self.moving
        return onto_grid(moving.mask, moving.affine, transform, self.shape, self.affine)

    def overlap(self, transform: NDArray[np.float64]) -> float:
        """Return the Dice overlap of the brains in the field of view; 1 where one is unknown."""
        if not self.brain_is_known:
            return 1.0
        moving = self.moving
        seen = onto_grid(moving.field, moving.affine, transform, self.shape, self.affine)
        return dice(self.mask(transform) & seen, self.brain & seen)

    def information(
        self, transform: NDArray[np.float64], where: NDArray[np.bool_] | None = None
    ) -> float:
        """Return the normalised mutual information where both are brain."""
        both = self.mask(transform) & (self.brain if where is None else where)
        return normalised_information(self.reference[both], self.warped(transform)[both])

    def edges(self, transform: NDArray[np.float64]) -> float:
        """Return the correlation of gradient magnitudes within the brain."""
        inner = self.inner & self.mask(transform)
        if inner.sum() < _FEWEST_VOXELS:
            return 0.0
        fixed, moving = (
            gaussian_gradient_magnitude(volume, 1.0)[inner]
            for volume in (self.reference, self.warped(transform))
        )
        flat = np.ptp(fixed) == 0 or np.ptp(moving) == 0
        return 0.0 if flat else float(np.corrcoef(fixed, moving)[0, 1])

    def nearby(self, transform: NDArray[np.float64]) -> list[tuple[float, NDArray[np.float64]]]:
        """Return information and transform of places nearby, the best first.

        Information is that above chance, over that of the transform itself.
        """
        here = max(self.information(transform, self.inner) - 1, 1e-9)
        places = [move @ transform for move in _moves(self._centre_mm())]
        shares = [(self.information(place, self.inner) - 1) / here for place in places]
        order = np.argsort(shares)[::-1]
        return [(shares[i], places[i]) for i in order]

    def _centre_mm(self) -> NDArray[np.float64]:
        index = np.argwhere(self.brain).mean(axis=0)
        return np.asarray(self.affine[:3, :3] @ index + self.affine[:3, 3])


def _moves(centre_mm: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return shifts along and turns about every axis of the template."""
    from scipy.spatial.transform import Rotation

    moves = []
    for axis in np.concatenate([np.eye(3), -np.eye(3)]):
        for shift_mm in NEARBY_MM:
            moves.append(np.eye(4))
            moves[-1][:3, 3] = shift_mm * axis
        for angle_deg in NEARBY_DEG:
            turn = np.eye(4)
            turn[:3, :3] = Rotation.from_rotvec(np.deg2rad(angle_deg) * axis).as_matrix()
            turn[:3, 3] = centre_mm - turn[:3, :3] @ centre_mm
            moves.append(turn)
    return moves


def assess(
    transform: NDArray[np.float64], moving: Volume, fixed: Volume, voxel_mm: float = COMPARED_MM
) -> Registration:
    """Measure overlap and information of a transform, which is quick.

    Parameters
    ----------
    transform : (4, 4) array
        Moving to fixed, world mm.
    moving, fixed : Volume
    voxel_mm : float
        Grid on which to compare.

    Returns
    -------
    registration : Registration
    """
    overlay = Overlay(moving, fixed, voxel_mm)
    return Registration(
        moving_to_fixed=transform,
        dice=overlay.overlap(transform),
        information=overlay.information(transform),
    )


def judge(transform: NDArray[np.float64], moving: Volume, fixed: Volume) -> Registration:
    """Measure all that tells a right transform to the template from a wrong one.

    Parameters
    ----------
    transform : (4, 4) array
        Moving to fixed, world mm.
    moving, fixed : Volume
        Without shading.

    Returns
    -------
    registration : Registration
    """
    overlay = Overlay(moving, fixed)
    return Registration(
        moving_to_fixed=transform,
        dice=overlay.overlap(transform),
        information=overlay.information(transform),
        rival=overlay.nearby(transform)[0][0],
        edges=overlay.edges(transform),
    )


def normalised_information(
    first: NDArray[np.floating[Any]], second: NDArray[np.floating[Any]], bins: int = 24
) -> float:
    """Return (H(X) + H(Y)) / H(X, Y) of two sets of values at the same points.

    Parameters
    ----------
    first, second : (n,) array
    bins : int
        Of equal width between the 1st and the 99th percentile.

    Returns
    -------
    information : float
        1 for independent values (or fewer than two of them), 2 for a one-to-one relation.
    """
    if first.size < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 1.0
    x, y = (
        np.clip(values, *np.percentile(values, (1, 99))).astype(np.float64)
        for values in (first, second)
    )
    joint = np.histogram2d(x, y, bins=bins)[0] / first.size
    separate = _entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1))
    together = _entropy(joint)
    return separate / together if together > 0 else 1.0


def _entropy(probability: NDArray[np.float64]) -> float:
    positive = probability[probability > 0]
    return float(-np.sum(positive * np.log(positive)))


def onto_grid(
    mask: NDArray[np.bool_],
    affine: NDArray[np.float64],
    transform: NDArray[np.float64],
    shape: tuple[int, ...],
    target_affine: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return a mask on another grid, (X', Y', Z').

    Parameters
    ----------
    mask : (X, Y, Z) array of bool
    affine : (4, 4) array
        Of the mask.
    transform : (4, 4) array
        World of the mask to world of the grid, mm.
    shape : (int, int, int)
    target_affine : (4, 4) array
    """
    target = (shape[0], shape[1], shape[2])
    return resample_volume(mask, affine, transform, target, target_affine, order=1) > 0.5
