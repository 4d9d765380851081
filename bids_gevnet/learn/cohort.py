"""The cohort: derivatives and participants.tsv joined into one row per scan.

Values come from sessions.tsv where it has them, else from participants.tsv. Text from these files
is data: it is compared, counted and written, never used as a path, a pattern or code, and files
of absurd size are refused before they are read.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bids_gevnet.bids.participants import read_participants, target_column
from bids_gevnet.bids.sidecars import read_metadata, split_name
from bids_gevnet.bids.writing import write_text
from bids_gevnet.errors import BidsGevnetError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    Value = float | str | None

MAX_ROWS = 100_000
MAX_CELL = 10_000
_MAX_BYTES = 256 * 1024**2
_NAMED = 8  # people named in an error before "and n more"
_ENDING = "_desc-healpix_dwi.nii.gz"
_MAX_CLASSES = 20


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
        Class.
    site : str
    age, motion : float or None
        Years; mean framewise displacement in mm.
    sex : str or None
    covariates : mapping of name to value
        What harmonisation accounts for.
    image, mask : Path
        Spherical samples and brain mask in template space.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """All scans, on one grid.

    Parameters
    ----------
    rows : tuple of ScanRow
        Sorted by scan.
    target : str
        Column the labels come from.
    shape : tuple of int
    affine : (4, 4) array
    nside : int
    warnings : tuple of str
    """

    rows: tuple[ScanRow, ...]
    target: str
    shape: tuple[int, int, int]
    affine: np.ndarray[Any, np.dtype[np.float64]]
    nside: int
    warnings: tuple[str, ...] = field(default=())

    @property
    def voxel_mm(self) -> float:
        """Edge of a voxel: the cube root of its volume."""
        return float(np.abs(np.linalg.det(self.affine[:3, :3])) ** (1 / 3))

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, sorted."""
        return tuple(sorted({row.label for row in self.rows}))

    def people(self, label: str) -> tuple[str, ...]:
        """Participants of one class, sorted."""
        return tuple(sorted({row.participant for row in self.rows if row.label == label}))


def read_cohort(
    output_dir: Path,
    bids_dir: Path,
    *,
    target: str | None = None,
    site: str | None = None,
    covariates: Sequence[str] = ("age", "sex"),
    folds: int = 5,
    participants: Sequence[str] = (),
) -> Cohort:
    """Join derivatives and tables.

    Parameters
    ----------
    output_dir : Path
        Where the participant level wrote to.
    bids_dir : Path
        The raw dataset, with participants.tsv.
    target, site : str, optional
        Columns with the class and the site. Without `site` a column of that name, else the
        scanner of the sidecars.
    covariates : sequence of str
        Columns that harmonisation accounts for.
    folds : int
        Every class needs this many participants.
    participants : sequence of str
        Only these, if any are given.
    """
    table = _read_table(bids_dir)
    column = target_column(list(table.columns), target)
    if site is not None and site not in table.columns:
        raise InputError(
            expected=f"a column {site} in participants.tsv",
            found=f"the columns {', '.join(map(str, table.columns))}",
            remedy="correct --site, or leave it out to use the scanner of the sidecars",
        )
    people = _people(table, participants)
    images = _find_images(output_dir, people)
    _require_derivatives(bids_dir, people, images)
    facts = _Facts(table, bids_dir, site, tuple(covariates))
    rows = [facts.row(image, column) for image in images]
    labelled = [row for row in rows if row is not None]
    if len(labelled) < len(rows):
        known = {row.scan for row in labelled}
        unknown = [_scan_name(image) for image in images if _scan_name(image) not in known]
        raise InputError(
            expected=f"a value in column {column} for every participant with derivatives",
            found=f"none for {name_people(unknown)}",
            remedy="complete participants.tsv, or choose participants with --participant-label",
        )
    shape, affine, nside = _common_grid(labelled)
    cohort = Cohort(
        rows=tuple(sorted(labelled, key=lambda row: row.scan)),
        target=column,
        shape=shape,
        affine=affine,
        nside=nside,
        warnings=tuple(facts.warnings),
    )
    _check_classes(cohort, folds)
    return cohort


