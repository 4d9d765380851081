r"""Probabilities that mean what they say: temperature scaling (Guo et al. 2017).

.. math:: p = \mathrm{softmax}(z / T), \qquad T = \arg\min -\sum_i \log p_{i, y_i}

with z the network's scores of people it was not trained on. T > 1 softens an overconfident
network; the order of classes never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

_LOG_RANGE = (-3.0, 3.0)  # of log T: a few people can ask for any temperature
_MIN_SCANS = 4


def softmax(scores: Floats, temperature: float = 1.0) -> NDArray[np.float64]:
    """Class probabilities: (..., n_classes) scores to (..., n_classes) probabilities."""
    from scipy.special import softmax as soften

    probabilities: NDArray[np.float64] = soften(
        np.asarray(scores, np.float64) / temperature, axis=-1
    )
    return probabilities


def fit_temperature(scores: Floats, labels: NDArray[np.integer[Any]]) -> float:
    """Temperature that makes the labels most likely.

    Parameters
    ----------
    scores : (n, n_classes) array
        Of people the network was not trained on.
    labels : (n,) array of int

    Returns
    -------
    temperature : float
        1 if there are too few people to say.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    if len(labels) < _MIN_SCANS:
        return 1.0
    wide = np.asarray(scores, np.float64)

    def loss(log_temperature: float) -> float:
        log_p = log_softmax(wide / np.exp(log_temperature), axis=1)
        return -float(log_p[np.arange(len(labels)), labels].mean())

    best = minimize_scalar(loss, bounds=_LOG_RANGE, method="bounded")
    return float(np.exp(best.x))
