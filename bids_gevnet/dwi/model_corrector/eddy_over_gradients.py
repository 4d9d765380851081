r"""What all volumes together say about eddy currents: they follow the gradient.

The parameters of volume k, found from its image alone, are pulled towards a linear model of the
gradient that caused them,

.. math:: e_k = B\, u_k + \text{own part}, \qquad u_k = g_k \sqrt{b_k / 1000}

(``drive``: the gradient as the scanner played it). B is fitted with an intercept per shell, which
is then taken away from every volume: a field common to a whole shell cannot come from gradients
that point everywhere, it is the freedom to distort all volumes of a shell together. How far a
volume may keep its own part is decided by the scatter about the model over that which the images'
noise explains (empirical Bayes), per term.

The constant term and the translation along the phase-encoding axis move every image alike. They
are told apart by time: motion is a walk, whose steps are small but for a few jumps, while the
constant term changes with every gradient. So the *steps* of their sum are regressed on those of u,
robustly; FSL's eddy regresses the sum itself. By the same reasoning, motion that follows the
gradient is taken for an error of the prediction (`gradient_bias`), and a jump whenever a b0 begins
for one of the link between shells (`continuity_offset`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import N_RIGID, move, rigid_vector
from bids_gevnet.sphere.harmonics import real_harmonics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import Step
    from bids_gevnet.dwi.model_corrector.warp import Warp

LINK_ERROR_MM = 0.1
"""Of the link between shells by mutual information: 0.09 to 0.12 mm on phantoms of 4 mm."""

_STEPS = 30
_HUBER = 1.345
_HEAVY_TAILS = 6.0


def gradient_drive(
    bvals: NDArray[np.float64], bvecs: NDArray[np.float64], b0_threshold: float
) -> NDArray[np.float64]:
    """Return what drives eddy currents, (n, 3): the gradient times the root of b / 1000."""
    drive = bvecs * np.sqrt(np.maximum(bvals, 0) / 1000)[:, None]
    drive[bvals <= b0_threshold] = 0
    return np.asarray(drive)


@dataclass(frozen=True)
class EddyModel:
    """Eddy terms as the gradients explain them.

    Attributes
    ----------
    predicted : (n, q) array
        mm.
    intercept : (n, q) array
        Of the shell of each volume; to be taken away.
    own_variance : (q,) array
        Of what volumes may keep for themselves; inf where there is too little data to tell.
    """

    predicted: NDArray[np.float64]
    intercept: NDArray[np.float64]
    own_variance: NDArray[np.float64]


def fit_eddy_model(
    found: NDArray[np.float64],
    drive: NDArray[np.float64],
    shell: NDArray[np.intp],
    noise_variance: NDArray[np.float64],
) -> EddyModel:
    """Fit the linear model of all shells.

    Parameters
    ----------
    found : (n, q) array
        Eddy terms of each volume on its own.
    drive : (n, 3) array
    shell : (n,) array of int
        Number of the shell of each volume, from 0.
    noise_variance : (n, q) array
        Of `found`, by the noise of the images.

    Returns
    -------
    model : EddyModel
    """
    groups = np.eye(shell.max() + 1)[shell]  # (n, shells)
    design = np.hstack([drive, groups])
    spare = len(found) - np.linalg.matrix_rank(design)
    if spare < 1:
        nothing = np.zeros_like(found)
        return EddyModel(nothing, nothing, np.full(found.shape[1], np.inf))
    weight = np.ones_like(found)
    for _ in range(_STEPS):
        fitted = np.empty_like(found)
        intercept = np.empty_like(found)
        for term in range(found.shape[1]):
            root = np.sqrt(weight[:, term])
            solution = np.linalg.lstsq(design * root[:, None], found[:, term] * root)[0]
            fitted[:, term] = drive @ solution[:3]
            intercept[:, term] = groups @ solution[3:]
        rest = found - fitted - intercept
        weight = _huber_weights(rest)
    scatter = np.sum(weight * rest**2, axis=0) / spare
    own = np.maximum(scatter - np.median(noise_variance, axis=0), 0)
    return EddyModel(fitted, intercept, own)


def _huber_weights(rest: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = 1.4826 * np.median(np.abs(rest), axis=0)
    limit = _HUBER * np.maximum(scale, 1e-9)
    return np.asarray(np.minimum(1, limit / np.maximum(np.abs(rest), 1e-12)))


def regularise(
    steps: Sequence[Step], eddy: NDArray[np.float64], model: EddyModel
) -> list[NDArray[np.float64]]:
    """Pull steps towards the model of the gradients, motion along with them.

    Parameters
    ----------
    steps : sequence of Step, one per volume
    eddy : (n, q) array
        Present eddy terms.
    model : EddyModel

    Returns
    -------
    deltas : list of (6 + q,) array
        The steps to take: rigid motion and the change of the eddy terms, intercept removed.
    """
    deltas = []
    # A floor of 0.01 mm keeps the sum invertible; it is far below what matters.
    prior = np.concatenate([np.zeros(N_RIGID), 1 / (model.own_variance + 1e-4)])
    for step, now, wanted, common in zip(
        steps, eddy, model.predicted, model.intercept, strict=True
    ):
        centre = np.concatenate([np.zeros(N_RIGID), wanted + common - now])
        precision = step.precision + np.diag(prior)
        delta = np.linalg.solve(precision, step.precision @ step.delta + prior * centre)
        delta[N_RIGID:] -= common
        deltas.append(delta)
    return deltas


def split_constant(
    offsets: NDArray[np.float64], drive: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Tell the constant eddy term from translation along the phase-encoding axis.

    Parameters
    ----------
    offsets : (n,) array
        Their sum in the order of acquisition, mm.
    drive : (n, 3) array

    Returns
    -------
    constant : (n,) array
        The part that follows the gradient; the rest is motion.
    """
    if len(offsets) < 6:
        return np.zeros(len(offsets))
    steps, changes = np.diff(offsets), np.diff(drive, axis=0)
    weight = np.ones(len(steps))
    slope = np.zeros(3)
    for _ in range(_STEPS):
        root = np.sqrt(weight)
        slope = np.linalg.lstsq(changes * root[:, None], steps * root)[0]
        weight = _huber_weights(steps - changes @ slope)
    return np.asarray(drive @ slope)