def write_cohort(path: Path, cohort: Cohort, folds: Mapping[str, Mapping[str, int]]) -> None:
    """Write group_cohort.tsv: one row per scan, with its fold in every task.

    Parameters
    ----------
    path : Path
    cohort : Cohort
    folds : mapping of task to mapping of participant to fold
        The fold a participant is tested in.
    """
    columns = ["participant_id", "session_id", "scan", cohort.target, "site", "age", "sex"]
    lines = [[*columns, "mean_framewise_displacement", *(f"fold_{task}" for task in folds)]]
    for row in cohort.rows:
        cells: list[Value] = [f"sub-{row.participant}", row.session and f"ses-{row.session}"]
        cells += [row.scan, row.label, row.site, row.age, row.sex, row.motion]
        cells += [folds[task].get(row.participant) for task in folds]
        lines.append([tsv_cell(cell) for cell in cells])
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


def tsv_cell(value: object) -> str:
    """Write a value so that it stays one cell."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "n/a"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "".join(" " if char in "\t\r\n" else char for char in text)


def name_people(names: Iterable[str]) -> str:
    """List people, the first few by name."""
    listed = sorted(set(names))
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def check_table_size(path: Path) -> None:
    """Refuse a table that no cohort has, before reading it into memory."""
    rows = longest = 0
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            while size <= _MAX_BYTES and (line := stream.readline(MAX_CELL * 1000)):
                rows += 1
                cells = line.split(b"\t") if len(line) > MAX_CELL else [b""]
                longest = max(longest, *map(len, cells))
                if rows > MAX_ROWS + 1 or longest > MAX_CELL:
                    break
    except OSError:
        return  # the reader says what is wrong
    if size > _MAX_BYTES or rows > MAX_ROWS + 1 or longest > MAX_CELL:
        found = f"{size} bytes"
        if rows > MAX_ROWS + 1:
            found = f"more than {MAX_ROWS} rows"
        elif longest > MAX_CELL:
            found = f"a cell of {longest} bytes or more in row {rows}"
        raise InputError(
            expected=f"a table of at most {MAX_ROWS} rows with cells of at most {MAX_CELL} bytes "
            f"in {path}",
            found=found,
            remedy="check what wrote this file",
        )


def _read_table(bids_dir: Path) -> pd.DataFrame:
    check_table_size(bids_dir / "participants.tsv")
    table = read_participants(bids_dir)
    names = table["participant_id"].astype(str).str.removeprefix("sub-")
    twice = sorted(names[names.duplicated()])
    if twice:
        raise InputError(
            expected="one row per participant in participants.tsv",
            found=f"several for {name_people(twice)}",
            remedy="put what differs between sessions into sub-X/sub-X_sessions.tsv",
        )
    return table.set_index(names)


def _people(table: pd.DataFrame, wanted: Sequence[str]) -> set[str]:
    """Participants of the table, those asked for if any are."""
    listed = {str(name) for name in table.index}
    if not wanted:
        return listed
    chosen = {name.removeprefix("sub-") for name in wanted}
    if chosen - listed:
        raise InputError(
            expected="participants of participants.tsv",
            found=name_people(chosen - listed),
            remedy="correct --participant-label or complete participants.tsv",
        )
    return chosen


def _scan_name(image: Path) -> str:
    """Name of the scan that a derivative belongs to: all before its space."""
    return image.name.split("_space-", 1)[0]


def _find_images(output_dir: Path, people: set[str]) -> list[Path]:
    found = [
        *output_dir.glob(f"sub-*/dwi/*{_ENDING}"),
        *output_dir.glob(f"sub-*/ses-*/dwi/*{_ENDING}"),
    ]
    # Compared, not searched for: a label from the table never becomes part of a pattern.
    images = sorted(path for path in found if split_name(path)[0].get("sub") in people)
    if not images:
        raise InputError(
            expected=f"spherical samples (sub-*/dwi/*{_ENDING}) in {output_dir}",
            found="none for the participants of participants.tsv",
            remedy="run the participant level first, with the same OUTPUT_DIR",
        )
    spaces: dict[str, list[str]] = {}
    for path in images:
        space = path.name.split("_space-", 1)[-1].removesuffix(_ENDING)
        spaces.setdefault(space, []).append(_scan_name(path))
    if len(spaces) > 1:
        listed = "; ".join(f"{space}: {name_people(scans)}" for space, scans in spaces.items())
        raise InputError(
            expected="all scans in one space and resolution",
            found=listed,
            remedy="run the participant level for all with the same template and resolution, in "
            "an OUTPUT_DIR of its own",
        )
    return images


def _require_derivatives(bids_dir: Path, people: set[str], images: list[Path]) -> None:
    """Name everybody who was scanned but has no derivatives."""
    done = {split_name(path)[0].get("sub") for path in images}
    missing = []
    for folder in bids_dir.glob("sub-*"):
        label = folder.name.removeprefix("sub-")
        if label in people and label not in done and _has_diffusion(folder):
            missing.append(folder.name)
    if missing:
        raise InputError(
            expected="derivatives of every participant with diffusion scans",
            found=f"none for {name_people(missing)}",
            remedy="run the participant level for them, or choose the others with "
            "--participant-label",
        )


def _has_diffusion(folder: Path) -> bool:
    patterns = ("dwi/*_dwi.nii*", "ses-*/dwi/*_dwi.nii*")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


class _Facts:
    """What is known of each scan beside its image."""

    def __init__(
        self, table: pd.DataFrame, bids_dir: Path, site: str | None, covariates: tuple[str, ...]
    ) -> None:
        self.table, self.bids_dir = table, bids_dir
        self.site = site or ("site" if "site" in table.columns else None)
        self.covariates = covariates
        self.warnings: list[str] = []
        absent = [name for name in covariates if name not in table.columns]
        if absent:
            self.warnings.append(
                f"participants.tsv has no column {', '.join(absent)}: harmonisation does not "
                "account for it."
            )
        self._sessions: dict[str, dict[str, dict[str, str]]] = {}

    def row(self, image: Path, target: str) -> ScanRow | None:
        """Everything about one scan; None if it has no label."""
        entities, _ = split_name(image)
        subject, session = entities["sub"], entities.get("ses")
        label = self._value(subject, session, target)
        if label is None:
            return None
        scan = _scan_name(image)
        age = _number(self._value(subject, session, "age"))
        sex = self._value(subject, session, "sex")
        values: dict[str, Value] = {}
        for name in self.covariates:
            text = self._value(subject, session, name)
            number = _number(text)
            values[name] = text if number is None else number
        return ScanRow(
            participant=subject,
            session=session,
            scan=scan,
            label=label,
            site=self._site(subject, session, entities),
            age=age,
            sex=sex,
            motion=mean_motion(image.with_name(f"{scan}_desc-confounds_timeseries.tsv")),
            covariates=values,
            image=image,
            mask=image.with_name(image.name.removesuffix(_ENDING) + "_desc-brain_mask.nii.gz"),
        )

    def _value(self, subject: str, session: str | None, column: str) -> str | None:
        """Cell of sessions.tsv, else of participants.tsv, without blanks around it."""
        if session is not None and subject not in self._sessions:
            self._sessions[subject] = _read_sessions(self.bids_dir, subject)
        own = self._sessions.get(subject, {}).get(session or "", {}).get(column)
        if own is not None:
            return own
        if column not in self.table.columns:
            return None
        cell: object = self.table.at[subject, column]
        return cell.strip() or None if isinstance(cell, str) else None

    def _site(self, subject: str, session: str | None, entities: Mapping[str, str]) -> str:
        named = self._value(subject, session, self.site) if self.site is not None else None
        return named or scanner_name(self.bids_dir, entities)


def _read_sessions(bids_dir: Path, subject: str) -> dict[str, dict[str, str]]:
    """Rows of sub-X_sessions.tsv by session label; empty if there is none."""
    path = bids_dir / f"sub-{subject}" / f"sub-{subject}_sessions.tsv"
    if not path.is_file():
        return {}
    check_table_size(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            expected=f"a tab-separated table in {path}",
            found=f"none ({error})",
            remedy="save the table as tab-separated text in UTF-8",
        ) from None
    return {
        str(row.get("session_id") or "").removeprefix("ses-"): {
            key: value.strip()
            for key, value in row.items()
            if isinstance(key, str) and isinstance(value, str) and value.strip() not in {"", "n/a"}
        }
        for row in rows
    }


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


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _common_grid(
    rows: Sequence[ScanRow],
) -> tuple[tuple[int, int, int], np.ndarray[Any, np.dtype[np.float64]], int]:
    """Shape, affine and nside that all scans share; others are named."""
    import nibabel as nib

    grids: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        try:
            image, mask = nib.load(row.image), nib.load(row.mask)
            sidecar = row.image.with_name(row.image.name.removesuffix(".nii.gz") + ".json")
            nside = int(json.loads(sidecar.read_text(encoding="utf-8"))["Nside"])
        except (OSError, ValueError, KeyError, TypeError, nib.filebasedimages.ImageFileError) as e:
            raise InputError(
                expected=f"readable samples, mask and sidecar of {row.scan}",
                found=str(e),
                remedy="run the participant level for this participant again",
            ) from None
        key = (tuple(image.shape), tuple(np.round(image.affine, 3).ravel().tolist()), nside)
        if tuple(mask.shape) != key[0][:3] or len(key[0]) != 4 or key[0][3] != 6 * nside**2:
            raise InputError(
                expected=f"{6 * nside**2} samples per voxel and a mask on the same grid",
                found=f"samples {tuple(image.shape)} and mask {tuple(mask.shape)} for {row.scan}",
                remedy="run the participant level for this participant again",
            )
        grids.setdefault(key, []).append(row.scan)
    (shape, affine, nside), *others = sorted(grids, key=lambda key: -len(grids[key]))
    if others:
        odd = [scan for key in others for scan in grids[key]]
        raise InputError(
            expected=f"all scans on one grid of {'x'.join(map(str, shape[:3]))} voxels",
            found=f"another grid for {name_people(odd)}",
            remedy="run the participant level for them again with the resolution of the others",
        )
    return shape[:3], np.array(affine).reshape(4, 4), nside


def _check_classes(cohort: Cohort, folds: int) -> None:
    labels = cohort.labels
    if len(labels) < 2:
        everyone = name_people(f"sub-{row.participant}" for row in cohort.rows)
        raise InputError(
            expected=f"at least two different values in column {cohort.target}",
            found=f"only {labels[0]!r} ({everyone})",
            remedy="choose another column with --target, or add participants",
        )
    if len(labels) > _MAX_CLASSES:
        raise InputError(
            expected=f"classes, at most {_MAX_CLASSES}, in column {cohort.target}",
            found=f"{len(labels)} different values",
            remedy="choose a column with categories with --target",
        )
    small = {label: people for label in labels if len(people := cohort.people(label)) < folds}
    if small:
        listed = "; ".join(
            f"{len(people)} of {label!r} ({name_people(f'sub-{p}' for p in people)})"
            for label, people in small.items()
        )
        raise InputError(
            expected=f"at least {folds} participants of every class for {folds} folds",
            found=listed,
            remedy=f"lower --folds to {max(2, min(map(len, small.values())))}, or choose "
            "participants with --participant-label",
        )
    changing = [
        f"sub-{person}"
        for person in {row.participant for row in cohort.rows}
        if len({row.label for row in cohort.rows if row.participant == person}) > 1
    ]
    if changing:
        raise InputError(
            expected=f"one {cohort.target} per participant",
            found=f"several over the sessions of {name_people(changing)}",
            remedy="choose sessions in which it does not change",
        )
