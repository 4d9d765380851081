r"""Motion as a walk in time: what belongs to it, and what only follows the gradients.

The position of volume k, found from its image alone, is the sum

.. math:: y_k = x_k + u_k \cdot \beta + o_{s(k)} + c_k + \varepsilon_k

of the motion x, a walk whose steps are short but for a few jumps; of the constant eddy term,
linear in the gradient u as the scanner played it (along the phase-encoding axis only, where it
moves every image just as a translation does); of an error o of the link between the b0s and
shell s, which differ in contrast; of an error c of the prediction, a smooth function of the
direction of the gradient, the same for g and -g as all contrast is; and of noise.

All but x is nuisance. Each part has a Gaussian prior, so y is Gaussian with the covariance

.. math:: a^2\, 1 1^T + q^2\, T H T^T + \lambda^2\, U U^T + l^2\, Z Z^T
          + \sum_s \gamma_s^2\, K_s + \sigma^2\, V

with T the sums of steps, Z which volume is on which shell, K the covariance over directions of
`volume_prediction` and V the variances by the residuals of the images. Length of a step q
(``step``), noise :math:`\sigma` (``noise``) and contrast :math:`\gamma_s` (``contrast``) have the
highest posterior probability. H lets single steps be much longer than q: a t distribution, for
all six parameters together, because heads jump in all of them. The motion is the expectation of x
given y.

So a head that lies still keeps still, whatever the contrast; one that moves more than the errors
of its images keeps what the images say; a volume without a position gets that of its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.dwi.model_corrector.volume_prediction import covariance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LINK_ERROR_MM = 0.05
"""Of a link by mutual information, as far as continuity may change it."""

UNKNOWN_MM = 100.0
"""Standard deviation of what is not known at all: a, and volumes without a position."""

_CONSTANT_MM = 3.0
_FEWEST = 6
"""Diffusion-weighted volumes without which a constant eddy term is not looked for."""

_SURE_MM = 0.01
_TAU = 0.1
_FREEDOM = 2.0
_ROUNDS = 4
_SHORTEST, _LONGEST = 0.2, 1e6
_BOUNDS = (np.log(0.003), np.log(30.0))

# What heads and predictions usually do, as medians and spreads of logarithms: it decides where a
# few volumes cannot. Contrast at b = 1000; it grows with the third power of the gradient.
_STEP_MM, _STEP_SPREAD = 0.1, 1.0
_NOISE_SPREAD = 0.5
_CONTRAST_MM, _CONTRAST_SPREAD = 0.05, 0.7


@dataclass(frozen=True)
class Positions:
    """What images say about where the head was, and what may have misled them.

    Attributes
    ----------
    parameters : (n, 6) array
        mm, in the order of acquisition.
    variance : (n, 6) array
        Of the parameters, by the residuals of the images.
    group : (n,) array of int
        0 for the volumes that are the reference, 1, 2, ... for the shells linked to them.
    drive : (n, 3) array
        Gradient times the root of b / 1000; 0 for b0s.
    axis : int
        The translation to which the constant eddy term adds.
    """

    parameters: NDArray[np.float64]
    variance: NDArray[np.float64]
    group: NDArray[np.intp]
    drive: NDArray[np.float64]
    axis: int


def separate_motion(positions: Positions) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tell motion from what follows the gradients.

    Parameters
    ----------
    positions : Positions

    Returns
    -------
    motion : (n, 6) array
        mm.
    constant : (n,) array
        Constant eddy term, mm.
    """
    count, width = positions.parameters.shape
    motion, constant = positions.parameters.copy(), np.zeros(count)
    if count < 3:
        return motion, constant
    contrast = _contrast_covariances(positions)
    stretch = np.ones(count - 1)
    logs: list[NDArray[np.float64] | None] = [None] * width
    for _ in range(_ROUNDS):
        squares = np.zeros(count - 1)
        for q in range(width):
            model = _Walk(positions, q, stretch, contrast)
            chosen = model.choose(logs[q])
            motion[:, q], steps = model.expect(chosen)
            squares += steps
            logs[q] = chosen
            if q == positions.axis:
                constant = model.constant_part(chosen)
        stretch = np.clip((_FREEDOM + squares) / (_FREEDOM + width), _SHORTEST, _LONGEST)
    return motion, constant


