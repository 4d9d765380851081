r"""Do two runs show the same brain with the same gradients? Their main directions tell.

Runs of one scan are joined into one series. Where the table of one is flipped, or the run is of
another person, tensors of both have other main directions in the same voxels:

.. math:: \theta = \mathrm{median}_v \arccos |e_1(v) \cdot e_2(v)|

over voxels that are white matter in both. Noise and uncorrected distortions of opposite phase
encoding move it by some degrees; directions that have nothing to do with each other give 60.
Their b0s tell as well, by the correlation of voxels of the brain.

Runs that disagree are kept apart: of the groups that agree among themselves the one is used whose
gradient tables fit the white matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.field_of_view import complete_part
from bids_gevnet.dwi.gradients import direction_angle_deg
from bids_gevnet.dwi.tensor import fit_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LARGEST_ANGLE_DEG = 35.0
"""Half-way between what runs that belong together and unrelated directions give."""

LEAST_CORRELATION = 0.5
"""Of b0s, aligned: three real pairs of one scanner, two of them of opposite phase encoding and not
corrected, have 0.66, 0.70 and 0.80; 18 pairs of different scanners have 0.49 at most."""

FEWEST_VOXELS = 100
_FEWEST_DIRECTIONS = 6


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
    complete, measured = complete_part(signal)
    bvals, bvecs = bvals[measured], bvecs[measured]
    weighted = bvals > b0_threshold
    if weighted.all() or weighted.sum() < _FEWEST_DIRECTIONS or not complete.any():
        return None
    fit = fit_tensor(signal[:, measured], bvals, bvecs, b0_threshold=b0_threshold, weighted=False)
    return Directions(fit.direction, fit.white_matter & complete)


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


def b0_correlation(
    first: NDArray[np.floating[Any]],
    other: NDArray[np.floating[Any]],
    brain: NDArray[np.bool_],
) -> float | None:
    """Return the correlation of two b0s in voxels of the brain where both have data.

    Parameters
    ----------
    first, other : (X, Y, Z) array
        On one grid, aligned.
    brain : (X, Y, Z) array of bool

    Returns
    -------
    correlation : float or None
        None with fewer than ``FEWEST_VOXELS`` voxels or a b0 that is the same everywhere.
    """
    both = brain & (first > 0) & (other > 0)
    if both.sum() < FEWEST_VOXELS or np.ptp(first[both]) == 0 or np.ptp(other[both]) == 0:
        return None
    return float(np.corrcoef(first[both], other[both])[0, 1])


@dataclass(frozen=True)
class Comparison:
    """How two runs compare; ``None`` where it cannot be told.

    Attributes
    ----------
    angle_deg : float or None
        Median angle of their main directions.
    correlation : float or None
        Of their b0s.
    """

    angle_deg: float | None
    correlation: float | None

    @property
    def agree(self) -> bool:
        """Whether nothing speaks against joining the two."""
        turned = self.angle_deg is not None and self.angle_deg > LARGEST_ANGLE_DEG
        unlike = self.correlation is not None and self.correlation < LEAST_CORRELATION
        return not (turned or unlike)

    def __str__(self) -> str:
        parts = []
        if self.angle_deg is not None:
            parts.append(f"a median angle of {self.angle_deg:.0f} degrees between main directions")
        if self.correlation is not None:
            parts.append(f"b0s with a correlation of {self.correlation:.2f}")
        return " and ".join(parts)


def group_runs(agree: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Sort runs into groups that agree.

    Parameters
    ----------
    agree : (r, r) array of bool
        Which two runs agree.

    Returns
    -------
    groups : list of tuple of int
        Each run in one of them; two runs are together if a chain of agreement links them.

    Examples
    --------
    >>> group_runs(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], bool))
    [(0, 2), (1,)]
    """
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(agree, directed=False)
    groups = [tuple(np.flatnonzero(labels == label).tolist()) for label in range(count)]
    return sorted(groups)


def choose_group(
    groups: Sequence[tuple[int, ...]], outcomes: Sequence[str]
) -> tuple[int, ...] | None:
    """Choose the runs to use of those that disagree.

    Parameters
    ----------
    groups : sequence of tuple of int
    outcomes : sequence of str
        Of the check of each run's gradient table: "fits", "wrong" or "undecided".

    Returns
    -------
    group : tuple of int or None
        The group whose tables fit, or the largest of several such groups; None where nobody can
        tell.

    Examples
    --------
    >>> choose_group([(0,), (1,)], ["fits", "wrong"])
    (0,)
    """
    fitting = [
        group
        for group in groups
        if any(outcomes[run] == "fits" for run in group)
        and not any(outcomes[run] == "wrong" for run in group)
    ]
    most = max((len(group) for group in fitting), default=0)
    largest = [group for group in fitting if len(group) == most]
    return largest[0] if len(largest) == 1 else None
