r"""Mixup within a class or between near numbers, planned scan by scan, made when it is needed.

Zhang et al. 2018, restricted to pairs of one class so that labels stay hard (section 5.3 of the
paper: "such that there are 400 training samples per class"):

.. math:: x = \lambda x_i + (1 - \lambda) x_j, \qquad \lambda \sim \mathrm{Beta}(\alpha, \alpha).

An epoch holds every training scan of a class once, and mixtures up to `samples_per_class`; of a
larger class it holds a random choice. Mixtures are drawn anew every epoch. Classes take turns in
random order, so that every batch holds equally many of each: otherwise the gradient of a small
batch says above all which class happens to be in the majority.

Where a number y is predicted, it is mixed as the scans are, and the second of a pair is drawn with
a probability that falls with its distance from the first (C-Mixup, Yao et al. 2022), with z the
standardised numbers:

.. math:: y = \lambda y_i + (1 - \lambda) y_j, \qquad
          P(j | i) \propto \exp\left(-\frac{(z_i - z_j)^2}{2 h^2}\right).

What takes turns then are the half of the scans with the lower and the one with the higher numbers,
each with `samples_per_class`, so that an epoch is as long as that of two classes.

The plan depends on seed and epoch alone, so that any process, or a run that was interrupted, makes
the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

ALPHA = 0.4
"""Between 0.2 and 0.4 in Zhang et al.: most mixtures are near one of the two scans."""

WIDTH = 0.5
"""Of numbers that are mixed, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """weight x[first] + (1 - weight) x[second]; a real scan has weight 1.

    `label` is its class, or its standardised number.
    """

    first: int
    second: int
    weight: float
    label: int | float


def plan_epoch(
    labels: Sequence[int], *, samples_per_class: int, seed: int, epoch: int, alpha: float = ALPHA
) -> list[Mixture]:
    """List the samples of one epoch in random order, one of each class at a time.

    Parameters
    ----------
    labels : sequence of int
        Class of each training scan.
    samples_per_class : int
    seed, epoch : int
    alpha : float
        Of the Beta distribution.

    Returns
    -------
    samples : list of Mixture
        `samples_per_class` of each class.
    """
    rng = np.random.default_rng((seed, epoch))
    by_class = []
    for label in sorted(set(labels)):
        members = rng.permutation([i for i, other in enumerate(labels) if other == label])
        real = members[:samples_per_class]
        plan = [Mixture(int(i), int(i), 1.0, label) for i in real]
        for _ in range(samples_per_class - len(real)):
            first, second = rng.choice(members, 2, replace=len(members) < 2)
            plan.append(Mixture(int(first), int(second), float(rng.beta(alpha, alpha)), label))
        by_class.append([plan[i] for i in rng.permutation(len(plan))])
    turns = zip(*by_class, strict=True)
    return [turn[i] for turn in turns for i in rng.permutation(len(turn))]


def plan_number_epoch(
    numbers: Sequence[float],
    *,
    samples_per_half: int,
    seed: int,
    epoch: int,
    alpha: float = ALPHA,
    width: float = WIDTH,
) -> list[Mixture]:
    """List the samples of one epoch for a number, one of the lower and one of the higher half.

    Parameters
    ----------
    numbers : sequence of float
        Of each training scan, standardised.
    samples_per_half : int
    seed, epoch : int
    alpha : float
        Of the Beta distribution.
    width : float
        h, in standard deviations.

    Returns
    -------
    samples : list of Mixture
        Twice `samples_per_half`.
    """
    rng = np.random.default_rng((seed, epoch))
    z = np.asarray(numbers, dtype=np.float64)
    halves = np.array_split(np.argsort(z, kind="stable"), 2) if len(z) > 1 else [np.arange(1)] * 2
    plans = []
    for half in halves:
        members = rng.permutation(half)
        real = members[:samples_per_half]
        plan = [Mixture(int(i), int(i), 1.0, float(z[i])) for i in real]
        for _ in range(samples_per_half - len(real)):
            first = int(rng.choice(members))
            chances = np.exp(-np.square(z - z[first]) / (2 * width**2))
            chances[first] = 0.0 if len(z) > 1 else 1.0
            # Somebody far from all others is mixed with whoever is nearest.
            total = chances.sum()
            near = int(np.argsort(np.abs(z - z[first]), kind="stable")[min(1, len(z) - 1)])
            second = int(rng.choice(len(z), p=chances / total)) if total > 0 else near
            weight = float(rng.beta(alpha, alpha))
            number = weight * float(z[first]) + (1 - weight) * float(z[second])
            plan.append(Mixture(first, second, weight, number))
        plans.append([plan[i] for i in rng.permutation(len(plan))])
    return [turn[i] for turn in zip(*plans, strict=True) for i in rng.permutation(2)]


def samples_per_epoch(samples_per_class: int, outputs: int) -> int:
    """Count the samples of an epoch for so many classes, or for one number: two halves of it."""
    return samples_per_class * max(2, outputs)


def split_batches(n_samples: int, batch_size: int) -> list[range]:
    """Cut an epoch into batches of nearly equal size, none larger than `batch_size`.

    >>> split_batches(10, 4)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    count = -(-n_samples // batch_size)
    edges = [(n_samples * i + count - 1) // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
