r"""What a network's held-out scores owe their success to, tested by permutation.

For person i, tested by a network that was not trained on them, c_ik(v) is what feature v (a voxel,
a region, an angle) adds to the score of class k. Null hypothesis at v: within a fold and a site,
the contributions of a person have nothing to do with their diagnosis y_i. Labels are exchanged
among the people of a stratum, fold and site together; nobody trained the network that explains
them, so their labels are exchangeable. With n people in a stratum, n_k of class k, and the
contributions centred twice over people and labels (d below, whose mean over permutations is 0),

.. math:: T(v) = \sum_i d_{i y_i}(v), \qquad
          \operatorname{Var} T(v) = \sum_{\text{strata}} \frac{1}{n - 1} \sum_{i, k} n_k \,
          d_{ik}(v)^2, \qquad z(v) = \frac{T(v)}{\sqrt{\operatorname{Var} T(v)}}

(Hoeffding 1951: exact over all permutations). Where a number is predicted there is one score, and
the numbers y_i themselves are exchanged: with both centred within the stratum,

.. math:: T(v) = \sum_i y_i \, c_i(v), \qquad
          \operatorname{Var} T(v) = \sum_{\text{strata}} \frac{1}{n - 1} \sum_i y_i^2
          \sum_i c_i(v)^2 .

Dividing by the standard deviation is what keeps
places where contributions are merely large, or vary much, from winning.

The test is one-sided: z > 0 where contributions speak for the true class. The largest z over all
features in each permutation corrects for their number (Westfall and Young 1993). People tested in
one fold train the others, so the distance from chance is divided by the root of two before it is
compared (`bids_gevnet.learn.evaluate.permutation`, where it is explained). That is done on the
scale of

.. math:: t = z \sqrt{\frac{\nu - 1}{\nu - z^2}}, \qquad \nu = \sum_{\text{strata}} (n - 1),

because z itself cannot exceed the root of nu: divided by 1.4, no effect however large would be
found in 24 people. In simulations of studies without any effect (24 or 48 people, 30 or 300
voxels; tests/learn/evaluate/test_significance.py) 0.5 to 3 % of studies show a voxel, and 11 to
54 % would without the root of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.evaluate.permutation import CROSS_VALIDATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]
    Ints = NDArray[np.intp]
    Truth = NDArray[Any]

PERMUTATIONS = 999
FEWEST_ARRANGEMENTS = 100.0
"""Ways to exchange labels below which p could hardly be small by anything but chance."""
_BLOCK = 2**13  # features at once: their null distribution takes 32 MB
_TINY = 1e-30


@dataclass(frozen=True)
class ContributionTest:
    """Result of a test.

    Attributes
    ----------
    total : (n_features,) array
        T: difference that the labels make.
    z : (n_features,) array
        T in standard deviations of the permutations; 0 where nothing varies.
    p : (n_features,) array
        Corrected for the number of features.
    needed : float
        z from which p is below 0.05.
    """

    total: NDArray[np.float64]
    z: NDArray[np.float64]
    p: NDArray[np.float64]
    needed: float


def count_arrangements(truth: Truth, strata: Sequence[Any]) -> float:
    """Count the different ways to exchange labels within strata.

    Examples
    --------
    >>> round(count_arrangements(np.array([0, 1, 0, 1, 0]), ["a", "a", "b", "b", "c"]))
    4
    """
    groups = np.unique(np.array([str(key) for key in strata]), return_inverse=True)[1]
    log = 0.0
    for group in range(groups.max(initial=-1) + 1):
        counts = np.unique(truth[groups == group], return_counts=True)[1]
        log += lgamma(counts.sum() + 1) - sum(lgamma(count + 1) for count in counts)
    return float(np.exp(min(log, 700.0)))


def judge_contributions(
    contributions: Floats,
    truth: Truth,
    strata: Sequence[Any],
    *,
    seed: int,
    count: int = PERMUTATIONS,
    root: float = CROSS_VALIDATED,
) -> ContributionTest:
    """Test where contributions go with the true class or number.

    Parameters
    ----------
    contributions : (n_people, n_classes, n_features) array
        c: what each feature adds to the score of each class, or to the one number.
    truth : (n_people,) array of int or float
        Classes, or numbers.
    strata : sequence
        Who may exchange labels with whom: those with the same entry.
    seed : int
    count : int
        Permutations.
    root : float
        What z is divided by: the root of two for a cross-validation, 1 for a network that was
        trained on other people altogether.

    Returns
    -------
    test : ContributionTest

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(40) % 2
    >>> one = rng.normal(size=(40, 30))
    >>> one[:, 7] += 3 * truth  # the feature that tells the classes apart
    >>> test = judge_contributions(np.stack([-one, one], 1), truth, ["fold"] * 40, seed=0)
    >>> int(test.z.argmax()), int((test.p < 0.05).sum())
    (7, 1)
    """
    people, classes, features = contributions.shape
    groups = np.unique(np.array([str(key) for key in strata]), return_inverse=True)[1]
    if classes == 1:
        truth = _centre_numbers(truth, groups)
    draws = _weights(_exchange(truth, groups, count, np.random.default_rng(seed)), classes)
    actual = _weights(truth[None], classes)[0]
    total, z = np.zeros(features), np.zeros(features)
    largest = np.full(count, -np.inf)
    for start in range(0, features, _BLOCK):
        part = slice(start, start + _BLOCK)
        centred, variance = _centre(contributions[..., part], truth, groups, classes)
        flat = centred.reshape(people * classes, -1)
        spread = np.sqrt(np.maximum(variance, _TINY))
        sure = variance > _TINY
        total[part] = actual @ flat
        z[part] = np.where(sure, total[part] / spread, 0.0)
        if sure.any():
            standard = (flat[:, sure] / spread[sure]).astype(np.float32)
            largest = np.maximum(largest, (draws @ standard).max(axis=1))
    return _judge(total, z, largest, root, _freedom(truth, groups))


def _judge(
    total: NDArray[np.float64],
    z: NDArray[np.float64],
    largest: NDArray[Any],
    root: float,
    freedom: int,
) -> ContributionTest:
    """Compare every z with the largest of each permutation."""
    count = len(largest)
    if not np.isfinite(largest).all():  # nothing varies
        return ContributionTest(total, z, np.ones_like(z), float("inf"))
    order = np.sort(_to_t(largest.astype(np.float64), freedom))
    t = _to_t(z, freedom)
    # A feature below its null is not helped by being drawn towards it. Float32 draws may fall
    # short of the very same labels by rounding.
    drawn = np.where(t > 0, t / root, t) * (1 - 1e-4)
    p = (1 + count - np.searchsorted(order, drawn, side="left")) / (1 + count)
    needed = root * float(np.quantile(order, 0.95))
    back = float(np.sqrt((needed**2 + freedom - 1) / freedom))
    return ContributionTest(total, z, p, needed / back)


def _freedom(truth: Truth, groups: Ints) -> int:
    """People beyond the first of every stratum in which labels can be exchanged."""
    parts = [truth[groups == group] for group in range(groups.max() + 1)]
    return max(2, sum(len(part) - 1 for part in parts if len(set(part.tolist())) > 1))


def _to_t(z: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """Undo the ceiling of z; increasing."""
    room = np.maximum(freedom - np.square(z), 1e-3)
    return np.asarray(z * np.sqrt((freedom - 1) / room))


def _centre(
    contributions: Floats, truth: Truth, groups: Ints, classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre twice within strata, (people, classes, features); variance of T, (features,)."""
    centred = np.zeros(contributions.shape)
    variance = np.zeros(contributions.shape[-1])
    for group in range(groups.max() + 1):
        inside = np.flatnonzero(groups == group)
        if len(set(truth[inside].tolist())) < 2:  # alone, or all alike: nothing to exchange
            continue
        values = np.asarray(contributions[inside], np.float64)
        if classes == 1:
            values = values - values.mean(axis=0)
            centred[inside] = values
            squares = np.square(values).sum(axis=(0, 1))
            variance += float(np.square(truth[inside]).sum()) * squares / (len(inside) - 1)
            continue
        counts = np.bincount(truth[inside], minlength=classes)
        values = values - np.einsum("ikv,k->iv", values, counts / len(inside))[:, None]
        values -= values.mean(axis=0)
        centred[inside] = values
        variance += np.einsum("ikv,k->v", np.square(values), counts) / (len(inside) - 1)
    return centred, variance


def _centre_numbers(numbers: Truth, groups: Ints) -> NDArray[np.float64]:
    """Numbers less the mean of their stratum: (n_people,) array."""
    means = np.bincount(groups, weights=numbers) / np.bincount(groups)
    return np.asarray(numbers - means[groups])


def _exchange(truth: Truth, groups: Ints, count: int, rng: np.random.Generator) -> Truth:
    """Permuted labels: (count, n_people) array."""
    labels = np.broadcast_to(truth, (count, len(truth))).copy()
    for group in range(groups.max() + 1):
        inside = np.flatnonzero(groups == group)
        labels[:, inside] = rng.permuted(labels[:, inside], axis=1)
    return labels


def _weights(labels: Truth, classes: int) -> NDArray[np.float32]:
    """(..., n_people) labels to (..., n_people * n_classes) indicators; numbers stay."""
    if classes == 1:
        return np.asarray(labels, np.float32)
    hot = (labels[..., None] == np.arange(classes)).astype(np.float32)
    return np.asarray(hot.reshape(*labels.shape[:-1], -1))