def _contrast_covariances(positions: Positions) -> list[tuple[float, NDArray[np.float64]]]:
    """Return for each shell its drive and (n, n) covariance, 0 between other volumes."""
    length = np.linalg.norm(positions.drive, axis=1)
    directions = positions.drive / np.maximum(length, 1e-9)[:, None]
    covariances = []
    for number in np.unique(positions.group[length > 0]):
        chosen = np.flatnonzero((positions.group == number) & (length > 0))
        whole = np.zeros((len(length), len(length)))
        whole[np.ix_(chosen, chosen)] = covariance(directions[chosen], _TAU)
        covariances.append((float(np.median(length[chosen])), whole))
    return covariances


class _Walk:
    """The model of one parameter; ``logs`` are logarithms of step, noise and contrasts."""

    def __init__(
        self,
        positions: Positions,
        q: int,
        stretch: NDArray[np.float64],
        contrast: Sequence[tuple[float, NDArray[np.float64]]],
    ) -> None:
        count = len(positions.parameters)
        self.y = positions.parameters[:, q]
        # Steps, and how they add up to positions.
        self.stretch = np.diag(stretch)
        self.sums = np.tril(np.ones((count, count - 1)), -1)
        variance = np.minimum(positions.variance[:, q], UNKNOWN_MM**2) + _SURE_MM**2
        self.parts = [self.sums @ self.stretch @ self.sums.T, np.diag(variance)]
        self.parts += [shape for _, shape in contrast]
        linked = np.eye(positions.group.max() + 1)[positions.group][:, 1:]
        self.start = np.full((count, count), UNKNOWN_MM**2)
        self.constant = np.zeros((count, count))
        if q == positions.axis and np.count_nonzero(positions.drive.any(axis=1)) >= _FEWEST:
            self.constant = _CONSTANT_MM**2 * positions.drive @ positions.drive.T
        self.fixed = self.start + self.constant + LINK_ERROR_MM**2 * linked @ linked.T
        strengths = [_CONTRAST_MM * drive**3 for drive, _ in contrast]
        self.usual = np.log([_STEP_MM, 1.0, *strengths])
        self.spread = np.array([_STEP_SPREAD, _NOISE_SPREAD, *[_CONTRAST_SPREAD] * len(contrast)])

    def total(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of y."""
        scaled = [scale * part for scale, part in zip(np.exp(2 * logs), self.parts, strict=True)]
        return np.asarray(self.fixed + np.sum(scaled, axis=0))

    def cost(self, logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return minus the logarithm of the posterior, and its derivatives."""
        total = self.total(logs)
        inverse = np.linalg.inv(total)
        solved = inverse @ self.y
        away = (logs - self.usual) / self.spread
        value = self.y @ solved + np.linalg.slogdet(total)[1] + away @ away
        slopes = [
            scale * (np.vdot(inverse, part) - solved @ part @ solved)
            for scale, part in zip(np.exp(2 * logs), self.parts, strict=True)
        ]
        return float(value) / 2, np.asarray(slopes) + away / self.spread

    def choose(self, start: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Return the most probable logs."""
        from scipy.optimize import minimize

        first = self.usual if start is None else start
        bounds = [_BOUNDS] * len(first)
        best = minimize(self.cost, first, jac=True, method="L-BFGS-B", bounds=bounds)
        return np.asarray(best.x)

    def expect(self, logs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the expected motion, (n,), and squares of its steps in units of q², (n - 1,)."""
        square = float(np.exp(2 * logs[0]))
        inverse = np.linalg.inv(self.total(logs))
        motion = (square * self.parts[0] + self.start) @ inverse @ self.y
        with_y = square * self.stretch @ self.sums.T
        steps = with_y @ inverse @ self.y
        left = square * self.stretch - with_y @ inverse @ with_y.T
        return motion, (steps**2 + np.diag(left)) / square

    def constant_part(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected constant eddy term, (n,)."""
        return np.asarray(self.constant @ np.linalg.solve(self.total(logs), self.y))
