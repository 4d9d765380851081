"""One scan of the cohort and what the tables and sidecars say about it."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bids_gevnet.bids.derivatives import BRAIN_MASK, CONFOUNDS, FACTS, SAMPLES
from bids_gevnet.bids.participants import read_participants, trim_cell
from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.sidecars import read_metadata, split_name
from bids_gevnet.errors import BidsGevnetError, InputError, name_people
from bids_gevnet.facts import ScanFacts
from bids_gevnet.learn.cohort.tables import check_table_size, read_sessions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Value = float | str | None

RAW = "raw"
"""Source of scans that were corrected here, or not at all."""

SAMPLES_ENDING = f"_{SAMPLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRow:
    """One scan of the cohort.

    Parameters
    ----------
    participant : str
        BIDS label without "sub-".
    session : str or None
    scan : str
        What the scan's file names begin with.
    label : str
        Class, or the number to predict as it is written in the table.
    site : str
    age, motion : float or None
        Years; mean framewise displacement in mm.
    sex : str or None
    covariates : mapping of name to value
        What harmonisation accounts for.
    image, mask : Path
        Spherical samples and brain mask in template space.
    source : str
        Pipeline that had preprocessed the scan, with its version; "raw" for none.
    series : tuple of str
        What the names of the raw series begin with that the scan was made of, as far as it is
        written down.
    """

    participant: str
    session: str | None
    scan: str
    label: str
    site: str
    age: float | None
    sex: str | None
    motion: float | None
    covariates: Mapping[str, Value]
    image: Path
    mask: Path
    source: str = RAW
    series: tuple[str, ...] = ()

    @property
    def number(self) -> float:
        """The number to predict, where the label is one."""
        return float(self.label)


class RowReader:
    """What is known of each scan beside its image."""

    def __init__(
        self, table: pd.DataFrame, bids_dir: Path, site: str | None, covariates: tuple[str, ...]
    ) -> None:
        self.table, self.bids_dir = table, bids_dir
        self.site = site or ("site" if "site" in table.columns else None)
        self.covariates = covariates
        self._sessions: dict[str, dict[str, dict[str, str]]] = {}
        self._trimmed: dict[str, set[str]] = {}
        self._knows_people = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What there is to say about the tables, as far as they were asked for."""
        absent = [name for name in self.covariates if name not in self.table.columns]
        trimmed = [_trimmed_warning(column, who) for column, who in sorted(self._trimmed.items())]
        texts = []
        if absent:
            noun, them = ("column", "it") if len(absent) == 1 else ("columns", "them")
            texts.append(
                f"participants.tsv has no {noun} {' and '.join(absent)}: harmonisation does not "
                f"account for {them}."
            )
        if not self._knows_people:
            texts.append(
                "Nobody's age or sex is known, so it was not tested what they alone tell: name "
                "columns that hold them age and sex, as BIDS does."
            )
        return (*texts, *trimmed)

    def row(self, image: Path, target: str, *, unlabelled: str | None = None) -> ScanRow | None:
        """Everything about one scan; None if it has no label, and none is given for such."""
        entities, _ = split_name(image)
        subject, session = entities["sub"], entities.get("ses")
        label = self._value(subject, session, target) or unlabelled
        if label is None:
            return None
        scan = scan_name(image)
        age = _number(self._value(subject, session, "age"))
        sex = self._value(subject, session, "sex")
        self._knows_people |= age is not None or sex is not None
        values: dict[str, Value] = {}
        for name in self.covariates:
            text = self._value(subject, session, name)
            number = _number(text)
            values[name] = text if number is None else number
        source, series = scan_origin(image.with_name(f"{scan}_{FACTS}"))
        return ScanRow(
            participant=subject,
            session=session,
            scan=scan,
            label=label,
            site=self.site_of(entities),
            age=age,
            sex=sex,
            motion=mean_motion(image.with_name(f"{scan}_{CONFOUNDS}")),
            covariates=values,
            image=image,
            mask=image.with_name(image.name.removesuffix(SAMPLES) + BRAIN_MASK),
            source=source,
            series=series,
        )

    def _value(self, subject: str, session: str | None, column: str) -> str | None:
        """Cell of sessions.tsv, else of participants.tsv, without blanks and quotes around it."""
        if session is not None and subject not in self._sessions:
            self._sessions[subject] = read_sessions(self.bids_dir, subject)
        cell: object = self._sessions.get(subject, {}).get(session or "", {}).get(column)
        if cell is None and column in self.table.columns and subject in self.table.index:
            cell = self.table.at[subject, column]
        if not isinstance(cell, str):
            return None
        value = trim_cell(cell)
        if value != cell:
            self._trimmed.setdefault(column, set()).add(f"sub-{subject}")
        return value

    def site_of(self, entities: Mapping[str, str]) -> str:
        """Site of a scan: from the tables, else the scanner of the sidecars."""
        subject, session = entities["sub"], entities.get("ses")
        named = self._value(subject, session, self.site) if self.site is not None else None
        return named or scanner_name(self.bids_dir, entities)


