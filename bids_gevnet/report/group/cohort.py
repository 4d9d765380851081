"""Describe the cohort by site and diagnosis, and the quality of each scan.

Cramér's V of site and diagnosis, corrected for the size of the sample (Bergsma 2013), is 0 where
they have nothing to do with each other and 1 where one follows from the other.

A scan is far from the others where its robust distance (`report.measures`) to its own site is
large; a site needs six scans for that.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.equal_steps import at_equal_steps
from bids_gevnet.facts import ScanFacts
from bids_gevnet.harmonisation.association import cramers_v
from bids_gevnet.learn.cohort.left_out import scans_by_reason
from bids_gevnet.report.group.study_files import CohortScan
from bids_gevnet.report.measures import FACT_MEASURES, FAR, robust_distances

Reader = Callable[[CohortScan], float | None]
"""Reads a measure of a scan; None where it is not known."""

ENOUGH_SCANS = 6


@dataclass(frozen=True)
class ClassRow:
    """One class of the cohort in numbers, ready to be shown."""

    label: str
    participants: int
    scans: int
    age: str
    sex: str
    motion: str


def describe_classes(scans: Sequence[CohortScan]) -> list[ClassRow]:
    """Describe every class, and everybody together at the end."""
    labels = sorted({scan.label for scan in scans})
    rows = [_describe(label, [s for s in scans if s.label == label]) for label in labels]
    return [*rows, _describe("Everybody", list(scans))]


def _describe(label: str, scans: Sequence[CohortScan]) -> ClassRow:
    people = {scan.participant: scan for scan in scans}
    sexes = [scan.sex for scan in people.values() if scan.sex]
    counted = {sex: sexes.count(sex) for sex in sorted(set(sexes))}
    return ClassRow(
        label,
        len(people),
        len(scans),
        _mean_and_spread([scan.age for scan in people.values()], 1),
        ", ".join(f"{count} {sex}" for sex, count in counted.items()),
        _mean_and_spread([scan.motion for scan in scans], 2),
    )


def _mean_and_spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{fmean(known):.{digits}f}{spread}"


def describe_left_out(metrics: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """List the reasons for which people or scans are not in the cohort, each with their names."""
    entries = metrics.get("left_out")
    return scans_by_reason(
        (str(entry.get("reason")), str(entry.get("scan")))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    )


@dataclass(frozen=True)
class SiteTable:
    """Participants of every site and class.

    Attributes
    ----------
    counts : (n_sites, n_labels) array of int
    association : float or None
        Cramér's V; None where there is one site or one class only.
    """

    sites: tuple[str, ...]
    labels: tuple[str, ...]
    counts: npt.NDArray[np.intp]
    association: float | None

    @property
    def alone(self) -> list[str]:
        """Sites that hold one class only: there site and diagnosis are the same."""
        if len(self.labels) < 2 or len(self.sites) < 2:
            return []
        return [s for s, row in zip(self.sites, self.counts, strict=True) if (row > 0).sum() == 1]


def count_sites(scans: Sequence[CohortScan]) -> SiteTable:
    """Count participants by site and class."""
    sites = tuple(sorted({scan.site for scan in scans}))
    labels = tuple(sorted({scan.label for scan in scans}))
    counts = np.zeros((len(sites), len(labels)), np.intp)
    for _, site, label in {(scan.participant, scan.site, scan.label) for scan in scans}:
        counts[sites.index(site), labels.index(label)] += 1
    return SiteTable(sites, labels, counts, cramers_v(counts))


@dataclass(frozen=True)
class Measure:
    """A quality measure of every scan.

    Attributes
    ----------
    values : list of float or None
        In the order of the scans.
    far : list of int
        Numbers of scans that are far from the others of their site.
    """

    key: str
    name: str
    unit: str
    hint: str
    values: list[float | None]
    far: list[int]


def _of_facts(read: Callable[[ScanFacts], float | None]) -> Reader:
    """Read a measure from the facts of a scan."""
    return lambda scan: None if scan.files is None else read(scan.files.facts)


MEASURES: Sequence[tuple[str, str, str, str, Reader]] = (
    ("motion", "Framewise displacement", "mm", "mean of the volumes", lambda scan: scan.motion),
    *((m.key, m.name, m.unit, m.hint, _of_facts(m.read)) for m in FACT_MEASURES),
)
"""Key, name, unit, meaning and how to read each measure, in the order in which they are shown."""


def measure_scans(scans: Sequence[CohortScan]) -> list[Measure]:
    """Gather the measures that at least one scan has."""
    measures = []
    for key, name, unit, hint, read in MEASURES:
        values = [read(scan) for scan in scans]
        if any(value is not None for value in values):
            far = far_from_site(values, [scan.site for scan in scans])
            measures.append(Measure(key, name, unit, hint, values, far))
    return measures


def rank_outliers(scans: Sequence[CohortScan], measures: Sequence[Measure]) -> list[int]:
    """Numbers of the scans that stand out, those that do most first.

    By errors of their own, then by how many measures are far from the others of their site.
    """
    far = Counter(number for measure in measures for number in measure.far)
    errors = {
        number: count
        for number, scan in enumerate(scans)
        if (count := sum(alert.level == "error" for alert in scan.alerts))
    }
    return sorted(far.keys() | errors.keys(), key=lambda i: (-errors.get(i, 0), -far[i], i))


def spread_evenly(sites: Sequence[str], most: int) -> list[int]:
    """Choose scans at equal steps from all sites in turn; all, if there are not more than `most`.

    >>> spread_evenly(["A", "B", "A", "B", "A", "B"], 2)
    [0, 1]
    """
    by_site = sorted(range(len(sites)), key=lambda number: (sites[number], number))
    return sorted(at_equal_steps(by_site, most))


def far_from_site(values: Sequence[float | None], sites: Sequence[str]) -> list[int]:
    """Numbers of the values that are far from the others of their site."""
    far = []
    groups: Mapping[str, list[int]] = {
        site: [i for i, name in enumerate(sites) if name == site and values[i] is not None]
        for site in sorted(set(sites))
    }
    for members in groups.values():
        known = np.array([values[i] for i in members], float)
        if len(known) < ENOUGH_SCANS:
            continue
        distances = robust_distances(known)
        far += [i for i, d in zip(members, distances, strict=True) if d > FAR]
    return sorted(far)
