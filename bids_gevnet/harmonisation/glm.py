r"""RISH-GLM: one linear model per voxel and degree for all sites and covariates at once.

With y the logarithm of the smoothed RISH maps (`features`), X the design (`design`),

.. math:: B = (X^T X)^+ X^T Y, \qquad
          \delta_s = c_s B, \quad c_s = r - e_s, \qquad
          \mathrm{se}^2 = \sigma^2 \, c_s (X^T X)^+ c_s^T,

where r picks the reference: the indicator of one site, or the mean over all comparable sites
("mid-space"). The gain of degree l at site s is :math:`g = \exp(\delta_s / 2)`, because RISH is an
energy and the gain acts on amplitudes.

Shrinkage, on two levels. A map is its mean over the brain m plus a deviation d(v). Both are
drawn towards zero, hence the gain towards 1, by how uncertain they are:

.. math:: m' = m \, \max(0, 1 - \mathrm{se}_m^2 / m^2), \qquad
          d'(v) = d(v) \frac{\tau^2}{\tau^2 + \mathrm{se}^2(v)},

with se_m from the same model of each scan's mean, and tau^2 the variance of d over the brain less
what the standard errors explain. Then gains are clipped.

Scans of one person at one site are not independent: each has a weight of one over their number,
and degrees of freedom count people, not scans.

Memory does not grow with the number of scans: X^T Y and Y^T Y are summed scan by scan.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.design import build_design, person_weights
from bids_gevnet.harmonisation.features import FWHM_MM
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.harmonisation.reference import Reference
from bids_gevnet.harmonisation.rish import DEGREES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.design import Design, Value

    Floats = NDArray[np.float64]

MIN_PARTICIPANTS = {0: 3, 2: 5, 4: 8, 6: 12}
"""Participants a site needs for each degree: the weaker the signal, the more."""

CLIP = 2.0
"""Gains lie between 1 / CLIP and CLIP; scanners differ by less, failures by more."""

_PRESENCE = 0.8  # share of scans a voxel must be in


def fit_rish_glm(
    maps: Sequence[NDArray[np.float32]],
    *,
    participants: Sequence[str],
    sites: Sequence[str],
    groups: Sequence[str | None] | None = None,
    covariates: Mapping[str, Sequence[Value]] | None = None,
    reference: str | None = None,
    nside: int = 4,
    degrees: tuple[int, ...] = DEGREES,
    fwhm_mm: float = FWHM_MM,
    b_values: tuple[float, ...] = (),
) -> RishGains:
    """Fit the gains of all sites.

    Parameters
    ----------
    maps : sequence of (X, Y, Z, n_shells * n_degrees) arrays
        From `log_rish_maps`; read one at a time and twice, so it may load them from disk.
    participants, sites : sequences of str
        Of each scan.
    groups, covariates
        See `build_design`.
    reference : str, optional
        Site whose signal is left as it is; all comparable sites' mean if None.
    nside, degrees, fwhm_mm
        How the maps were made.
    b_values : tuple of float
        Of the shells, each of which has gains of its own; may be empty for one shell.

    Returns
    -------
    gains : RishGains
        With warnings about small sites and about what cannot be separated.

    Examples
    --------
    >>> maps = [np.full((2, 2, 2, 4), level + 0.01 * (i // 2), np.float32)
    ...         for i, level in enumerate([0.0, 1.0] * 12)]
    >>> gains = fit_rish_glm(maps, participants=[str(i) for i in range(24)], sites=["A", "B"] * 12)
    >>> gains.sites, gains.corrects("A")
    (('A', 'B'), True)
    """
    if not len(maps):
        raise InputError(
            expected="at least one scan to fit the harmonisation to",
            found="none",
            remedy="check that the training fold has participants",
        )
    if reference is not None and reference not in sites:
        raise InputError(
            expected=f"one of the sites {', '.join(sorted(set(sites)))} as reference",
            found=repr(reference),
            remedy="name a site of the training data, or none for the mean over sites",
        )
    design = build_design(sites, groups, covariates, participants=participants)
    allowed, warnings = _allowed_degrees(design, participants, sites, degrees, reference)
    inside, mean = _presence(maps)
    weights = person_weights(participants, sites)
    matrix = np.sqrt(weights)[:, None] * design.matrix
    products, squares, scan_means = _accumulate(maps, matrix, np.sqrt(weights), inside, mean)
    fit = _Model(matrix, people=round(weights.sum()))
    if fit.dof < 1:
        # No residual, no standard error: nothing says how far to trust a difference.
        allowed = dict.fromkeys(allowed, ())
        warnings.append("Too few scans to harmonise sites.")
    shells = max(1, len(b_values))
    log_gains = np.zeros((len(design.sites), *inside.shape, shells * len(degrees)))
    for number, site in enumerate(design.sites):
        if not allowed[site]:
            continue
        contrast = _contrast(design, site, reference)
        mean_squares = np.square(scan_means).sum(axis=0)
        level, level_se = fit.contrast(matrix.T @ scan_means, mean_squares, contrast)
        delta, se = fit.contrast(products, squares, contrast)
        shrunk_level, deviation = shrink(delta, se, level, level_se)
        kept = np.tile(np.isin(degrees, allowed[site]), shells)
        log_gains[number] = np.where(kept, shrunk_level, 0.0)
        log_gains[number][inside] += np.where(kept, deviation, 0.0)
    gains = gains_from_logs(log_gains)
    totals = (products, squares, scan_means)
    return RishGains(
        gains=gains,
        sites=design.sites,
        degrees=tuple(degrees),
        nside=nside,
        reference=reference,
        fwhm_mm=fwhm_mm,
        association=design.association,
        columns=design.columns,
        warnings=(*design.warnings, *warnings),
        b_values=tuple(b_values),
        training=_reference(design, matrix, fit, totals, inside, mean, gains),
    )


def _reference(
    design: Design,
    matrix: Floats,
    fit: _Model,
    totals: tuple[Floats, Floats, Floats],
    inside: NDArray[np.bool_],
    mean: Floats,
    gains: NDArray[np.float32],
) -> Reference | None:
    """Keep what harmonised training scans look like; nothing where they are too few."""
    if fit.dof < 1:
        return None
    products, squares, scan_means = totals
    people = np.square(matrix[:, : len(design.sites)]).sum(axis=0)  # of each site
    shifts = 2 * np.log(gains[:, inside].astype(np.float64))
    harmonised = products[: len(design.sites)] + people[:, None, None] * shifts
    count = len(design.covariates)
    columns = slice(matrix.shape[1] - count, matrix.shape[1])
    return Reference(
        inside=inside,
        mean=mean + harmonised.sum(axis=0) / people.sum(),
        effects=np.tensordot(fit.inverse[columns], products, axes=1),
        variance=fit.variance(products, squares),
        level_variance=fit.variance(matrix.T @ scan_means, np.square(scan_means).sum(axis=0)),
        leverage=np.diagonal(fit.inverse)[columns],
        people=round(people.sum()),
        covariates=design.covariates,
    )


def gains_from_logs(log_gains: Floats) -> NDArray[np.float32]:
    """Turn differences of log RISH, an energy, into clipped gains of amplitudes."""
    gains = np.exp(np.clip(log_gains / 2, -np.log(CLIP), np.log(CLIP)))
    return np.asarray(gains, np.float32)


def usable_degrees(people: int, degrees: tuple[int, ...]) -> tuple[int, ...]:
    """Degrees that so many people of a site can be corrected in."""
    return tuple(d for d in degrees if people >= MIN_PARTICIPANTS.get(d, 12))


def shrink(delta: Floats, se: Floats, level: Floats, level_se: Floats) -> tuple[Floats, Floats]:
    """Draw a map towards its mean and the mean towards zero.

    Parameters
    ----------
    delta, se : (n_voxels, n_degrees) array
        Estimate and standard error.
    level, level_se : (n_degrees,) array
        The same of the mean over voxels.

    Returns
    -------
    level : (n_degrees,) array
    deviation : (n_voxels, n_degrees) array
    """
    keep = np.clip(1 - np.square(level_se) / np.maximum(np.square(level), 1e-12), 0, 1)
    deviation = delta - level
    excess = np.square(deviation).mean(axis=0) - np.square(se).mean(axis=0)
    variance = np.maximum(excess + np.square(level_se), 0)
    return level * keep, deviation * variance / (variance + np.square(se) + 1e-12)


class _Model:
    """Contrasts of one design, its rows weighted, of some people."""

    def __init__(self, matrix: Floats, *, people: int) -> None:
        self.inverse = np.linalg.pinv(matrix.T @ matrix)
        self.dof = people - int(np.linalg.matrix_rank(matrix))

    def contrast(
        self,
        products: Floats,
        squares: Floats,
        contrast: Floats,
    ) -> tuple[Floats, Floats]:
        """Estimate and standard error from X^T Y and the sums of the squares of Y."""
        beta = np.tensordot(self.inverse, products, axes=1)  # (columns, ...)
        estimate = np.asarray(np.tensordot(contrast, beta, axes=1), dtype=np.float64)
        variance = self.variance(products, squares)
        return estimate, np.sqrt(variance * float(contrast @ self.inverse @ contrast))

    def variance(self, products: Floats, squares: Floats) -> Floats:
        """Residual variance from the same sums."""
        beta = np.tensordot(self.inverse, products, axes=1)
        residual = squares - np.einsum("p...,p...->...", beta, products)
        return np.asarray(np.maximum(residual, 0) / max(self.dof, 1))


def _allowed_degrees(
    design: Design,
    participants: Sequence[str],
    sites: Sequence[str],
    degrees: tuple[int, ...],
    reference: str | None,
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Degrees each site may be corrected in, with a warning where these are not all."""
    allowed: dict[str, tuple[int, ...]] = {}
    warnings = []
    for site in design.sites:
        people = len({p for p, s in zip(participants, sites, strict=True) if s == site})
        usable = usable_degrees(people, degrees)
        component = next(c for c in design.components if site in c)
        allowed[site] = usable if len(component) > 1 else ()
        if reference is not None and (site == reference or reference not in component):
            allowed[site] = ()
        if len(design.sites) > 1 and usable != degrees and len(component) > 1:
            listed = f"degree{'s' * (len(usable) != 1)} {', '.join(map(str, usable))}"
            what = f"only {listed} of its signal" if usable else "none of its signal"
            count = f"{people} participant{'s' * (people != 1)}"
            warnings.append(f"Site {site} has {count}: {what} could be harmonised.")
    return allowed, warnings


def _contrast(design: Design, site: str, reference: str | None) -> Floats:
    """Weights c_s = r - e_s of the columns of the design."""
    contrast = np.zeros(design.matrix.shape[1])
    component = next(c for c in design.components if site in c)
    for other in component if reference is None else (reference,):
        contrast[design.sites.index(other)] += 1 / (len(component) if reference is None else 1)
    contrast[design.sites.index(site)] -= 1
    return contrast


def _presence(maps: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.bool_], Floats]:
    """Voxels that nearly all scans have, and their mean over the scans that have them."""
    scans = iter(maps)
    first = next(scans)
    count = np.zeros(first.shape[:-1], np.int64)
    total = np.zeros(first.shape)
    for scan in chain([first], scans):
        present = np.isfinite(scan[..., 0])
        count += present
        total += np.where(present[..., None], scan, 0.0)
    inside: NDArray[np.bool_] = count >= max(1.0, _PRESENCE * len(maps))
    if not inside.any():
        raise InputError(
            expected="brain masks that overlap",
            found=f"no voxel that is in {_PRESENCE:.0%} of the {len(maps)} scans",
            remedy="check the registration to the template",
        )
    return inside, total[inside] / count[inside, None]


def _accumulate(
    maps: Sequence[NDArray[np.float32]],
    matrix: Floats,
    root_weights: Floats,
    inside: NDArray[np.bool_],
    mean: Floats,
) -> tuple[Floats, Floats, Floats]:
    """X^T Y (columns, voxels, degrees), sums of squares (voxels, degrees), means of scans.

    The rows of X are weighted already, those of Y are here.
    """
    products = np.zeros((matrix.shape[1], *mean.shape))
    squares = np.zeros(mean.shape)
    scan_means = np.zeros((len(matrix), mean.shape[1]))
    for number, (row, root, scan) in enumerate(zip(matrix, root_weights, maps, strict=True)):
        # Centred, so that a voxel outside a scan's mask counts as that voxel's mean.
        centred = root * np.nan_to_num(scan[inside] - mean)
        for column in np.flatnonzero(row):
            products[column] += row[column] * centred
        squares += np.square(centred)
        scan_means[number] = centred.mean(axis=0)
    return products, squares, scan_means
