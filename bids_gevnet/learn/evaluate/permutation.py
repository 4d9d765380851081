r"""Permutation test of held-out predictions.

Null hypothesis: within each site, a participant's label has nothing to do with what was
predicted. Labels are exchanged among the participants of a site, all scans of a person together,
and the statistic is computed again with the predictions as they are:

.. math:: p = \frac{1 + \#\{b : T_b \ge T\}}{1 + B}

which is valid for any B (Phipson and Smyth 2010). Nothing is trained again: it tests the held-out
predictions of the models that were trained, not the whole procedure. Because labels stay within
their site, predictions that know the site and nothing else gain nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.intp]
    Floats = NDArray[np.float64]

_BLOCK = 2**22  # labels held at once
_TIE = 1e-12
IMPOSSIBLE = (
    "within every site all participants have the same label, or there is only one: no exchange "
    "within a site changes anything, and nothing can be told beyond the site"
)

MISSING = "a class is missing"


def permutation_test(
    truth: Ints,
    probabilities: Floats,
    people: Sequence[str],
    sites: Sequence[str],
    *,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """Test balanced accuracy and area under the ROC curve.

    Parameters
    ----------
    truth : (n_scans,) array of int
    probabilities : (n_scans, n_classes) array
    people, sites : sequences of str
        Of each scan.
    count : int
        B, permutations.
    seed : int

    Returns
    -------
    result : dict
        ``n``, ``possible``, ``reason`` and, for ``balanced_accuracy`` and ``roc_auc`` each,
        ``observed``, ``p``, ``null_mean`` and ``null_sd``.
    """
    strata = _strata(truth, people, sites)
    possible = any(len({tuple(truth[unit]) for unit in units}) > 1 for units in strata)
    names = ("balanced_accuracy", "roc_auc")
    classes = probabilities.shape[1]
    complete = len(np.unique(truth)) == classes
    result: dict[str, Any] = {
        "n": count,
        "possible": possible and complete,
        "reason": None if possible and complete else IMPOSSIBLE if complete else MISSING,
    }
    empty = {"observed": None, "p": None, "null_mean": None, "null_sd": None}
    if not complete:
        return result | {name: dict(empty) for name in names}
    observed = _statistics(truth[None], probabilities)
    if not possible:
        return result | {
            name: empty | {"observed": float(value[0])}
            for name, value in zip(names, observed, strict=True)
        }
    rng = np.random.default_rng(seed)
    blocks = [_statistics(block, probabilities) for block in _draw(truth, strata, count, rng)]
    for number, name in enumerate(names):
        null = np.concatenate([block[number] for block in blocks])
        value = float(observed[number][0])
        result[name] = {
            "observed": value,
            "p": float((1 + (null >= value - _TIE).sum()) / (1 + count)),
            "null_mean": float(null.mean()),
            "null_sd": float(null.std()),
        }
    return result


def _strata(truth: Ints, people: Sequence[str], sites: Sequence[str]) -> list[list[Ints]]:
    """Participants whose labels may be exchanged: those of the same site or sites.

    Someone whose label changes between scans exchanges labels only with others of that kind who
    have as many scans.
    """
    names, place = np.asarray(people, dtype=str), np.asarray(sites, dtype=str)
    strata: dict[tuple[tuple[str, ...], int], list[Ints]] = {}
    for name in np.unique(names):
        unit = np.flatnonzero(names == name)
        changes = len(set(truth[unit].tolist())) > 1
        key = (tuple(sorted(set(place[unit].tolist()))), len(unit) if changes else 0)
        strata.setdefault(key, []).append(unit)
    return list(strata.values())


def _draw(
    truth: Ints, strata: list[list[Ints]], count: int, rng: np.random.Generator
) -> Iterator[Ints]:
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
            for number, unit in enumerate(units):
                labels[:, unit] = first[order[:, number]][:, None]
        yield labels


def _statistics(labels: Ints, probabilities: Floats) -> tuple[Floats, Floats]:
    """Balanced accuracy and area under the ROC curve for many labellings.

    Parameters
    ----------
    labels : (n, n_scans) array of int
        Each with all classes.
    probabilities : (n_scans, n_classes) array

    Returns
    -------
    balanced_accuracy, roc_auc : (n,) arrays
        NaN-free; the area is the Mann-Whitney statistic of ranks, over classes the mean of one
        against the others. Thousands of labellings at once, which is why scikit-learn, which
        takes one at a time, is only the oracle of the tests.
    """
    from scipy.stats import rankdata

    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    recalls, areas = [], []
    for k in range(classes):
        is_class = labels == k  # (n, n_scans)
        size = is_class.sum(axis=1)
        recalls.append((is_class & (predicted == k)).sum(axis=1) / np.maximum(size, 1))
        ranks = rankdata(probabilities[:, k])
        others = labels.shape[1] - size
        area = (is_class @ ranks - size * (size + 1) / 2) / np.maximum(size * others, 1)
        areas.append(area)
    if classes == 2:
        areas = areas[1:]
    return np.mean(recalls, axis=0), np.mean(areas, axis=0)
