r"""Gains for a site that nobody trained on, from its scans alone, without their diagnoses.

A fitted harmonisation keeps what its training scans look like once they are harmonised
(`Reference`): the mean m of their log RISH maps, the effects alpha of covariates, and the variance
between people that neither explains. For the scans y_i of a new site with covariates a_i,

.. math:: \delta = m - \frac1n \sum_i (y_i - a_i \alpha), \qquad
          \mathrm{se}^2 = \frac{s^2}{n} + \sigma^2 \Bigl(\frac1N + \sum_k \bar a_k^2 h_k\Bigr),

with n people of the new site and s^2 their variance (drawn towards that of the training people,
sigma^2, by `PRIOR_PEOPLE` of them), N people trained on, and h_k the diagonal of
:math:`(X^T X)^+` for covariate k. Gains are :math:`\exp(\delta / 2)`, shrunk towards 1 by their
standard error exactly as those of training sites (`bids_gevnet.harmonisation.glm`), and as many
degrees as n people can bear.

Nobody's diagnosis is used, so a difference in the mix of diagnoses between the new site and the
training data is taken for one between scanners and is removed, too, and with it a part of what
tells the diagnoses apart. No statistics can separate the two without labels. Adapt where the new
site sees the same kind of people, and not where it is a clinic for one of the diagnoses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.design import person_weights
from bids_gevnet.harmonisation.glm import MIN_PARTICIPANTS, gains_from_logs, shrink, usable_degrees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.design import Value
    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.harmonisation.reference import Reference

    Floats = NDArray[np.float64]

FEWEST_PEOPLE = min(MIN_PARTICIPANTS.values())
"""People of a new site below which it is not adapted to: one unusual head would decide."""
PRIOR_PEOPLE = 6
"""People whose worth of variance comes from the training data: few scans know little of it."""
CASE_MIX = (
    "no diagnosis was used, so where its people are not the mix of diagnoses that the model was "
    "trained on, a part of the difference between diagnoses was removed with that of the scanner"
)


@dataclass(frozen=True)
class Adaptation:
    """What was done for one site.

    Attributes
    ----------
    site : str
    people, scans : int
        What the gains rest on.
    degrees : tuple of int
        Which degrees of the signal were adapted.
    mean_gains : tuple of float
        Mean gain over the brain of each degree, of the first shell.
    unknown : tuple of str
        Covariates of the model that nobody of the site has; their effect could not be allowed for.
    """

    site: str
    people: int
    scans: int
    degrees: tuple[int, ...]
    mean_gains: tuple[float, ...]
    unknown: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """For people."""
        degrees = f"degree{'s' * (len(self.degrees) != 1)} {', '.join(map(str, self.degrees))}"
        missing = f" {', '.join(self.unknown)} unknown." if self.unknown else ""
        return (
            f"Site {self.site}, which the model was not trained on, was harmonised from the "
            f"unlabelled scans of {self.people} people ({degrees}): {CASE_MIX}.{missing}"
        )


def adapt(
    gains: RishGains,
    maps: Sequence[NDArray[np.float32]],
    *,
    site: str,
    participants: Sequence[str],
    covariates: Mapping[str, Sequence[Value]] | None = None,
) -> tuple[RishGains, Adaptation]:
    """Add gains for a site that is not among those fitted.

    Parameters
    ----------
    gains : RishGains
        With the reference that its fit left.
    maps : sequence of (X, Y, Z, n_shells * n_degrees) arrays
        From `bids_gevnet.harmonisation.features.log_rish_maps`, of all scans of the site.
    site : str
    participants : sequence of str
        Who each scan is of.
    covariates : mapping of name to sequence, optional
        As for `bids_gevnet.harmonisation.fit_rish_glm`.

    Returns
    -------
    adapted : RishGains
        The same gains, and those of the site.
    adaptation : Adaptation
        What they rest on.

    Examples
    --------
    >>> from bids_gevnet.harmonisation import fit_rish_glm
    >>> maps = [np.full((2, 2, 2, 4), 0.01 * i, np.float32) for i in range(24)]
    >>> people = [str(i) for i in range(24)]
    >>> gains = fit_rish_glm(maps, participants=people, sites=["A", "B"] * 12)
    >>> new = [each + 0.5 for each in maps[:12]]
    >>> adapted, facts = adapt(gains, new, site="C", participants=people[:12])
    >>> adapted.corrects("C"), facts.people, facts.degrees
    (True, 12, (0, 2, 4, 6))
    """
    weights = person_weights(participants, [site] * len(maps))
    people = round(weights.sum())
    reference = gains.training
    if reference is None:
        raise InputError(
            expected="a model that keeps what its training scans look like, for --adapt",
            found="one of an earlier version, whose harmonisation keeps the gains only",
            remedy="train the model again, or leave --adapt out",
        )
    degrees = usable_degrees(people, gains.degrees)
    if not degrees:
        raise InputError(
            expected=f"at least {FEWEST_PEOPLE} people of site {site} to adapt to it",
            found=f"{people}",
            remedy="process more scans of the site first, or leave --adapt out",
        )
    if maps[0].shape != (*gains.shape, gains.gains.shape[-1]):
        raise InputError(
            expected=f"scans on the grid of the harmonisation, {gains.shape} voxels",
            found=f"{maps[0].shape[:3]} voxels",
            remedy="process the scans with the output resolution the model was trained with",
        )
    encoded = reference.encode(covariates or {}, len(maps))  # (scans, columns)
    inside = reference.inside
    total, squares, means = _sum(maps, encoded, weights, reference)
    delta, level = -total / people, -np.average(means, axis=0, weights=weights)
    spread = np.maximum(squares - np.square(total) / people, 0)
    level_spread = np.average(np.square(means + level), axis=0, weights=weights) * people
    centre = np.average(encoded, axis=0, weights=weights)
    distance = 1 / reference.people + float(np.square(centre) @ reference.leverage)
    variance, level_variance = reference.variance, reference.level_variance
    se = np.sqrt(_pooled(spread, variance, people) / people + variance * distance)
    level_se = np.sqrt(
        _pooled(level_spread, level_variance, people) / people + level_variance * distance
    )
    shrunk, deviation = shrink(delta, se, level, level_se)
    kept = np.tile(np.isin(gains.degrees, degrees), gains.shells)
    logs = np.zeros(maps[0].shape)
    logs[:] = np.where(kept, shrunk, 0.0)
    logs[inside] += np.where(kept, deviation, 0.0)
    own = gains_from_logs(logs)
    adapted = replace(
        gains, gains=np.concatenate([gains.gains, own[None]]), sites=(*gains.sites, site)
    )
    mean = own[inside].mean(axis=0)[: len(gains.degrees)]
    facts = Adaptation(
        site=site,
        people=people,
        scans=len(maps),
        degrees=degrees,
        mean_gains=tuple(float(value) for value in mean),
        unknown=reference.unknown(covariates or {}),
    )
    return adapted, facts


def _pooled(squares: Floats, variance: Floats, people: int) -> Floats:
    """Variance between people of a site, drawn towards that of the training people."""
    return np.asarray((squares + PRIOR_PEOPLE * variance) / (people - 1 + PRIOR_PEOPLE))


def _sum(
    maps: Sequence[NDArray[np.float32]], encoded: Floats, weights: Floats, reference: Reference
) -> tuple[Floats, Floats, Floats]:
    """Add up deviations and squares, (voxels, degrees), and average each scan."""
    total, squares = np.zeros((2, *reference.mean.shape))
    means = np.zeros((len(maps), reference.mean.shape[1]))
    for number, (scan, row, weight) in enumerate(zip(maps, encoded, weights, strict=True)):
        # A voxel outside of a scan's mask counts as the reference.
        away = np.nan_to_num(scan[reference.inside] - reference.mean)
        away -= np.tensordot(row, reference.effects, axes=1)
        total += weight * away
        squares += weight * np.square(away)
        means[number] = away.mean(axis=0)
    return total, squares, means
