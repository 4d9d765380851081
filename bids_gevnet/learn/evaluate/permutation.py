r"""Permutation tests of held-out predictions, of one model and of the best of several.

Null hypothesis: within each site, a participant's label has nothing to do with what was predicted.
Labels are exchanged among the participants of a site, all scans of a person together, and T, the
balanced accuracy or, of numbers, the correlation, is computed again with predictions as they are.
Nothing is trained again. Because labels stay within their site, predictions that know the site and
nothing else gain nothing.

Predictions of a cross-validation are not independent: whoever is tested in one fold trains the
others, so each pair of people counts twice, once in each direction, and the variance of T without
any effect is up to twice that of the permutations. With mu and s the mean and standard deviation
over B permutations, the test therefore compares

.. math:: z_b = \frac{T_b - \mu}{s} \quad\text{with}\quad \frac{z}{\sqrt 2}, \qquad
          p = \frac{1 + \#\{b : z_b \ge z / \sqrt 2\}}{1 + B}

(the counting of Phipson and Smyth 2010, valid for any B). Without the root of two, about one in
ten studies without an effect would find one in the best of four models; with it at most one in
twenty does, which tests/learn/evaluate/test_permutation.py measures.

Of several models, all see the same exchanged labels, and each z is compared with the largest z_b
of all models (Westfall and Young 1993): p then allows for having chosen the best of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.evaluate.number_scores import correlations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.intp]
    Truth = NDArray[Any]  # classes as int, or numbers
    Floats = NDArray[np.float64]

_BLOCK = 2**22  # labels held at once
_TIE = 1e-9
CROSS_VALIDATED = float(np.sqrt(2.0))
"""What the distance from chance is divided by where everybody tested also trains others."""
IMPOSSIBLE = (
    "within every site all participants have the same label, or there is only one: no exchange "
    "within a site changes anything, and nothing can be told beyond the site"
)

MISSING = "a class is missing"


def p_text(p: float) -> str:
    """Write a p-value, never as 0.

    Examples
    --------
    >>> p_text(0.0005), p_text(0.0321), p_text(0.5)
    ('p < 0.001', 'p = 0.032', 'p = 0.50')
    """
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for how many there are (Holm 1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    largest = 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[number]))
        corrected[number] = largest
    return [float(value) for value in corrected]


def permutation_test(
    truth: Truth,
    predicted: Truth,
    people: Sequence[str],
    sites: Sequence[str],
    *,
    classes: int | None,
    count: int,
    seed: int,
    root: float = CROSS_VALIDATED,
) -> dict[str, Any]:
    """Test the balanced accuracy, or the correlation, of one model.

    Parameters
    ----------
    truth, predicted : (n_scans,) arrays
        Classes as int, or numbers.
    people, sites : sequences of str
        Of each scan.
    classes : int or None
        None for numbers.
    count : int
        B, permutations.
    seed : int
    root : float
        The root of two for a cross-validation; 1 for a model that was trained on others.

    Returns
    -------
    result : dict
        ``n``, ``possible``, ``reason`` and, for ``balanced_accuracy`` or ``correlation``,
        ``observed``, ``p``, ``null_mean`` and ``null_sd``.
    """
    test = JointTest(
        truth, predicted[None], people, sites, classes=classes, count=count, seed=seed, root=root
    )
    figures = {"observed": None, "p": None, "null_mean": None, "null_sd": None}
    if test.observed is not None:
        figures["observed"] = test.observed[0]
    if test.possible:
        figures |= {"p": test.p[0], "null_mean": test.mean[0], "null_sd": test.sd[0]}
    return {
        "n": count,
        "possible": test.possible,
        "reason": test.reason,
        "correlation" if classes is None else "balanced_accuracy": {
            name: None if value is None else float(value) for name, value in figures.items()
        },
    }


class JointTest:
    """Test the balanced accuracies, or correlations, of several models on the same scans together.

    Parameters
    ----------
    truth : (n_scans,) array
    predicted : (n_models, n_scans) array
        Classes as int, or numbers.
    people, sites : sequences of str
        Of each scan; one site for all exchanges labels among everybody.
    classes : int or None
        None for numbers.
    count, seed : int
    root : float
        What z is divided by: the root of two, or 1 for a test that would rather call too early.

    Attributes
    ----------
    possible : bool
    reason : str or None
        Why it is not.
    observed : (n_models,) array or None
        None where a class is missing, or all numbers are the same.
    mean, sd, z : (n_models,) arrays
        Under the null, and how far beyond it each model is; 0 for one that always says the same.
    p : (n_models,) array
        Corrected for the number of models.
    needed : (n_models,) array
        Figure from which p would be below 0.05.
    """

    def __init__(
        self,
        truth: Truth,
        predicted: Truth,
        people: Sequence[str],
        sites: Sequence[str],
        *,
        classes: int | None,
        count: int,
        seed: int,
        root: float = CROSS_VALIDATED,
    ) -> None:
        strata = _strata(truth, people, sites)
        varied = any(len({tuple(truth[unit]) for unit in units}) > 1 for units in strata)
        different = len(np.unique(truth))
        complete = different > 1 if classes is None else different == classes
        self.possible = varied and complete
        self.reason = None if self.possible else IMPOSSIBLE if complete else MISSING
        self.observed: Floats | None = None
        if complete:
            self.observed = _figures(truth[None], predicted, classes)[:, 0]
        if not self.possible or self.observed is None:
            return
        rng = np.random.default_rng(seed)
        blocks = [
            _figures(labels, predicted, classes) for labels in _draw(truth, strata, count, rng)
        ]
        null = np.concatenate(blocks, axis=1)  # (n_models, count)
        self.mean, self.sd = null.mean(axis=1), null.std(axis=1)
        sure = self.sd > _TIE
        spread = np.where(sure, self.sd, 1.0)
        self.z: Floats = np.where(sure, (self.observed - self.mean) / spread, 0.0)
        scores = np.where(sure[:, None], (null - self.mean[:, None]) / spread[:, None], 0.0)
        largest = scores.max(axis=0)
        # A model below its null is not helped by being drawn towards it.
        drawn = np.where(self.z > 0, self.z / root, self.z)
        beyond = (largest[None] >= drawn[:, None] - _TIE).sum(axis=1)
        self.p: Floats = (1 + beyond) / (1 + count)
        self.needed: Floats = self.mean + root * self.sd * float(np.quantile(largest, 0.95))


def swap_test(
    first: NDArray[np.bool_],
    others: NDArray[np.bool_],
    truth: Ints,
    people: Sequence[str],
    *,
    count: int,
    seed: int,
) -> tuple[Floats, Floats]:
    """Test whether a model differs from others in balanced accuracy, two-sided.

    Null hypothesis: for every person it does not matter which of two models was right how often.
    So the models are swapped for some people, all scans of a person together; the root of two is
    that of cross-validation, as above.

    Parameters
    ----------
    first : (n_scans,) array of bool
        Whether the model was right.
    others : (n_models, n_scans) array of bool
        Whether the others were.
    truth : (n_scans,) array of int
    people : sequence of str
    count, seed : int

    Returns
    -------
    single, corrected : (n_models,) arrays
        p for each of the others alone, and for the one that differs most, by the largest
        difference in every draw.
    """
    sizes = np.bincount(truth)
    present = int((sizes > 0).sum())
    gains = (first.astype(float) - others) / (present * sizes[truth])  # (n_models, n_scans)
    return swap_gains(gains, people, count=count, seed=seed)


def swap_gains(
    gains: Floats, people: Sequence[str], *, count: int, seed: int
) -> tuple[Floats, Floats]:
    """Test whether gains of a model over others sum up to more than chance, as `swap_test`.

    Parameters
    ----------
    gains : (n_models, n_scans) array
        How much better the model is than each of the others at a scan.
    people : sequence of str
    count, seed : int
    """
    _, unit = np.unique(np.asarray(people, dtype=str), return_inverse=True)
    by_person = np.stack([np.bincount(unit, weights=gain) for gain in gains])
    spread = np.sqrt(np.square(by_person).sum(axis=1))
    standard = by_person / np.where(spread > 0, spread, 1.0)[:, None]
    z = np.abs(standard.sum(axis=1)) / CROSS_VALIDATED
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (count, by_person.shape[1]))
    null = np.abs(signs @ standard.T)  # (count, n_models)
    single: Floats = (1 + (null >= z - _TIE).sum(axis=0)) / (1 + count)
    largest = null.max(axis=1)[:, None]
    corrected: Floats = (1 + (largest >= z - _TIE).sum(axis=0)) / (1 + count)
    return single, corrected


def _figures(labels: Truth, predicted: Truth, classes: int | None) -> Floats:
    """Figure of many models for many labellings: (n_models, n_labellings) array."""
    if classes is None:
        return correlations(labels, predicted)
    return balanced_accuracies(labels, predicted, classes)


def _strata(truth: Truth, people: Sequence[str], sites: Sequence[str]) -> list[list[Ints]]:
    """Participants whose labels may be exchanged: those of the same site or sites.

    Someone whose label changes between scans exchanges labels only with others of that kind who
    have as many scans.
    """
    place = np.asarray(sites, dtype=str)
    strata: dict[tuple[tuple[str, ...], int], list[Ints]] = {}
    # Sorted once: to look for everybody's scans in turn would grow with the square of the people.
    _, person, counts = np.unique(
        np.asarray(people, dtype=str), return_inverse=True, return_counts=True
    )
    for unit in np.split(np.argsort(person, kind="stable"), np.cumsum(counts)[:-1]):
        changes = len(set(truth[unit].tolist())) > 1
        key = (tuple(sorted(set(place[unit].tolist()))), len(unit) if changes else 0)
        strata.setdefault(key, []).append(unit)
    return list(strata.values())


def _draw(
    truth: Truth, strata: list[list[Ints]], count: int, rng: np.random.Generator
) -> Iterator[Truth]:
    """Permuted labels, (block, n_scans) arrays."""
    block = max(1, _BLOCK // len(truth))
    for start in range(0, count, block):
        size = min(block, count - start)
        labels = np.broadcast_to(truth, (size, len(truth))).copy()
        for units in strata:
            order = rng.permuted(np.tile(np.arange(len(units)), (size, 1)), axis=1)
            if len({len(unit) for unit in units}) == 1:
                scans = np.stack(units)  # (units, scans of each)
                labels[:, scans] = truth[scans][order]
                continue
            first = truth[[unit[0] for unit in units]]
            owner = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
            labels[:, np.concatenate(units)] = first[order[:, owner]]
        yield labels


def balanced_accuracies(labels: Ints, predicted: Ints, classes: int) -> Floats:
    """Balanced accuracy of many models for many labellings: (n_models, n_labellings) array.

    Thousands at once, which is why scikit-learn, which takes one at a time, is only the oracle of
    the tests.

    Parameters
    ----------
    labels : (n_labellings, n_scans) array of int
        Each with all classes.
    predicted : (n_models, n_scans) array of int
    classes : int
    """
    total: Floats = np.zeros((len(predicted), len(labels)))
    for k in range(classes):
        is_class = (labels == k).astype(np.float32)
        hits = (predicted == k).astype(np.float32) @ is_class.T
        total += hits / np.maximum(is_class.sum(axis=1), 1)
    return total / classes
