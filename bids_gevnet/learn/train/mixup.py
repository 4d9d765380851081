r"""Mixup within a class, planned scan by scan and made when it is needed.

Zhang et al. 2018, restricted to pairs of one class so that labels stay hard (section 5.3 of the
paper: "such that there are 400 training samples per class"):

.. math:: x = \lambda x_i + (1 - \lambda) x_j, \qquad \lambda \sim \mathrm{Beta}(\alpha, \alpha).

An epoch holds every training scan of a class once, and mixtures up to `samples_per_class`; of a
larger class it holds a random choice. Mixtures are drawn anew every epoch. Classes take turns in
random order, so that every batch holds equally many of each: otherwise the gradient of a small
batch says above all which class happens to be in the majority. The plan depends on
seed and epoch alone, so that any process, or a run that was interrupted, makes the same one.
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


@dataclass(frozen=True, slots=True)
class Mixture:
    """weight x[first] + (1 - weight) x[second], of class `label`; a real scan has weight 1."""

    first: int
    second: int
    weight: float
    label: int


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


def split_batches(n_samples: int, batch_size: int) -> list[range]:
    """Cut an epoch into batches of nearly equal size, none larger than `batch_size`.

    >>> split_batches(10, 4)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    count = -(-n_samples // batch_size)
    edges = [(n_samples * i + count - 1) // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
