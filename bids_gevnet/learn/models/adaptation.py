"""Sites that a model was not trained on, harmonised from their unlabelled scans (``--adapt``).

Scans come with a label where they are tested; it is not looked at here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.adaptation import FEWEST_PEOPLE, Adaptation, adapt
from bids_gevnet.learn.cohort.store import LogRishMaps, StoredScan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bids_gevnet.harmonisation.gains import RishGains


@dataclass(frozen=True, kw_only=True)
class UnlabelledScan:
    """What adaptation may know of a scan.

    Parameters
    ----------
    folder : str
        In the store.
    participant, site : str
    covariates : mapping
    """

    folder: str
    participant: str
    site: str
    covariates: Mapping[str, float | str | None]


@dataclass(frozen=True)
class AdaptedSites:
    """Gains with those of new sites.

    Attributes
    ----------
    gains : RishGains
    adaptations : tuple of Adaptation
        One for each site that was adapted to.
    refusals : tuple of str
        A sentence for each new site that was not.
    """

    gains: RishGains
    adaptations: tuple[Adaptation, ...]
    refusals: tuple[str, ...]


def adapt_sites(gains: RishGains | None, scans: Sequence[UnlabelledScan]) -> AdaptedSites:
    """Adapt to every site of some scans that is not among those a model was trained on.

    Parameters
    ----------
    gains : RishGains or None
        Of the model.
    scans : sequence of UnlabelledScan
    """
    gains = require_reference(gains)
    by_site: dict[str, list[UnlabelledScan]] = defaultdict(list)
    for scan in scans:
        if not gains.knows(scan.site):
            by_site[scan.site].append(scan)
    adaptations, refusals = [], []
    adapted = gains
    for site, of_site in sorted(by_site.items()):
        people = len({scan.participant for scan in of_site})
        if people < FEWEST_PEOPLE:
            refusals.append(
                f"Site {site}, which the model was not trained on, was left as it is: --adapt "
                f"needs {FEWEST_PEOPLE} people of a site, and there "
                f"{'is' if people == 1 else 'are'} {people}."
            )
            continue
        names = sorted({name for scan in of_site for name in scan.covariates})
        adapted, facts = adapt(
            adapted,
            LogRishMaps([StoredScan(Path(scan.folder)) for scan in of_site]),
            site=site,
            participants=[scan.participant for scan in of_site],
            covariates={name: [s.covariates.get(name) for s in of_site] for name in names},
        )
        adaptations.append(facts)
    return AdaptedSites(adapted, tuple(adaptations), tuple(refusals))


def require_reference(gains: RishGains | None) -> RishGains:
    """Refuse a model that nothing can be brought to."""
    if gains is None or gains.training is None:
        raise InputError(
            expected="a model that harmonises and keeps what its training scans look like, for "
            "--adapt",
            found="one trained without harmonisation"
            if gains is None
            else "one whose harmonisation keeps no such reference: from an earlier version, or "
            "fitted to too few people",
            remedy="train the model with --harmonisation rish, or leave --adapt out",
        )
    return gains


def without_labels(scans: Iterable[object]) -> list[UnlabelledScan]:
    """Take from scans of a job what adaptation may know."""
    names = ("folder", "participant", "site", "covariates")
    return [UnlabelledScan(**{name: getattr(scan, name) for name in names}) for scan in scans]
