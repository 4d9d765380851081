"""Compare the measures of a scan with those of the other finished participants.

Of very many others a part is read, spread evenly over their names: every participant's report
reads the others, so that a study's reports would otherwise cost the square of its size.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.bids.derivatives import CONFOUNDS, FACTS
from bids_gevnet.equal_steps import at_equal_steps
from bids_gevnet.facts import ScanFacts
from bids_gevnet.report.figures.motion import summarise_motion
from bids_gevnet.report.measures import FACT_MEASURES, FEWEST_OTHERS, UsualRange, usual_range
from bids_gevnet.report.scan_files import read_facts, read_table

MOST_PARTICIPANTS = 500
"""Others to compare with: their middle 90 % is known well enough from so many."""


@dataclass(frozen=True, slots=True)
class ScanMeasures:
    """What can be compared of a scan: facts, and the mean framewise displacement in mm."""

    facts: ScanFacts
    motion_mm: float | None

    @property
    def protocol(self) -> tuple[object, ...]:
        """Scanner and shells: measures depend on both."""
        scanners = {str(run.scanner) for run in self.facts.acquisition}
        shells = [round(shell.b_value or 0, -2) for shell in self.facts.sphere.shells]
        return (*sorted(scanners), *shells)


@dataclass(frozen=True, slots=True)
class ComparedMeasure:
    """A measure of this scan beside those of others; places are percentages of the picture."""

    name: str
    unit: str
    hint: str
    value: float | None
    others: UsualRange | None
    at: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measures, and whom they are compared with.

    Attributes
    ----------
    count : int
        Scans of other participants that the ranges come from.
    same_protocol : bool
        Whether these are of the same scanner and shells only.
    """

    measures: list[ComparedMeasure]
    count: int
    same_protocol: bool

    @property
    def has_ranges(self) -> bool:
        """Whether there are enough others."""
        return self.count >= FEWEST_OTHERS


def read_others(
    output_dir: Path, label: str, *, most: int = MOST_PARTICIPANTS
) -> list[ScanMeasures]:
    """Read what is known of the finished scans of the other participants.

    Parameters
    ----------
    output_dir : Path
    label : str
        Whose scans are not read.
    most : int
        Participants to look at.
    """
    with os.scandir(output_dir) as entries:
        others = sorted(
            entry.path
            for entry in entries
            if entry.name.startswith("sub-") and entry.name != f"sub-{label}" and entry.is_dir()
        )
    paths = [
        path
        for folder in map(Path, at_equal_steps(others, most))
        for place in ("dwi", "ses-*/dwi")
        for path in folder.glob(f"{place}/*_{FACTS}")
    ]
    return [measure(path) for path in sorted(paths)]


def measure(facts_file: Path) -> ScanMeasures:
    """Read the measures of a scan from its facts and the confounds beside them."""
    name = facts_file.name.removesuffix(FACTS)
    table = read_table(facts_file.with_name(name + CONFOUNDS))
    motion = None if table is None else summarise_motion(table)
    return ScanMeasures(read_facts(facts_file), None if motion is None else motion.mean_mm)


def compare(scan: ScanMeasures, others: Sequence[ScanMeasures]) -> Comparison:
    """Compare a scan with others of its protocol, or with all where those are too few."""
    alike = [other for other in others if other.protocol == scan.protocol]
    chosen = alike if len(alike) >= FEWEST_OTHERS else list(others)
    measures = [
        _compare(
            "Framewise displacement",
            "mm",
            "mean of the volumes",
            scan.motion_mm,
            [other.motion_mm for other in chosen],
        ),
        *(
            _compare(m.name, m.unit, m.hint, m.read(scan.facts), [m.read(o.facts) for o in chosen])
            for m in FACT_MEASURES
        ),
    ]
    known = [m for m in measures if m.value is not None]
    return Comparison(known, len(chosen), len(alike) >= FEWEST_OTHERS)


def _compare(
    name: str, unit: str, hint: str, value: float | None, others: Sequence[float | None]
) -> ComparedMeasure:
    usual = usual_range(value, others)
    if usual is None or value is None:
        return ComparedMeasure(name, unit, hint, value, usual, 0.0, 0.0, 0.0)
    room = 0.35 * (usual.high - usual.low) or 0.1 * abs(usual.high) or 1.0
    low, high = min(usual.low - room, value), max(usual.high + room, value)
    at, start, end = (
        round(3 + 94 * (x - low) / (high - low), 1) for x in (value, usual.low, usual.high)
    )
    return ComparedMeasure(name, unit, hint, value, usual, at, start, end)
