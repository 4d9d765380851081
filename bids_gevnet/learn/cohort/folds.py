"""Splits into training and test participants.

Stratified by class and site together where every such group has enough people, by class alone
otherwise; a number stands for the class by the quantile it is in. All sessions of a person stay
together. The same seed gives the same folds.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.learn.cohort.tasks import slug

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_MOST_QUANTILES = 5


def number_strata(
    participants: Sequence[str], numbers: Sequence[float], *, folds: int
) -> list[str]:
    """Give every scan the quantile its person is in, each of at least as many people as folds.

    Parameters
    ----------
    participants : sequence of str
    numbers : sequence of float
        Of each scan; a person counts with the mean of theirs.
    folds : int

    Returns
    -------
    strata : list of str

    Examples
    --------
    >>> number_strata("abcdef", [3, 9, 1, 8, 2, 7], folds=3)
    ['1', '2', '1', '2', '1', '2']
    """
    by_person: dict[str, list[float]] = defaultdict(list)
    for person, number in zip(participants, numbers, strict=True):
        by_person[person].append(number)
    order = sorted(by_person, key=lambda person: (float(np.mean(by_person[person])), person))
    count = min(_MOST_QUANTILES, max(1, len(order) // folds))
    stratum = {person: str(1 + rank * count // len(order)) for rank, person in enumerate(order)}
    return [stratum[person] for person in participants]


def make_folds(
    participants: Sequence[str],
    labels: Sequence[str],
    sites: Sequence[str],
    *,
    folds: int,
    seed: int,
) -> NDArray[np.intp]:
    """Give every scan the fold it is tested in.

    Parameters
    ----------
    participants, labels, sites : sequences of str
        Of each scan.
    folds : int
    seed : int

    Returns
    -------
    fold : (n_scans,) array of int
        From 0 to folds - 1.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    people = np.asarray(participants, dtype=object)
    strata = [f"{slug(label)} {slug(site)}" for label, site in zip(labels, sites, strict=True)]
    counted = Counter(dict(zip(participants, strata, strict=True)).values())
    # A class at a site with fewer people than folds cannot be in every fold: there the class
    # alone counts, but for the whole class, or its folds would differ in size.
    lean = {stratum.split(" ")[0] for stratum, n in counted.items() if n < folds}
    strata = [s.split(" ")[0] if s.split(" ")[0] in lean else s for s in strata]
    splitter = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=seed)
    fold = np.full(len(people), -1, dtype=np.intp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cohort was checked for small classes
        for number, (_, test) in enumerate(splitter.split(strata, strata, people)):
            fold[test] = number
    return fold
