r"""ComBat: location and scale of every site, shrunk by empirical Bayes.

After Johnson, Li and Rabinovic (2007) and, for images, Fortin et al. (2017).

For the value y of a feature in a person of site i, with X the diagnosis and covariates,

.. math:: y = \alpha + X \beta + \sigma (\gamma_i + \delta_i \varepsilon),

with alpha the mean over sites, sigma^2 the residual variance of the model with a mean for every
site, and gamma_i, delta_i^2 with a normal and an inverse gamma prior over the features of a site.
With :math:`\hat\gamma, \hat\delta^2` the mean and variance of n standardised residuals,

.. math:: \gamma^* = \frac{n \tau^2 \hat\gamma + \delta^{*2} \bar\gamma}{n \tau^2 + \delta^{*2}},
          \qquad
          \delta^{*2} = \frac{\theta + \frac12 \sum (Z - \gamma^*)^2}{n / 2 + \lambda - 1},

solved in turn (``shift`` and ``spread`` in the code).

The diagnosis is in the model that is fitted, so that no difference between diagnoses passes for
one between sites; it is not needed to harmonise a person, and nobody's is used for it:

.. math:: y' = \alpha + \sigma \, \frac{(y - \alpha) / \sigma - \gamma^*}{\delta^*}.

So people who are tested are treated exactly as those the model was fitted to. Sites that nothing
but the diagnosis tells apart (`bids_gevnet.harmonisation.design`), sites with few people and sites
that were not fitted stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.harmonisation.design import build_design

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.design import Value

    Floats = NDArray[np.float64]

FEWEST_PEOPLE = 3
"""People a site needs: fewer have no variance worth the name."""

_BLOCK = 2**16  # features at once
_ROUNDS = 200
_CONVERGED = 1e-6


@dataclass(frozen=True)
class Combat:
    """A fitted harmonisation.

    Parameters
    ----------
    sites : tuple of str
        Those that are corrected.
    mean : (n_sites, n_features) array
        alpha, of the sites that each is comparable with.
    scale : (n_features,) array
        sigma.
    shift, spread : (n_sites, n_features) array
        gamma* and delta*.
    warnings : tuple of str
    """

    sites: tuple[str, ...]
    mean: Floats
    scale: Floats
    shift: Floats
    spread: Floats
    warnings: tuple[str, ...] = field(default=())

    def apply(self, values: NDArray[np.floating[Any]], site: str) -> NDArray[np.floating[Any]]:
        """Harmonise people of one site, (..., n_features); of another site, as they are."""
        if site not in self.sites:
            return values
        row = self.sites.index(site)
        mean, shift = self.mean[row], self.scale * self.shift[row]
        harmonised: NDArray[np.floating[Any]] = mean + (values - mean - shift) / self.spread[row]
        return harmonised


def fit_combat(
    values: NDArray[np.floating[Any]],
    sites: Sequence[str],
    *,
    groups: Sequence[str | None] | None = None,
    covariates: Mapping[str, Sequence[Value]] | None = None,
) -> Combat:
    """Fit location and scale of every site.

    Parameters
    ----------
    values : (n_people, n_features) array
        Finite; one row per person.
    sites : sequence of str
    groups, covariates
        Whose effects are kept apart from the site's; see `build_design`.

    Returns
    -------
    combat : Combat

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> values = rng.normal(size=(40, 50))
    >>> sites = ["A", "B"] * 20
    >>> values[1::2] += 3
    >>> combat = fit_combat(values, sites)
    >>> bool(abs(combat.apply(values[1::2], "B").mean() - values.mean()) < 0.1)
    True
    """
    design = build_design(sites, groups, covariates)
    place = np.asarray(sites)
    comparable = {site: part for part in design.components for site in part if len(part) > 1}
    chosen = tuple(
        site
        for site in design.sites
        if site in comparable and (place == site).sum() >= FEWEST_PEOPLE
    )
    warnings = list(design.warnings)
    if small := [site for site in comparable if site not in chosen]:
        warnings.append(f"ComBat leaves {', '.join(sorted(small))} as they are: too few people.")
    mean = np.stack(
        [values[np.isin(place, comparable[site])].mean(axis=0, dtype=float) for site in chosen]
    ) if chosen else np.empty((0, values.shape[1]))  # fmt: skip
    scale, hat, variance = _standardise(
        values, design.matrix, place, chosen, comparable, len(design.sites), mean
    )
    pairs = [
        _shrink(hat[i], variance[i], int((place == site).sum())) for i, site in enumerate(chosen)
    ]
    empty = np.empty((0, values.shape[1]))
    return Combat(
        sites=chosen,
        mean=mean,
        scale=scale,
        shift=np.stack([shift for shift, _ in pairs]) if pairs else empty,
        spread=np.stack([spread for _, spread in pairs]) if pairs else empty,
        warnings=tuple(warnings),
    )


def _standardise(
    values: NDArray[np.floating[Any]],
    matrix: Floats,
    place: NDArray[Any],
    chosen: tuple[str, ...],
    comparable: Mapping[str, tuple[str, ...]],
    n_sites: int,
    mean: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Residual scale (features,), mean and variance of each site's residuals (sites, features)."""
    features = values.shape[1]
    inverse = np.linalg.pinv(matrix)
    scale = np.empty(features)
    hat, variance = np.empty((2, len(chosen), features))
    for start in range(0, features, _BLOCK):
        part = slice(start, start + _BLOCK)
        data = np.asarray(values[:, part], dtype=np.float64)
        beta = inverse @ data
        scale[part] = np.sqrt(np.square(data - matrix @ beta).mean(axis=0))
        scale[part] = np.where(scale[part] > 0, scale[part], 1.0)
        kept = matrix[:, n_sites:] @ beta[n_sites:]  # diagnosis and covariates
        for row, site in enumerate(chosen):
            of_site = place == site
            centre = kept[np.isin(place, comparable[site])].mean(axis=0)
            residual = data[of_site] - mean[row, part] - (kept[of_site] - centre)
            standardised = residual / scale[part]
            hat[row, part] = standardised.mean(axis=0)
            variance[row, part] = standardised.var(axis=0, ddof=1)
    return scale, hat, variance


def _shrink(hat: Floats, variance: Floats, people: int) -> tuple[Floats, Floats]:
    """Posterior shift and spread of one site, (features,) arrays, with priors over features."""
    centre, tau2 = hat.mean(), hat.var(ddof=1) if len(hat) > 1 else 0.0
    level, width = variance.mean(), variance.var(ddof=1) if len(variance) > 1 else 0.0
    if tau2 <= 0 or width <= 0:  # one feature, or all alike: there is no prior to shrink to
        return hat, np.sqrt(np.where(variance > 0, variance, 1.0))
    lam = (level**2 + 2 * width) / width
    theta = (level**3 + level * width) / width
    shift, square = hat, variance
    for _ in range(_ROUNDS):
        new_shift = (people * tau2 * hat + square * centre) / (people * tau2 + square)
        total = (people - 1) * variance + people * np.square(hat - new_shift)
        new_square = (theta + total / 2) / (people / 2 + lam - 1)
        change = max(np.abs(new_shift - shift).max(), np.abs(new_square - square).max())
        shift, square = new_shift, new_square
        if change < _CONVERGED:
            break
    return shift, np.sqrt(square)
