r"""The design matrix of RISH-GLM, and which sites it can compare.

For scan i from site s(i), with diagnosis d(i) and covariates a_k(i),

.. math:: y_i = \beta_{s(i)} + \gamma_{d(i)} + \sum_k \alpha_k a_k(i) + e_i,

in the code ``matrix`` (one row a scan): one indicator column for each site and no constant, then
centred indicators of all diagnoses but the first, then centred covariates. So beta_s is the mean
of site s for a person with the cohort's mean diagnosis and covariates.

The difference beta_s - beta_t is *estimable* if the contrast c = e_s - e_t lies in the row space
of the matrix X, that is c = c X^+ X. Where every participant of a site has a diagnosis that no
other site has, it is not: site and diagnosis coincide there, and no statistics separate them.
`Design.components` are the sets of sites whose differences are estimable.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.harmonisation.association import cramers_v, cross_table
from bids_gevnet.harmonisation.reference import Covariate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

Value = float | str | None
MIN_RESIDUAL_DOF = 3
"""Residual degrees of freedom below which no covariate is added: the variance needs some."""

_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Design:
    """Design matrix, and what its columns mean.

    Parameters
    ----------
    matrix : (n_scans, n_columns) array
        The first ``len(sites)`` columns are the sites' indicators.
    sites : tuple of str
        Sorted names.
    components : tuple of tuples of str
        Sites that can be compared with each other, largest set first.
    columns : tuple of str
        What the other columns are.
    association : float
        Cramér's V of site and diagnosis over people; 0 if there is only one of either or too few.
    warnings : tuple of str
        Sentences for the reader.
    covariates : tuple of Covariate
        How the last columns were made, in their order.
    """

    matrix: NDArray[np.float64]
    sites: tuple[str, ...]
    components: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    association: float
    warnings: tuple[str, ...] = field(default=())
    covariates: tuple[Covariate, ...] = ()


def build_design(
    sites: Sequence[str],
    groups: Sequence[str | None] | None = None,
    covariates: Mapping[str, Sequence[Value]] | None = None,
    *,
    participants: Sequence[str] | None = None,
) -> Design:
    """Make the design matrix and find out which sites can be compared.

    Parameters
    ----------
    sites : sequence of str
        Site of each scan.
    groups : sequence of str or None
        Diagnosis of each scan, to be kept apart from the site.
    covariates : mapping of name to sequence
        Numbers, or words for categories; None where missing. One that leaves sites that could be
        compared without it no longer comparable is left out, with a warning.
    participants : sequence of str, optional
        Who each scan is of; every scan is another person's if not given.
    """
    people = participants or [str(number) for number in range(len(sites))]
    count = round(person_weights(people, sites).sum())
    names = tuple(sorted(set(sites)))
    matrix = np.array([[float(site == name) for name in names] for site in sites])
    alone = _components(matrix, names)
    columns: list[str] = []
    warnings: list[str] = []
    association = 0.0
    encoded: list[Covariate] = []
    if groups is not None and len(set(groups)) > 1:
        block, made, _ = _encode("diagnosis", groups)
        matrix = np.hstack([matrix, block])
        columns += map(_title, made)
        pairs = sorted(set(zip(people, sites, map(str, groups), strict=True)))
        association = cramers_v(cross_table([p[1] for p in pairs], [p[2] for p in pairs])) or 0.0
        warnings += _confounding(names, sites, groups, _components(matrix, names))
    components = _components(matrix, names) if columns else alone
    for name, values in (covariates or {}).items():
        block, made, missing = _encode(name, values)
        wider = np.hstack([matrix, block])
        if not made:
            warnings.append(f"{name} is the same for everybody or unknown: not in the model.")
        elif count - np.linalg.matrix_rank(wider) < MIN_RESIDUAL_DOF:
            warnings.append(f"Too few people to account for {name} in the harmonisation.")
        elif _components(wider, names) != components:
            warnings.append(
                f"{name} cannot be separated from the site: harmonisation does not account for it."
            )
        else:
            matrix = wider
            columns += map(_title, made)
            encoded += made
            if missing:
                warnings.append(
                    f"{name} is missing for {missing} scans: the mean is used instead."
                )
    return Design(
        matrix,
        names,
        components,
        tuple(columns),
        association,
        tuple(warnings),
        tuple(encoded),
    )


def person_weights(participants: Sequence[str], sites: Sequence[str]) -> NDArray[np.float64]:
    """Weights that let the scans of a person at a site count as one: (n_scans,) array.

    Examples
    --------
    >>> person_weights(["x", "x", "y"], ["A", "A", "A"]).tolist()
    [0.5, 0.5, 1.0]
    """
    units = list(zip(participants, sites, strict=True))
    counted = Counter(units)
    return np.array([1 / counted[unit] for unit in units])


def _title(covariate: Covariate) -> str:
    return covariate.name if covariate.level is None else f"{covariate.name}: {covariate.level}"


def _encode(
    name: str, values: Sequence[Value]
) -> tuple[NDArray[np.float64], list[Covariate], int]:
    """Centred columns of one covariate, how they were made, and how many values are missing."""
    known = [value for value in values if value is not None]
    missing = len(values) - len(known)
    if len(set(known)) < 2:
        return np.empty((len(values), 0)), [], missing
    if all(isinstance(value, (int, float)) for value in known):
        column = np.array([np.nan if v is None else float(v) for v in values])
        centre, scale = float(np.nanmean(column)), float(np.nanstd(column))
        column = (column - centre) / scale
        return np.nan_to_num(column)[:, None], [Covariate(name, None, centre, scale)], missing
    levels = sorted({str(value) for value in known})[1:]
    block = np.array([[float(str(v) == level) for level in levels] for v in values])
    present = np.array([value is not None for value in values])
    centres = block[present].mean(axis=0)
    block -= centres
    block[~present] = 0.0
    made = [Covariate(name, level, float(c)) for level, c in zip(levels, centres, strict=True)]
    return block, made, missing


def _components(
    matrix: NDArray[np.float64], names: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    """Find the sets of sites whose differences are estimable, an equivalence relation."""
    projector = np.linalg.pinv(matrix) @ matrix
    components: list[list[int]] = []
    for site in range(len(names)):
        for component in components:
            contrast = np.zeros(matrix.shape[1])
            contrast[site], contrast[component[0]] = 1.0, -1.0
            if np.abs(contrast @ projector - contrast).max() < _TOLERANCE * len(matrix):
                component.append(site)
                break
        else:
            components.append([site])
    count = matrix[:, : len(names)].sum(axis=0)
    components.sort(key=lambda c: (-len(c), -count[c].sum(), c))
    return tuple(tuple(names[i] for i in component) for component in components)


def _confounding(
    names: tuple[str, ...],
    sites: Sequence[str],
    groups: Sequence[str | None],
    components: tuple[tuple[str, ...], ...],
) -> list[str]:
    """Warn where site and diagnosis cannot be separated."""
    if len(names) < 2:
        return []
    if len(components) > 1:
        apart = [site for component in components[1:] for site in component]
        if len(components[0]) == 1:
            apart = list(names)
        held = {
            site: sorted({str(g) for s, g in zip(sites, groups, strict=True) if s == site})
            for site in apart
        }
        listed = "; ".join(f"{site}: {', '.join(held[site])}" for site in apart)
        sentence = (
            "Site and diagnosis cannot be separated: no other site shares the diagnoses of "
            f"{listed}. These sites are not harmonised, because that would remove or invent "
            "differences between diagnoses, and a classifier may learn the scanner instead."
        )
        return [sentence]
    return []
