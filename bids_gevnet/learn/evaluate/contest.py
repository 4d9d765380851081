"""Which model predicts best, classes or a number, allowing for having looked for the best.

Models of the scans (networks, summary features, voxelwise maps) are tested together within sites;
confounds, which know nothing of the brain, are tested together among everybody. Both p-values
allow for the number of models (`permutation.JointTest`); that of confounds does without the root
of two, because a warning too few costs more than one too many. What the best of several reached
on the people it was chosen on is too high: `expected_of_best` says what the choice would reach
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.learn.evaluate.baselines import BASELINES
from bids_gevnet.learn.evaluate.intervals import NOTHING, Value, percentile_interval
from bids_gevnet.learn.evaluate.permutation import JointTest, holm
from bids_gevnet.learn.evaluate.yardsticks import Yardstick, compare, yardstick_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.learn.evaluate.curves import HeldOut
    from bids_gevnet.learn.evaluate.number_scores import HeldOutNumbers

    Predicted = HeldOut | HeldOutNumbers

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model with its held-out predictions over all folds.

    Parameters
    ----------
    kind : str
        "network", "simple" (of the scan) or "confound" (knows nothing of the brain).
    model, title : str
    held_out : HeldOut or HeldOutNumbers
    value : Value
        Balanced accuracy, or correlation: the figure of the yardstick.
    error : Value
        Mean absolute error, of a number.
    p : float or None
        Of the joint test of its kind; None where that is not possible.
    z : float
    needed : float or None
        Value from which p would be below 0.05.
    """

    kind: str
    model: str
    title: str
    held_out: Predicted
    value: Value
    error: Value = field(default_factory=lambda: NOTHING)
    p: float | None = None
    z: float = 0.0
    needed: float | None = None

    def above(self, chance: float) -> bool:
        """Whether it is better than chance: by its interval and by the test."""
        low = self.value["low"]
        return self.p is not None and self.p < LEVEL and low is not None and low > chance

    @property
    def reached(self) -> float:
        """Value; 0 where it has none."""
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
        classes=first.classes,
        count=count,
        seed=seed,
        **({"root": 1.0} if confounds else {}),
    )
    if not test.possible:
        return list(contenders), test.reason
    figures = zip(contenders, test.p.tolist(), test.z.tolist(), test.needed.tolist(), strict=True)
    return [replace(c, p=p, z=z, needed=needed) for c, p, z, needed in figures], None


def strongest(contenders: Sequence[Contender]) -> Contender | None:
    """Give the model furthest beyond its null; of equals the highest, then the simplest.

    Of a number, the model that is least far off, those beyond their null first.
    """
    order = {"network": 0, "simple": 1, "confound": 1}

    def rank(contender: Contender) -> tuple[float, float, int]:
        error = contender.error["value"]
        if error is not None:
            return float(contender.above(0.0)), -error, order[contender.kind]
        return round(contender.z, 9), contender.reached, order[contender.kind]

    return max(contenders, key=rank, default=None)


def swapped(
    first: Predicted, others: Sequence[Predicted], *, count: int, seed: int
) -> tuple[list[float], list[float]] | None:
    """Test a model against others on the same scans, each alone and all together, as `swap_test`.

    None where it is not defined.
    """
    same = all(np.array_equal(first.scans, other.scans) for other in others)
    if not others or not same or not first.complete:
        return None
    single, corrected = yardstick_of(first).swap(first, others, count=count, seed=seed)
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
            yardstick_of(a.held_out).difference: compare(a.held_out, b.held_out),
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
    gaps = [compare(network.held_out, other) for other in others]
    single, corrected = test
    if all((gap["low"] or 0) > 0 for gap in gaps) and networks * max(single) < LEVEL:
        return "adds"
    beaten = zip(gaps, corrected, strict=True)
    if any((gap["high"] or 0) < 0 and networks * p < LEVEL for gap, p in beaten):
        return "worse"
    return "neither"


def expected_of_best(contenders: Sequence[Contender], *, count: int, seed: int) -> Value:
    """Give what to expect of the best model in people it was not chosen on.

    The best is chosen among the people that a bootstrap sample holds and scored on those it does
    not (Tsamardinos, Greasidou and Borboudakis 2018), over all samples: by its balanced accuracy,
    or, of a number, by its mean absolute error.
    """
    held_outs = [contender.held_out for contender in contenders]
    first = held_outs[0]
    if not first.complete:
        return NOTHING
    yardstick: Yardstick = yardstick_of(first)
    draws = yardstick.draw(first, count=count, seed=seed)
    inside, outside = draws.weights, (draws.weights == 0).astype(float)
    chosen = (yardstick.sign * yardstick.merits(held_outs, inside)).argmax(axis=1)
    scores = yardstick.merits(held_outs, outside)[np.arange(len(chosen)), chosen]
    scores = scores[np.isfinite(scores)]
    return percentile_interval(float(scores.mean()), scores) if len(scores) else NOTHING
