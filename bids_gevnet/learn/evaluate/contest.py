"""Which model tells the groups apart best, allowing for having looked for the best.

Models of the scans (networks, summary features, voxelwise maps) are tested together within sites;
confounds, which know nothing of the brain, are tested together among everybody. Both p-values
allow for the number of models (`permutation.JointTest`); that of confounds does without the root
of two, because a warning too few costs more than one too many. What the best of several reached
on the people it was chosen on is too high: `expected_of_best` says what the choice would reach
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.learn.evaluate.baselines import BASELINES
from bids_gevnet.learn.evaluate.intervals import (
    NOTHING,
    Resamples,
    Value,
    mover_mean,
    paired_difference,
    percentile_interval,
)
from bids_gevnet.learn.evaluate.permutation import JointTest, holm, swap_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.learn.evaluate.curves import HeldOut
    from bids_gevnet.learn.evaluate.intervals import Floats

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model with its held-out predictions over all folds.

    Parameters
    ----------
    kind : str
        "network", "simple" (of the scan) or "confound" (knows nothing of the brain).
    model, title : str
    held_out : HeldOut
    value : Value
        Balanced accuracy.
    p : float or None
        Of the joint test of its kind; None where that is not possible.
    z : float
    needed : float or None
        Balanced accuracy from which p would be below 0.05.
    """

    kind: str
    model: str
    title: str
    held_out: HeldOut
    value: Value
    p: float | None = None
    z: float = 0.0
    needed: float | None = None

    def above(self, chance: float) -> bool:
        """Whether it is better than chance: by its interval and by the test."""
        low = self.value["low"]
        return self.p is not None and self.p < LEVEL and low is not None and low > chance

    @property
    def reached(self) -> float:
        """Balanced accuracy; 0 where it has none."""
        return self.value["value"] or 0.0


def kind_of(kind: str, model: str) -> str:
    """Give the kind of contender that a model of the table is."""
    if kind == "network":
        return "network"
    return "confound" if model in BASELINES and BASELINES[model].confound else "simple"


def tested_together(
    contenders: Sequence[Contender], *, confounds: bool, count: int, seed: int
) -> tuple[list[Contender], str | None]:
    """Test models together; give them with their p-values, and why there are none.

    Parameters
    ----------
    contenders : sequence of Contender
        On the same scans.
    confounds : bool
        Whether these are confounds: then labels are exchanged among everybody, not within sites.
    count, seed : int
    """
    if not contenders:
        return [], None
    first = contenders[0].held_out
    test = JointTest(
        first.truth,
        np.stack([contender.held_out.predicted for contender in contenders]),
        list(first.people),
        [""] * len(first) if confounds else list(first.sites),
        classes=len(first.labels),
        count=count,
        seed=seed,
        **({"root": 1.0} if confounds else {}),
    )
    if not test.possible:
        return list(contenders), test.reason
    figures = zip(contenders, test.p.tolist(), test.z.tolist(), test.needed.tolist(), strict=True)
    return [replace(c, p=p, z=z, needed=needed) for c, p, z, needed in figures], None


def strongest(contenders: Sequence[Contender]) -> Contender | None:
    """Give the model furthest beyond its null; of equals the highest, then the simplest."""
    order = {"network": 0, "simple": 1, "confound": 1}
    return max(contenders, key=lambda c: (round(c.z, 9), c.reached, order[c.kind]), default=None)


def difference(first: HeldOut, second: HeldOut) -> Value:
    """Balanced accuracy of one model less that of another, on the same scans."""
    if not np.array_equal(first.scans, second.scans):
        return NOTHING
    parts = []
    for k in range(len(first.labels)):
        is_class = first.truth == k
        right = (first.predicted[is_class] == k, second.predicted[is_class] == k)
        parts.append(paired_difference(*right, first.participants(k)))
    return mover_mean(parts, method="mover_paired")


def swapped(
    first: HeldOut, others: Sequence[HeldOut], *, count: int, seed: int
) -> tuple[list[float], list[float]] | None:
    """Test a model against others on the same scans, each alone and all together, as `swap_test`.

    None where it is not defined.
    """
    same = all(np.array_equal(first.scans, other.scans) for other in others)
    if not others or not same or not first.complete:
        return None
    single, corrected = swap_test(
        first.predicted == first.truth,
        np.stack([other.predicted == other.truth for other in others]),
        first.truth,
        list(first.people),
        count=count,
        seed=seed,
    )
    return single.tolist(), corrected.tolist()


def compare_networks(
    networks: Sequence[Contender], *, count: int, seed: int
) -> list[dict[str, object]]:
    """Compare every two networks on the same people, p corrected for the number of pairs."""
    pairs = [(a, b) for i, a in enumerate(networks) for b in networks[i + 1 :]]
    tests = [swapped(a.held_out, [b.held_out], count=count, seed=seed) for a, b in pairs]
    p = [None if test is None else test[0][0] for test in tests]
    corrected = iter(holm([value for value in p if value is not None]))
    return [
        {
            "first": a.model,
            "second": b.model,
            "balanced_accuracy_difference": difference(a.held_out, b.held_out),
            "p": value,
            "p_corrected": None if value is None else next(corrected),
        }
        for (a, b), value in zip(pairs, p, strict=True)
    ]


def network_against_simple(
    network: Contender, simple: Sequence[Contender], *, networks: int, count: int, seed: int
) -> str:
    """Say whether a network "adds" to the simple models, does "worse", or "neither".

    It adds if it is better than every one of them: each has to be beaten, so no correction for
    their number is needed. It does worse if one of them is better, corrected for their number.
    Both are corrected for the number of networks that this one was chosen from.
    """
    others = [other.held_out for other in simple]
    test = swapped(network.held_out, others, count=count, seed=seed)
    if test is None:
        return "neither"
    gaps = [difference(network.held_out, other) for other in others]
    single, corrected = test
    if all((gap["low"] or 0) > 0 for gap in gaps) and networks * max(single) < LEVEL:
        return "adds"
    beaten = zip(gaps, corrected, strict=True)
    if any((gap["high"] or 0) < 0 and networks * p < LEVEL for gap, p in beaten):
        return "worse"
    return "neither"


def expected_of_best(contenders: Sequence[Contender], *, count: int, seed: int) -> Value:
    """Balanced accuracy to expect of the best model in people it was not chosen on.

    The best is chosen among the people that a bootstrap sample holds and scored on those it does
    not (Tsamardinos, Greasidou and Borboudakis 2018), over all samples.
    """
    first = contenders[0].held_out
    if not first.complete:
        return NOTHING
    draws = Resamples(list(first.people), first.truth.tolist(), count=count, seed=seed)
    inside, outside = draws.weights, (draws.weights == 0).astype(float)
    chosen = _recalls(contenders, inside).argmax(axis=1)
    scores = _recalls(contenders, outside)[np.arange(len(chosen)), chosen]
    scores = scores[np.isfinite(scores)]
    return percentile_interval(float(scores.mean()), scores) if len(scores) else NOTHING


def _recalls(contenders: Sequence[Contender], weights: Floats) -> Floats:
    """Balanced accuracy of each model in each sample, (n_samples, n_models); NaN if undefined."""
    first = contenders[0].held_out
    total: Floats = np.zeros((len(weights), len(contenders)))
    for k in range(len(first.labels)):
        is_class = first.truth == k
        right = np.stack([is_class & (c.held_out.predicted == k) for c in contenders], axis=1)
        with np.errstate(invalid="ignore"):
            total += (weights @ right) / (weights @ is_class)[:, None]
    return total / len(first.labels)