def scan_name(image: Path) -> str:
    """Name of the scan that a derivative belongs to: all before its space."""
    return image.name.split("_space-", 1)[0]


def dataset_name(bids_dir: Path) -> str:
    """Name in dataset_description.json, or nothing."""
    try:
        content = json.loads((bids_dir / "dataset_description.json").read_text(encoding="utf-8"))
        return str(content["Name"])[:1000]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def scan_site(bids_dir: Path, entities: Mapping[str, str], column: str | None = None) -> str:
    """Site of one scan, found as for a cohort; a missing table leaves the scanner's name.

    Parameters
    ----------
    bids_dir : Path
        The raw dataset.
    entities : mapping
        The scan's: sub, ses, acq, dir, run, as far as it has them.
    column : str, optional
        Of participants.tsv; `site` by default.
    """
    if not (bids_dir / "participants.tsv").is_file():
        return scanner_name(bids_dir, entities)
    return RowReader(read_people(bids_dir), bids_dir, column, ()).site_of(entities)


def read_people(bids_dir: Path) -> pd.DataFrame:
    """Read participants.tsv, indexed by label; refuse absurd sizes and repeated people."""
    check_table_size(bids_dir / "participants.tsv")
    table = read_participants(bids_dir)
    table = table[[trim_cell(name) not in {"", "n/a"} for name in table["participant_id"]]]
    names = table["participant_id"].map(trim_cell).str.removeprefix("sub-")
    twice = sorted(names[names.duplicated()])
    if twice:
        raise InputError(
            expected="one row per participant in participants.tsv",
            found=f"several for {name_people(f'sub-{name}' for name in twice)}",
            remedy="put what differs between sessions into sub-X/sub-X_sessions.tsv",
        )
    return table.set_index(names)


def id_warnings(table: pd.DataFrame) -> tuple[str, ...]:
    """Say whose participant_id had blanks or quotes around it, in a table of `read_people`."""
    trimmed = {f"sub-{label}" for label, cell in table["participant_id"].items()
               if trim_cell(cell) != cell}  # fmt: skip
    return (_trimmed_warning("participant_id", trimmed),) if trimmed else ()


def _trimmed_warning(column: str, people: set[str]) -> str:
    return f"Blanks or quotes around {column} were removed for {name_people(people)}."


def scanner_name(bids_dir: Path, entities: Mapping[str, str]) -> str:
    """Manufacturer, model and field strength from the raw sidecars, or "unknown"."""
    folder = bids_dir / f"sub-{entities['sub']}"
    if "ses" in entities:
        folder = folder / f"ses-{entities['ses']}"
    wanted = {key: entities[key] for key in ("sub", "ses", "acq", "dir", "run") if key in entities}
    for image in sorted((folder / "dwi").glob("*_dwi.nii*")):
        named, _ = split_name(image)
        if wanted.items() <= named.items():
            try:
                metadata = read_metadata(image, bids_dir)
            except BidsGevnetError:
                break
            keys = ("Manufacturer", "ManufacturersModelName", "MagneticFieldStrength")
            parts = [metadata.get(key) for key in keys]
            words = [str(part)[:100] for part in parts if isinstance(part, (str, int, float))]
            return "_".join(words) or "unknown"
    return "unknown"


def mean_motion(path: Path) -> float | None:
    """Mean framewise displacement in mm, or None where it is not known."""
    try:
        table = pd.read_csv(path, sep="\t", na_values=["n/a"], usecols=["framewise_displacement"])
        values = table["framewise_displacement"].to_numpy(dtype=float)
    except (OSError, ValueError):
        return None
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def source_warnings(rows: Sequence[ScanRow], *, numbers: bool = False) -> tuple[str, ...]:
    """Say which classes come from which pipelines, where there is more than one.

    Parameters
    ----------
    rows : sequence of ScanRow
    numbers : bool
        Whether labels are numbers: then scans are counted, and the confound is of the number.
    """
    sources = sorted({row.source for row in rows})
    if len(sources) < 2:
        return ()
    found = [("" if numbers else row.label, row.source) for row in rows]
    labels, counted = sorted({label for label, _ in found}), Counter(found)
    mixtures = [
        ", ".join(f"{counted[label, s]} {label}".strip() for label in labels) for s in sources
    ]
    counts = "; ".join(f"{s}: {mixture}" for s, mixture in zip(sources, mixtures, strict=True))
    mixture = "the numbers differ" if numbers else "the mixture of classes differs"
    return (
        (
            f"Scans come from {len(sources)} sources ({counts}). Pipelines differ in masks, "
            f"interpolation and correction: where {mixture} between them, the source is a "
            "confound. Compare with what the source alone reaches."
        ),
    )


def scan_origin(path: Path) -> tuple[str, tuple[str, ...]]:
    """Read what a scan was made of: a pipeline with its version, or raw series."""
    facts = ScanFacts.read(read_json(path))
    if str(facts.source):
        return str(facts.source), ()
    return RAW, tuple(run.name for run in facts.acquisition if run.name)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
