r"""Confidence intervals of held-out results, counted in participants.

n is always a number of participants: two scans of one person are not two people. With z the
normal quantile and p an estimate,

*Wilson* (a proportion; Wilson 1927):

.. math:: \frac{p + z^2 / 2n \pm z \sqrt{p (1 - p) / n + z^2 / 4n^2}}{1 + z^2 / n}

*MOVER* (the mean of K recalls p_k with Wilson limits l_k, u_k; Zou and Donner 2008):

.. math:: \bar p - \tfrac1K \sqrt{\textstyle\sum_k (p_k - l_k)^2}, \quad
          \bar p + \tfrac1K \sqrt{\textstyle\sum_k (u_k - p_k)^2}

*Paired MOVER* (the difference of two models' recalls on the same people, with phi the
correlation of their being right; Newcombe 1998, method 10, then averaged over classes as above):

.. math:: d - \sqrt{(p_1 - l_1)^2 - 2 \phi (p_1 - l_1)(u_2 - p_2) + (u_2 - p_2)^2}, \quad \ldots

*Newcombe* (area under the ROC curve A of m against n people; Newcombe 2006, method 5): all
:math:`\theta` with :math:`(A - \theta)^2 \le z^2 V(\theta)`,

.. math:: V(\theta) = \frac{\theta (1 - \theta)}{m n} \left[1 + \left(\frac{m + n}{2} - 1\right)
          \left(\frac{1 - \theta}{2 - \theta} + \frac{\theta}{1 + \theta}\right)\right]

*Boyd* (average precision; Boyd, Eng and Page 2013): Wilson's, with n the participants of the
positive class.

*Bootstrap* (everything else): participants are drawn with replacement within each class, a person
with all scans; the interval runs between the percentiles of the statistic.

All but the last stay intervals where a result is perfect; there the bootstrap would shrink to a
point. None of them knows that the models were trained on overlapping people: they say how well
the held-out people pin down the figures of these models, not how models of new studies differ.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

CONFIDENCE = 0.95


class Value(TypedDict):
    """An estimate with its interval; None where there is none."""

    value: float | None
    low: float | None
    high: float | None
    method: str


NOTHING = Value(value=None, low=None, high=None, method="none")
"""What cannot be estimated, for instance an area where one class is missing."""


@cache
def normal_quantile() -> float:
    """Give the standard deviations that intervals reach to either side."""
    from scipy.stats import norm

    return float(norm.ppf(0.5 + CONFIDENCE / 2))


def wilson(share: float, people: int, *, method: str = "wilson") -> Value:
    """Interval of a proportion.

    Parameters
    ----------
    share : float
        Estimate, from 0 to 1.
    people : int
        Participants behind it; none gives `NOTHING`.
    method : str
        What the interval is called.
    """
    if people < 1:
        return NOTHING
    z2 = normal_quantile() ** 2
    centre = share + z2 / (2 * people)
    width = np.sqrt(z2 * (share * (1 - share) / people + z2 / (4 * people**2)))
    total = 1 + z2 / people
    return Value(
        value=float(share),
        low=float(max(0.0, min(share, (centre - width) / total))),
        high=float(min(1.0, max(share, (centre + width) / total))),
        method=method,
    )


def mover_mean(parts: Sequence[Value], *, method: str = "mover") -> Value:
    """Interval of the mean of independent estimates; `NOTHING` if one is missing."""
    triples = [(part["value"], part["low"], part["high"]) for part in parts]
    if not triples or any(None in triple for triple in triples):
        return NOTHING
    values, lows, highs = np.array(triples, dtype=np.float64).T
    mean, count = values.mean(), len(parts)
    # Each limit is within the range of its estimate, so the mean's are too.
    return Value(
        value=float(mean),
        low=float(mean - np.sqrt(np.square(values - lows).sum()) / count),
        high=float(mean + np.sqrt(np.square(highs - values).sum()) / count),
        method=method,
    )


def paired_difference(first: Bools, second: Bools, people: int) -> Value:
    """Interval of the difference of two proportions among the same scans.

    Parameters
    ----------
    first, second : (n_scans,) arrays of bool
        Whether each model was right.
    people : int
        Participants behind the scans; none gives `NOTHING`.
    """
    if people < 1:
        return NOTHING
    shares = np.array([first.mean(), second.mean()])
    limits = [wilson(float(share), people) for share in shares]
    below = shares - np.array([limit["low"] for limit in limits], dtype=np.float64)
    above = np.array([limit["high"] for limit in limits], dtype=np.float64) - shares
    varied = 0 < shares[0] < 1 and 0 < shares[1] < 1
    phi = float(np.corrcoef(first, second)[0, 1]) if varied else 0.0
    down = below[0] ** 2 - 2 * phi * below[0] * above[1] + above[1] ** 2
    up = above[0] ** 2 - 2 * phi * above[0] * below[1] + below[1] ** 2
    difference = float(shares[0] - shares[1])
    return Value(
        value=difference,
        low=difference - float(np.sqrt(max(down, 0.0))),
        high=difference + float(np.sqrt(max(up, 0.0))),
        method="mover_paired",
    )


def newcombe(area: float, negatives: int, positives: int) -> Value:
    """Interval of an area under the ROC curve.

    Parameters
    ----------
    area : float
    negatives, positives : int
        Participants of each class.
    """
    from scipy.optimize import brentq

    z = normal_quantile()

    def excess(theta: float) -> float:
        spread = (negatives + positives) / 2 - 1
        shape = 1 + spread * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        variance = theta * (1 - theta) * shape / (negatives * positives)
        return float((area - theta) ** 2 - z**2 * variance)

    tiny = 1e-12
    low = brentq(excess, 0.0, area - tiny) if area > tiny else 0.0
    high = brentq(excess, area + tiny, 1.0) if area < 1 - tiny else 1.0
    return Value(value=float(area), low=float(low), high=float(high), method="newcombe")


class Resamples:
    """Bootstrap weights of scans: participants drawn within their class, scans follow.

    Parameters
    ----------
    people : (n_scans,) sequence of str
    strata : (n_scans,) sequence
        Class of each scan; a person with several classes is a class of their own kind.
    count : int
    seed : int

    Attributes
    ----------
    weights : (count, n_scans) array of float
        How often each scan was drawn.
    """

    def __init__(
        self, people: Sequence[str], strata: Sequence[Any], *, count: int, seed: int
    ) -> None:
        names, unit = np.unique(np.asarray(people, dtype=str), return_inverse=True)
        kinds: list[set[str]] = [set() for _ in names]
        for number, stratum in zip(unit, strata, strict=True):
            kinds[number].add(str(stratum))
        keys = np.array([repr(sorted(kind)) for kind in kinds])
        rng = np.random.default_rng(seed)
        drawn = np.zeros((count, len(names)))
        for key in np.unique(keys):
            members = np.flatnonzero(keys == key)
            drawn[:, members] = rng.multinomial(
                len(members), np.full(len(members), 1 / len(members)), size=count
            )
        self.weights: Floats = drawn[:, unit]

    def means(self, values: Floats) -> Floats:
        """Mean of a number per scan in each resample: (n_scans,) to (count,) array."""
        means: Floats = self.weights @ values / self.weights.sum(axis=1)
        return means

    def areas(self, truth: Bools, chance: Floats) -> Floats:
        """Area under the ROC curve in each resample: (count,) array.

        The Mann-Whitney form for all resamples at once; one by one, scikit-learn gives the same.
        """
        from scipy.stats import rankdata

        order = np.argsort(chance, kind="stable")
        weight, positive = self.weights[:, order], truth[order]
        group = (rankdata(chance[order], method="dense") - 1).astype(np.intp)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        gains = np.add.reduceat(weight * positive, starts, axis=1)  # (count, thresholds)
        losses = np.add.reduceat(weight * ~positive, starts, axis=1)
        below = np.cumsum(losses, axis=1) - losses
        won = (gains * (below + losses / 2)).sum(axis=1)
        areas: Floats = won / (gains.sum(axis=1) * losses.sum(axis=1))
        return areas

    def precisions(self, truth: Bools, chance: Floats) -> Floats:
        """Average precision in each resample, as scikit-learn defines it: (count,) array."""
        order = np.argsort(-chance, kind="stable")
        weight, positive = self.weights[:, order], truth[order]
        starts = np.flatnonzero(np.diff(chance[order], prepend=np.inf))
        gains = np.add.reduceat(weight * positive, starts, axis=1)  # (count, thresholds)
        gained = np.cumsum(gains, axis=1)
        shown = np.cumsum(np.add.reduceat(weight, starts, axis=1), axis=1)
        precision = gained / np.maximum(shown, 1e-300)
        precisions: Floats = (gains * precision).sum(axis=1) / gained[:, -1]
        return precisions


def percentile_interval(value: float, replicates: Floats) -> Value:
    """Percentile interval of bootstrap replicates, (n,) array."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    # The ends include the estimate: an interval without it would say nothing useful.
    return Value(
        value=value,
        low=float(min(low, value)),
        high=float(max(high, value)),
        method="bootstrap",
    )
