r"""What all volumes together say about eddy currents: they follow the gradient.

An eddy current is the response of a linear system to the gradient that caused it: twice the
gradient, twice the field; the opposite gradient, the opposite field. So the eddy terms of volume k
are

.. math:: e_k = B\, u_k, \qquad u_k = g_k \sqrt{b_k / 1000}

(``drive``: the gradient as the scanner played it), with one B for all shells. Contrast is the
same for g and -g. What an image on its own says beyond B u is therefore not eddy current but an
error of its prediction, and at b = 3000 that is most of it. B is fitted to what the volumes find
on their own, each weighed by how sure it is, so that shells of low b, whose images are clearer,
speak for those of high b.

Along with B an intercept per shell is fitted and taken away from every volume: a field common to a
whole shell cannot come from gradients that point everywhere, it is the freedom to distort all
volumes of a shell together. The constant term moves every image as a translation does;
`motion_over_time` tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import N_RIGID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import Step

_STEPS = 30
_HUBER = 1.345
_SURE_MM = 0.02
"""No volume is surer of a term than this, whatever its residuals say."""


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
    """

    predicted: NDArray[np.float64]
    intercept: NDArray[np.float64]


def fit_eddy_model(
    terms: NDArray[np.float64],
    drive: NDArray[np.float64],
    shell: NDArray[np.intp],
    variance: NDArray[np.float64],
) -> EddyModel | None:
    """Fit the linear model of all shells.

    Parameters
    ----------
    terms : (n, q) array
        Eddy terms of each volume on its own.
    drive : (n, 3) array
    shell : (n,) array of int
        Number of the shell of each volume, from 0.
    variance : (n, q) array
        Of `terms`, by the residuals of the images.

    Returns
    -------
    model : EddyModel or None
        None where there are too few volumes to tell.
    """
    groups = np.eye(shell.max() + 1)[shell]  # (n, shells)
    design = np.hstack([drive, groups])
    if len(terms) <= np.linalg.matrix_rank(design):
        return None
    sureness = 1 / (variance + _SURE_MM**2)
    weight = sureness
    for _ in range(_STEPS):
        fitted = np.empty_like(terms)
        intercept = np.empty_like(terms)
        for term in range(terms.shape[1]):
            root = np.sqrt(weight[:, term])
            solution = np.linalg.lstsq(design * root[:, None], terms[:, term] * root)[0]
            fitted[:, term] = drive @ solution[:3]
            intercept[:, term] = groups @ solution[3:]
        rest = (terms - fitted - intercept) * np.sqrt(sureness)
        weight = sureness * _huber_weights(rest)
    return EddyModel(fitted, intercept)


def _huber_weights(rest: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = 1.4826 * np.median(np.abs(rest), axis=0)
    limit = _HUBER * np.maximum(scale, 1e-9)
    return np.asarray(np.minimum(1, limit / np.maximum(np.abs(rest), 1e-12)))


def follow_gradients(
    steps: Sequence[Step], eddy: NDArray[np.float64], model: EddyModel | None
) -> list[NDArray[np.float64]]:
    """Replace the eddy part of steps by that of the model; motion changes along with it.

    Parameters
    ----------
    steps : sequence of Step, one per volume
    eddy : (n, q) array
        Present eddy terms.
    model : EddyModel or None
        Without one the steps stay as they are.

    Returns
    -------
    deltas : list of (6 + q,) array
        The steps to take: rigid motion and the change of the eddy terms, intercept removed.
    """
    if model is None:
        return [step.delta for step in steps]
    deltas = []
    for step, now, wanted, common in zip(
        steps, eddy, model.predicted, model.intercept, strict=True
    ):
        change = wanted + common - now
        rigid, mixed = step.precision[:N_RIGID, :N_RIGID], step.precision[:N_RIGID, N_RIGID:]
        surprise = step.delta[N_RIGID:] - change
        motion = step.delta[:N_RIGID] + np.linalg.solve(rigid, mixed @ surprise)
        deltas.append(np.concatenate([motion, change - common]))
    return deltas
