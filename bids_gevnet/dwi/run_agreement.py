r"""Do two runs show the same brain with the same gradients? Their main directions tell.

Runs of one scan are joined into one series. Where the table of one is flipped, or the run is of
another person, tensors of both have other main directions in the same voxels:

.. math:: \theta = \mathrm{median}_v \arccos |e_1(v) \cdot e_2(v)|

over voxels that are white matter in both. Noise and uncorrected distortions of opposite phase
encoding move it by some degrees; directions that have nothing to do with each other give 60.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.gradients import direction_angle_deg
from bids_gevnet.dwi.quality import WHITE_MATTER_FA
from bids_gevnet.dwi.tensor import fit_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_ANGLE_DEG = 35.0
"""Half-way between what runs that belong together and unrelated directions give."""

FEWEST_VOXELS = 100
_FEWEST_DIRECTIONS = 6
_HIGHEST_FA = 0.95


@dataclass(frozen=True)
class Directions:
    """Main directions of one run.

    Attributes
    ----------
    main : (v, 3) array
    white : (v,) array of bool
        Where there is white matter.
    """

    main: NDArray[np.float64]
    white: NDArray[np.bool_]


def main_directions(
    signal: NDArray[np.floating[Any]],
    bvals: NDArray[np.floating[Any]],
    bvecs: NDArray[np.floating[Any]],
    *,
    b0_threshold: float,
) -> Directions | None:
    """Return the main direction of every voxel of a run.

    Parameters
    ----------
    signal : (v, n) array
        b0s and one shell, in voxels of the brain.
    bvals : (n,) array
    bvecs : (n, 3) array
    b0_threshold : float

    Returns
    -------
    directions : Directions or None
        None where a tensor cannot be fitted.
    """
    weighted = bvals > b0_threshold
    if weighted.all() or weighted.sum() < _FEWEST_DIRECTIONS or not len(signal):
        return None
    fit = fit_tensor(signal, bvals, bvecs, b0_threshold=b0_threshold, weighted=False)
    return Directions(fit.direction, (fit.fa > WHITE_MATTER_FA) & (fit.fa < _HIGHEST_FA))


def angle_between(first: Directions | None, other: Directions | None) -> float | None:
    """Return the median angle of main directions in white matter, in degrees.

    None where the two share fewer than ``FEWEST_VOXELS`` voxels of it.
    """
    if first is None or other is None:
        return None
    both = first.white & other.white
    if both.sum() < FEWEST_VOXELS:
        return None
    return float(np.nanmedian(direction_angle_deg(first.main[both], other.main[both])))
