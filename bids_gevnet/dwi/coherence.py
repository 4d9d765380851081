r"""Is the gradient table right? White matter tells.

Follow the main direction e(p) of the tensor a few millimetres from an anisotropic voxel p to the
voxel q: with the right table q lies on the same fibre and e(q) is parallel to e(p); with a
flipped or permuted one the step leaves the bundle. For a signed permutation Q of the table the
fitted tensor is exactly :math:`Q D Q^T`, so one fit serves all candidates,

.. math:: C(Q) = \langle \mathrm{FA}(q) \, |e(p) \cdot e(q)| \rangle_p, \qquad
          q = p \pm s\, Q e(p),

averaged over anisotropic voxels p and steps s of two to six mm (Q drops out of the scalar
product). Signed permutations that differ by an overall sign are the same table: of 48 there
remain 24, namely 6 permutations times no flip or the flip of one axis.

Candidates act on the axes of the bvec file, so the one that wins says how to repair the file.
The table is judged only where one candidate is ahead of all others by a margin. Voxels that hold
several bundles, or fibres that hardly bend, leave the best candidates level: then nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bids_gevnet.dwi.field_of_view import complete_part
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.tensor import fit_tensor
from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS_MM = (2.0, 3.0, 4.0, 5.0, 6.0)
MARGIN = 1.02
"""The best candidate must be ahead of the second by this factor. On seven real series of 2.5 to
4.2 mm, as they are and averaged to slices of 5 to 8.4 mm or voxels of 6 mm, the best is ahead by
1.03 and more and is right wherever it is ahead by more than 1.00; on phantoms, whose fibres are
smooth, by 1.002 at most."""

COARSEST_MM = 2 * max(STEPS_MM)
"""No step leaves a larger voxel."""

_AXES = "xyz"


@dataclass(frozen=True)
class Candidate:
    """A signed permutation of the columns of the gradient table."""

    order: tuple[int, int, int]
    flip: int | None

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Matrix Q with g' = Q g, (3, 3)."""
        matrix = np.eye(3)[list(self.order)]
        if self.flip is not None:
            matrix[self.flip] *= -1
        return matrix

    def __str__(self) -> str:
        words = []
        if self.order != (0, 1, 2):
            words.append(
                f"take the components in the order {''.join(_AXES[i] for i in self.order)}"
            )
        if self.flip is not None:
            words.append(f"flip {_AXES[self.flip]}")
        return ", then ".join(words) or "as it stands"


CANDIDATES = tuple(
    Candidate((order[0], order[1], order[2]), flip)
    for order in permutations(range(3))
    for flip in (None, 0, 1, 2)
)
"""The 24 tables that differ; the first is the table as it stands."""


@dataclass(frozen=True)
class Coherence:
    """What the check found.

    Attributes
    ----------
    scores : (24,) array
        Coherence of each of ``CANDIDATES``.
    n_voxels : int
        Voxels that were looked at.
    """

    scores: NDArray[np.float64]
    n_voxels: int

    @property
    def best(self) -> Candidate:
        """The candidate with the most coherent white matter."""
        return CANDIDATES[int(np.argmax(self.scores))]

    @property
    def outcome(self) -> Literal["fits", "wrong", "undecided"]:
        """Whether the table as it stands is right, where one candidate is clearly ahead."""
        second, first = np.sort(self.scores)[-2:]
        if self.n_voxels == 0 or first <= MARGIN * second:
            return "undecided"
        return "fits" if self.best == CANDIDATES[0] else "wrong"

    def __str__(self) -> str:
        if self.n_voxels == 0:
            return (
                "the gradient table could not be checked: that takes anisotropic voxels of "
                f"{COARSEST_MM:g} mm or less"
            )
        if self.outcome == "undecided":
            second, first = np.sort(self.scores)[-2:]
            return (
                "the gradient table could not be checked: white matter is about as coherent with "
                f"several arrangements of its axes ({first:.3f}, {second:.3f}; as it stands "
                f"{self.scores[0]:.3f})"
            )
        if self.outcome == "fits":
            return f"the gradient table fits the white matter (coherence {self.scores[0]:.3f})"
        return (
            f"the gradient table looks wrong: white matter is more coherent "
            f"({self.scores.max():.3f} against {self.scores[0]:.3f}) with this repair of the bvec "
            f"file: {self.best}"
        )


def check_coherence(
    data: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    affine: NDArray[np.float64],
    bvals: NDArray[np.floating[Any]],
    bvecs_fsl: NDArray[np.floating[Any]],
    *,
    b0_threshold: float = B0_THRESHOLD,
    n_seeds: int = 20000,
) -> Coherence:
    """Compare the 24 flips and permutations of a gradient table.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        The b0s and one shell.
    mask : (X, Y, Z) array of bool
        Brain.
    affine : (4, 4) array
        Of the image the bvec file belongs to.
    bvals : (n,) array
    bvecs_fsl : (n, 3) array
        As in the bvec file.
    b0_threshold : float
    n_seeds : int
        Most anisotropic voxels to start from.

    Returns
    -------
    coherence : Coherence
    """
    unknown = Coherence(np.zeros(len(CANDIDATES)), 0)
    if voxel_sizes(affine).max() > COARSEST_MM:
        return unknown
    signal = data[mask]
    complete, measured = complete_part(signal)
    if np.all(bvals[measured] <= b0_threshold) or np.all(bvals[measured] > b0_threshold):
        return unknown
    fit = fit_tensor(
        signal[:, measured],
        bvals[measured],
        bvecs_fsl[measured],
        b0_threshold=b0_threshold,
        weighted=False,
    )
    shape = mask.shape
    fa = np.zeros(shape)
    fa[mask] = np.where(complete, np.nan_to_num(fit.fa), 0.0)
    direction = np.zeros((*shape, 3))
    direction[mask] = np.nan_to_num(fit.direction)
    # Above 0.9 it is noise at the rim of the brain, not white matter.
    white = (fa > 0.3) & (fa < 0.9) & mask
    candidates = np.argwhere(white)
    seeds = candidates[np.argsort(-fa[white], kind="stable")[:n_seeds]]
    if len(seeds) == 0:
        return unknown
    # FSL axes are voxel axes, the first one backwards when the determinant is positive.
    sign = -1.0 if np.linalg.det(affine[:3, :3]) > 0 else 1.0
    to_voxels = np.array([sign, 1.0, 1.0]) / voxel_sizes(affine)
    here = direction[tuple(seeds.T)]  # (s, 3)
    scores = np.array(
        [_score(candidate, seeds, here, direction, fa, to_voxels) for candidate in CANDIDATES]
    )
    return Coherence(scores, len(seeds))


def _score(
    candidate: Candidate,
    seeds: NDArray[np.intp],
    here: NDArray[np.float64],
    direction: NDArray[np.float64],
    fa: NDArray[np.float64],
    to_voxels: NDArray[np.float64],
) -> float:
    step = (here @ candidate.matrix.T) * to_voxels  # (s, 3), voxels per mm
    upper = np.array(fa.shape) - 1
    total = 0.0
    for length in (sign * step_mm for step_mm in STEPS_MM for sign in (-1, 1)):
        there = np.rint(seeds + length * step).astype(np.intp)
        # A step that rounds to the voxel itself agrees with any table: it must not count.
        inside = np.all((there >= 0) & (there <= upper), axis=1) & np.any(there != seeds, axis=1)
        index = tuple(np.clip(there, 0, upper).T)
        agreement = np.abs(np.sum(here * direction[index], axis=1)) * fa[index]
        total += float(np.mean(np.where(inside, agreement, 0.0)))
    return total / (2 * len(STEPS_MM))
