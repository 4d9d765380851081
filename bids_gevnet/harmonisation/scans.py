"""Harmonise scans of several sites: fit gains to all of them, apply them to each.

`fit` makes the maps (`features`) and the model (`glm`); `apply` uses the gains (`gains`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.features import FWHM_MM, fit_limits, log_rish_maps
from bids_gevnet.harmonisation.glm import fit_rish_glm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.design import Value
    from bids_gevnet.harmonisation.gains import RishGains


def fit(
    scans: Sequence[NDArray[np.floating[Any]]],
    masks: Sequence[NDArray[np.bool_]],
    sites: Sequence[str],
    *,
    voxel_mm: float,
    participants: Sequence[str] | None = None,
    groups: Sequence[str | None] | None = None,
    covariates: Mapping[str, Sequence[Value]] | None = None,
    reference: str | None = None,
    fwhm_mm: float = FWHM_MM,
    b_values: tuple[float, ...] = (),
) -> RishGains:
    """Fit the gains that bring the sites of a study together.

    Fit them to training participants only, and apply them to everybody: gains fitted to the
    participants who are tested would leak.

    Parameters
    ----------
    scans : sequence of (X, Y, Z, n_shells * 6 nside^2) arrays
        S/b0 at the distinct HEALPix points, shell after shell, all on one grid in template space
        (`bids_gevnet.dwi.sample_shells`).
    masks : sequence of (X, Y, Z) bool arrays
        Brains.
    sites : sequence of str
        Where each was scanned.
    voxel_mm : float
    participants : sequence of str, optional
        Who each scan is of; every scan is another person's if not given.
    groups : sequence of str, optional
        Diagnoses, whose differences are kept.
    covariates : mapping of name to sequence, optional
        Numbers or words whose effects are kept, such as age and sex.
    reference : str, optional
        Site that the others are brought to; the mean over sites if not given.
    fwhm_mm : float
        Smoothness of the gains.
    b_values : tuple of float
        Of the shells, each of which has gains of its own; may be empty for one shell.

    Returns
    -------
    gains : RishGains
        Its `warnings` say what could not be harmonised, and why.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> masks = [np.ones((4, 4, 4), bool)] * 24
    >>> sites = ["here", "there"] * 12
    >>> scans = [(0.5 if site == "here" else 0.6) + rng.normal(0, 0.02, (4, 4, 4, 24))
    ...          for site in sites]
    >>> gains = fit(scans, masks, sites, voxel_mm=2.0, reference="here")
    >>> round(float(apply(gains, scans[1], "there").mean()), 2)
    0.5
    """
    counts = {scan.shape[-1] for scan in scans}
    shells = max(1, len(b_values))
    nside = math.isqrt(max(counts, default=0) // (6 * shells))
    if len(counts) != 1 or shells * 6 * nside**2 not in counts:
        raise InputError(
            expected="scans with 6 nside^2 samples per voxel and shell, the same number in all",
            found=", ".join(map(str, sorted(counts))) or "no scans",
            remedy="resample every scan to the distinct points of one HEALPix grid",
        )
    maps = [
        log_rish_maps(scan[mask], mask, voxel_mm=voxel_mm, nside=nside, fwhm_mm=fwhm_mm)
        for scan, mask in zip(scans, masks, strict=True)
    ]
    return fit_rish_glm(
        maps,
        participants=participants or [str(number) for number in range(len(scans))],
        sites=sites,
        groups=groups,
        covariates=covariates,
        reference=reference,
        nside=nside,
        degrees=fit_limits(nside)[1],
        fwhm_mm=fwhm_mm,
        b_values=b_values,
    )


def apply(
    gains: RishGains,
    samples: NDArray[np.floating[Any]],
    site: str,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Harmonise a scan; one from a site that was not fitted comes back as it is.

    Parameters
    ----------
    gains : RishGains
    samples : (X, Y, Z, points) array, or (n_voxels, points) array with ``mask``
        6 nside^2 points, shell after shell.
    site : str
    mask : (X, Y, Z) bool array, optional
        Which voxels the samples are, in the order of ``mask.nonzero()``.

    Returns
    -------
    harmonised : array of float32
        In the shape of ``samples``.

    Examples
    --------
    >>> import numpy as np
    >>> from bids_gevnet.harmonisation.gains import RishGains
    >>> doubled = RishGains(np.full((1, 1, 1, 1, 1), 2, np.float32), ("A",), degrees=(0,), nside=1)
    >>> apply(doubled, np.full((1, 1, 1, 6), 0.5), "A").ravel().round(3).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    >>> float(apply(doubled, np.full((1, 1, 1, 6), 0.5), "B").mean())
    0.5
    """
    return gains.apply(samples, site, mask)