def continuity_offset(
    positions: NDArray[np.float64],
    group: NDArray[np.intp],
    which: int,
    link_error: float,
) -> NDArray[np.float64]:
    """Return how far a shell is from where the head was just before and just after its volumes.

    The link between a shell and the b0s, by mutual information, has an error that does not depend
    on the motion. A head that lies still says more: it does not jump whenever a b0 begins. So the
    median jump between volumes of the shell and their neighbours in time of other groups is taken
    for an error of the link, as far as the steps within groups are smaller than that error.

    Parameters
    ----------
    positions : (n, q) array
        Parameters in mm in the order of acquisition.
    group : (n,) array of int
        Of each volume.
    which : int
        The group that is looked at.
    link_error : float
        Standard deviation of the link, mm.

    Returns
    -------
    offset : (q,) array
        To be taken away from the positions of the group.
    """
    steps = np.diff(positions, axis=0)
    enters = (group[1:] == which) & (group[:-1] != which)
    leaves = (group[1:] != which) & (group[:-1] == which)
    within = group[1:] == group[:-1]
    if not within.any() or not (enters | leaves).any():
        return np.zeros(positions.shape[1])
    jumps = np.concatenate([steps[enters], -steps[leaves]])
    # Most steps are small, but heads do jump: hence several times the variance of a usual step.
    usual = 1.4826 * np.median(np.abs(steps[within]), axis=0)
    variance = _HEAVY_TAILS * usual**2 / len(jumps)
    return np.asarray(np.median(jumps, axis=0) * link_error**2 / (link_error**2 + variance))


def gradient_bias(
    positions: NDArray[np.float64], directions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the part of the motion on one shell that follows the direction of the gradient.

    Heads do not follow gradients, but an imperfect prediction does: it is a little too bright or
    too dark wherever fibres run along g, the same for g and -g. So the steps of each parameter are
    regressed, robustly, on those of the five harmonics of degree 2, and what they explain is
    shrunk as James and Stein would, to nothing where it is no more than chance.

    Parameters
    ----------
    positions : (n, q) array
        Parameters of the volumes of a shell in the order of acquisition, mm.
    directions : (n, 3) array

    Returns
    -------
    bias : (n, q) array
        Of mean 0; to be taken away.
    """
    basis = real_harmonics(directions, 2)[:, 1:]
    basis = basis - basis.mean(axis=0)
    count, width = basis.shape
    bias = np.zeros_like(positions)
    if count - 1 < 3 * width:
        return bias
    steps, changes = np.diff(positions, axis=0), np.diff(basis, axis=0)
    for q in range(positions.shape[1]):
        weight = np.ones(count - 1)
        slope = np.zeros(width)
        for _ in range(_STEPS):
            root = np.sqrt(weight)
            slope = np.linalg.lstsq(changes * root[:, None], steps[:, q] * root)[0]
            weight = _huber_weights(steps[:, q] - changes @ slope)
        explained = float(np.sum(weight * (changes @ slope) ** 2)) / width
        rest = float(np.sum(weight * (steps[:, q] - changes @ slope) ** 2)) / (count - 1 - width)
        bias[:, q] = basis @ slope * max(0.0, 1 - rest / max(explained, 1e-12))
    return bias


def settle(
    warp: Warp,
    groups: Sequence[NDArray[np.intp]],
    weighted: Sequence[NDArray[np.intp]],
    drive: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split motion from what follows the gradients; mend links between shells by its continuity.

    Parameters
    ----------
    warp : Warp
        With the constant eddy term still in the translations.
    groups : sequence of array
        Volumes of the b0s and of each shell; the first stays where it is.
    weighted : sequence of array
        Those that are shells.
    drive : (n, 3) array

    Returns
    -------
    motion : (n, 4, 4) array
    eddy : (n, 10) array
    """
    motion, eddy = warp.motion.copy(), warp.eddy.copy()
    constant = split_constant(motion[:, warp.axis, 3], drive)
    eddy[:, 0] += constant
    motion[:, warp.axis, 3] -= constant
    for volumes in weighted:
        length = np.linalg.norm(drive[volumes], axis=1, keepdims=True)
        directions = drive[volumes] / np.maximum(length, 1e-9)
        bias = gradient_bias(rigid_vector(motion)[volumes], directions)
        for k, excess in zip(volumes, bias, strict=True):
            motion[k] = np.linalg.inv(move(np.eye(4), excess)) @ motion[k]
    number = np.zeros(len(motion), np.intp)
    for group, volumes in enumerate(groups):
        number[volumes] = group
    for group, volumes in enumerate(groups[1:], start=1):
        offset = continuity_offset(rigid_vector(motion), number, group, LINK_ERROR_MM)
        motion[volumes] = np.linalg.inv(move(np.eye(4), offset)) @ motion[volumes]
    # Without b0s the reference is a volume of a shell, which has been moved with the others.
    return motion @ np.linalg.inv(motion[groups[0][0]]), eddy
