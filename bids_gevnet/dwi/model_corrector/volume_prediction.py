r"""Predict each volume of a shell from all the others.

The signal of a voxel over directions g is an unknown constant plus a Gaussian process that is
the same for g and -g,

.. math:: \operatorname{cov}(g, g') = \frac{1}{Z} \sum_{l = 2, 4, 6, 8}
          (2 l + 1)\, e^{-\tau l (l + 1)}\, P_l(g \cdot g') + \nu\, \delta_{g g'}

(a heat kernel on the sphere, positive definite for every table of directions; Z makes it 1 at
g = g'). With :math:`A = K^{-1} - K^{-1} 1 (1^T K^{-1} 1)^{-1} 1^T K^{-1}` the prediction of volume
k without k is known in closed form (Dubrule 1983):

.. math:: \hat y_k = y_k - (A y)_k / A_{kk},

so all of them together are one (n, n) matrix with an empty diagonal and rows that sum to 1,
whatever the number of voxels. Smoothness :math:`\tau` (``tau``) and noise :math:`\nu` (``noise``)
are those that predict a sample of voxels best; the corrector chooses them for several classes of
voxels, from those that vary least over the directions to those that vary most. FSL's eddy does the
same with another covariance and with the volume itself among the data (Andersson and Sotiropoulos
2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEGREES = (2, 4, 6, 8)
TAUS = (0.03, 0.06, 0.1, 0.16, 0.25, 0.4)
NOISES = (0.01, 0.03, 0.1, 0.25, 0.6, 1.5, 4.0, 12.0, 40.0)
_FEWEST = 4


def covariance(directions: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    """Return the covariance between directions, without noise.

    Parameters
    ----------
    directions : (n, 3) array
        Unit vectors.
    tau : float
        Smoothness: the higher, the fewer degrees take part.

    Returns
    -------
    covariance : (n, n) array
        1 on the diagonal.
    """
    from scipy.special import eval_legendre

    cosine = np.clip(directions @ directions.T, -1, 1)
    weights = {
        degree: (2 * degree + 1) * np.exp(-tau * degree * (degree + 1)) for degree in DEGREES
    }
    total = sum(weight * eval_legendre(degree, cosine) for degree, weight in weights.items())
    return np.asarray(total / sum(weights.values()))


def leave_one_out_matrix(covariances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrix that predicts each volume from the others.

    Parameters
    ----------
    covariances : (n, n) array
        With the noise on its diagonal.

    Returns
    -------
    matrix : (n, n) array
        Zero diagonal, rows sum to 1.
    """
    inverse = np.linalg.inv(covariances)
    ones = inverse.sum(axis=1)
    precision = inverse - np.outer(ones, ones) / ones.sum()
    matrix = np.eye(len(precision)) - precision / np.diag(precision)[:, None]
    np.fill_diagonal(matrix, 0)
    return np.asarray(matrix)


def mean_of_others_matrix(count: int) -> NDArray[np.float64]:
    """Return the matrix of volumes without contrast between them, b0s for instance."""
    return np.asarray((np.ones((count, count)) - np.eye(count)) / (count - 1))


class Predictor:
    """Predict volumes of some directions from each other.

    Parameters
    ----------
    directions : (n, 3) array
        Unit vectors in the frame of the head.
    """

    def __init__(self, directions: NDArray[np.float64]) -> None:
        self.count = len(directions)
        self._smooth = {tau: covariance(directions, tau) for tau in TAUS}
        self._mean = mean_of_others_matrix(self.count)
        self._candidates = {
            (tau, noise): self._solve(tau, noise)
            for tau in TAUS
            for noise in NOISES
            if self.count >= _FEWEST
        }

    def _solve(self, tau: float, noise: float) -> NDArray[np.float64]:
        return leave_one_out_matrix(self._smooth[tau] + noise * np.eye(self.count))

    def matrix(self, signals: NDArray[np.float64], caution: float = 1.0) -> NDArray[np.float64]:
        """Choose smoothness and noise for some voxels and return the prediction matrix.

        Parameters
        ----------
        signals : (n, v) array
            Aligned signals of a sample of voxels.
        caution : float
            Factor on the noise that predicts best.

        Returns
        -------
        matrix : (n, n) array
            ``matrix @ signals`` predicts every volume from the others.
        """
        # Absolute errors: a few bright voxels should not choose for all.
        best, choice = float(np.mean(np.abs(signals - self._mean @ signals))), None
        for settings, matrix in self._candidates.items():
            error = float(np.mean(np.abs(signals - matrix @ signals)))
            if error < best:
                best, choice = error, settings
        if choice is None:
            return self._mean
        tau, noise = choice
        return self._candidates[choice] if caution == 1 else self._solve(tau, caution * noise)
