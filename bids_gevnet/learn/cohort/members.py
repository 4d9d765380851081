"""The cohort: derivatives and participants.tsv joined into one row per scan.

Values come from sessions.tsv where it has them, else from participants.tsv. Text from these files
is data: it is compared, counted and written, never used as a path, a pattern or code, and files
of absurd size are refused before they are read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.participants import target_column
from bids_gevnet.bids.selection import read_selection, require_labels
from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.bids.writing import write_text
from bids_gevnet.errors import InputError, name_people
from bids_gevnet.learn.cohort.class_checks import check_classes
from bids_gevnet.learn.cohort.grids import Grid, common_grid, common_shells, read_grid
from bids_gevnet.learn.cohort.left_out import (
    GONE,
    UNREADABLE,
    LeftOut,
    Scanned,
    choose_images,
    find_scanned,
    is_gone,
    name_left_out,
    no_label,
)
from bids_gevnet.learn.cohort.number_checks import check_numbers, choose_kind, read_unit
from bids_gevnet.learn.cohort.scan_rows import (
    SAMPLES_ENDING,
    RowReader,
    ScanRow,
    dataset_name,
    id_warnings,
    read_people,
    scan_name,
    source_warnings,
)
from bids_gevnet.learn.cohort.tables import tsv_cell
from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION, Kind
from bids_gevnet.settings import SelectionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bids_gevnet.settings import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """All scans, on one grid.

    Parameters
    ----------
    rows : tuple of ScanRow
        Sorted by scan.
    target : str
        Column the labels or numbers come from.
    kind : {"classification", "regression"}
        Whether that column holds classes or a number.
    unit : str
        Of the number, if participants.json gives it.
    shape : tuple of int
    affine : (4, 4) array
    nside : int
    b_values : tuple of float
        Of the shells, in s/mm²; empty for one shell whose b-value is not known or not shared.
    dataset : str
        Name of the dataset, to recognise its participants later.
    left_out : tuple of LeftOut
        Who could have been in the cohort and is not, sorted by scan.
    warnings : tuple of str
    remarks : tuple of str
        What was decided for the user, and how to have it otherwise.
    """

    rows: tuple[ScanRow, ...]
    target: str
    shape: tuple[int, int, int]
    affine: np.ndarray[Any, np.dtype[np.float64]]
    nside: int
    b_values: tuple[float, ...] = ()
    dataset: str = ""
    kind: Kind = CLASSIFICATION
    unit: str = ""
    left_out: tuple[LeftOut, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())
    remarks: tuple[str, ...] = field(default=())

    @property
    def voxel_mm(self) -> float:
        """Edge of a voxel: the cube root of its volume."""
        return float(np.abs(np.linalg.det(self.affine[:3, :3])) ** (1 / 3))

    @property
    def shells(self) -> int:
        """How many shells every scan has."""
        return max(1, len(self.b_values))

    @property
    def labels(self) -> tuple[str, ...]:
        """The different entries of the target's column, sorted: the classes, if it has such."""
        return tuple(sorted({row.label for row in self.rows}))

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted."""
        return self.kind == REGRESSION

    def people(self, label: str) -> tuple[str, ...]:
        """Participants of one class, sorted."""
        return tuple(sorted({row.participant for row in self.rows if row.label == label}))


def read_cohort(
    output_dir: Path,
    bids_dir: Path,
    *,
    target: str | None = None,
    task: TaskKind = "auto",
    site: str | None = None,
    covariates: Sequence[str] = ("age", "sex"),
    folds: int = 5,
    selection: SelectionSettings | None = None,
) -> Cohort:
    """Join derivatives and tables; who is not there is left out, and said.

    Parameters
    ----------
    output_dir : Path
        Where the participant level wrote to.
    bids_dir : Path
        The raw dataset, with participants.tsv.
    target, site : str, optional
        Columns with the class or number and with the site. Without `site` a column of that name,
        else the scanner of the sidecars.
    task : {"auto", "classification", "regression"}
        What the target is; "auto" tells by its entries.
    covariates : sequence of str
        Columns that harmonisation accounts for.
    folds : int
        Every class needs this many participants, or the cohort where a number is predicted.
    selection : SelectionSettings, optional
        Participants and sessions to take or to leave out.
    """
    table = read_people(bids_dir)
    column = target_column(list(table.columns), target)
    if site is not None and site not in table.columns:
        raise InputError(
            expected=f"a column {site} in participants.tsv",
            found=f"the columns {', '.join(map(str, table.columns))}",
            remedy="correct --site, or leave it out to use the scanner of the sidecars",
        )
    scanned = find_scanned(bids_dir)
    images, left_out = _choose_images(output_dir, scanned, set(table.index), selection)
    facts = RowReader(table, bids_dir, site, tuple(covariates))
    rows: list[ScanRow] = []
    grids: dict[str, Grid] = {}
    for image in images:
        row, reason = facts.row(image, column), no_label(column)
        if row is not None and is_gone(scanned, row.participant, row.session, row.series):
            row, reason = None, GONE
        if row is not None:
            try:
                grids[row.scan] = read_grid(row)
            except InputError:
                row, reason = None, UNREADABLE
        if row is not None:
            rows.append(row)
        else:
            person = split_name(image)[0]["sub"]
            left_out.append(LeftOut(participant=person, scan=scan_name(image), reason=reason))
    _require_scans(output_dir, rows, left_out)
    shape, affine, nside = common_grid(grids)
    b_values, differing = common_shells(grids)
    kind, guess = choose_kind(task, column, {row.participant: row.label for row in rows})
    cohort = Cohort(
        rows=tuple(sorted(rows, key=lambda row: row.scan)),
        target=column,
        shape=shape,
        affine=affine,
        nside=nside,
        b_values=b_values,
        dataset=dataset_name(bids_dir),
        kind=kind,
        unit=read_unit(bids_dir, column) if kind == REGRESSION else "",
        left_out=tuple(sorted(left_out, key=lambda entry: entry.scan)),
        warnings=(
            *id_warnings(table),
            *facts.warnings,
            *([differing] if differing else []),
            *source_warnings(rows, numbers=kind == REGRESSION),
            *_gone_warnings(rows, scanned),
        ),
        remarks=(guess,) if guess else (),
    )
    check_target(cohort, folds)
    return cohort


def check_target(cohort: Cohort, folds: int) -> None:
    """Refuse a cohort whose classes or numbers cannot be evaluated with so many folds."""
    (check_numbers if cohort.is_regression else check_classes)(cohort, folds)


def cohort_to_json(cohort: Cohort) -> dict[str, Any]:
    """Give plain values that `cohort_from_json` turns back."""
    content = asdict(cohort) | {"affine": cohort.affine.tolist()}
    for row in content["rows"]:
        row["image"], row["mask"] = str(row["image"]), str(row["mask"])
    return content


def cohort_from_json(content: Mapping[str, Any]) -> Cohort:
    """Read what `cohort_to_json` gave."""
    rows = tuple(
        ScanRow(
            **(
                row
                | {name: Path(row[name]) for name in ("image", "mask")}
                | {"series": tuple(row["series"])}
            )
        )
        for row in content["rows"]
    )
    x, y, z = content["shape"]
    changed = {
        "rows": rows,
        "shape": (x, y, z),
        "affine": np.array(content["affine"]),
        "b_values": tuple(content["b_values"]),
        "left_out": tuple(LeftOut(**entry) for entry in content["left_out"]),
        "warnings": tuple(content["warnings"]),
        "remarks": tuple(content["remarks"]),
    }
    return Cohort(**(dict(content) | changed))


def write_cohort(path: Path, cohort: Cohort, folds: Mapping[str, Mapping[str, int]]) -> None:
    """Write group_cohort.tsv: one row per scan, with its fold in every task.

    Parameters
    ----------
    path : Path
    cohort : Cohort
    folds : mapping of task to mapping of participant to fold
        The fold a participant is tested in.
    """
    write_text(path, write_scan_table(cohort.rows, cohort.target, folds))


def write_scan_table(
    rows: Sequence[ScanRow], target: str, folds: Mapping[str, Mapping[str, int]] | None = None
) -> str:
    """Write scans as the text of a table, one row each.

    Parameters
    ----------
    rows : sequence of ScanRow
    target : str
        Name of the column of labels.
    folds : mapping of task to mapping of participant to fold, optional
    """
    tasks = folds or {}
    columns = ["participant_id", "session_id", "scan", target, "site", "source", "age", "sex"]
    lines = [[*columns, "mean_framewise_displacement", *(f"fold_{task}" for task in tasks)]]
    for row in rows:
        cells: list[object] = [f"sub-{row.participant}", row.session and f"ses-{row.session}"]
        cells += [row.scan, row.label, row.site, row.source, row.age, row.sex, row.motion]
        cells += [tasks[task].get(row.participant) for task in tasks]
        lines.append([tsv_cell(cell) for cell in cells])
    return "".join("\t".join(line) + "\n" for line in lines)


def find_samples(output_dir: Path) -> list[Path]:
    """Find the samples on the sphere of all scans that the participant level wrote."""
    images = [
        *output_dir.glob(f"sub-*/dwi/*{SAMPLES_ENDING}"),
        *output_dir.glob(f"sub-*/ses-*/dwi/*{SAMPLES_ENDING}"),
    ]
    return [path for path in images if "sub" in split_name(path)[0]]


def _choose_images(
    output_dir: Path, scanned: Scanned, listed: set[str], settings: SelectionSettings | None
) -> tuple[list[Path], list[LeftOut]]:
    """Images of those who take part, all in one space, and everybody else."""
    images = find_samples(output_dir)
    entities = [split_name(path)[0] for path in images]
    present = listed | set(scanned) | {named["sub"] for named in entities}
    selection = read_selection(settings or SelectionSettings(), present)
    sessions = {named["ses"] for named in entities if "ses" in named}
    sessions |= {label for labels in scanned.values() for label in labels if label is not None}
    require_labels(selection.sessions, sessions, option="--session-label", what="session")
    # Compared, not searched for: a label from the table never becomes part of a pattern.
    chosen, left_out = choose_images(images, scanned=scanned, listed=listed, selection=selection)
    spaces: dict[str, list[str]] = {}
    for path in chosen:
        space = path.name.split("_space-", 1)[-1].removesuffix(SAMPLES_ENDING)
        spaces.setdefault(space, []).append(scan_name(path))
    if len(spaces) > 1:
        named = "; ".join(f"{space}: {name_people(scans)}" for space, scans in spaces.items())
        raise InputError(
            expected="all scans in one space and resolution",
            found=named,
            remedy="run the participant level for all with the same template and resolution, in "
            "an OUTPUT_DIR of its own",
        )
    return chosen, left_out


def _gone_warnings(rows: Sequence[ScanRow], scanned: Scanned) -> tuple[str, ...]:
    """Name those of whom the dataset has no scan any more, while it has those of others."""
    gone = {f"sub-{r.participant}" for r in rows if r.participant not in scanned and r.series}
    if not gone or not scanned:
        return ()
    text = (
        f"The dataset no longer has diffusion images of {name_people(gone)}, whose derivatives "
        "are used all the same; give --exclude-participant-label if they must not be."
    )
    return (text,)


def _require_scans(output_dir: Path, rows: Sequence[ScanRow], left_out: list[LeftOut]) -> None:
    if rows:
        return
    reasons = "; ".join(name_left_out(left_out))
    raise InputError(
        expected=f"spherical samples (sub-*/dwi/*{SAMPLES_ENDING}) in {output_dir}",
        found=f"none that can be used{f' ({reasons})' if reasons else ''}",
        remedy="run the participant level first, with the same OUTPUT_DIR",
    )
