"""The cohort: derivatives and participants.tsv joined into one row per scan.

Values come from sessions.tsv where it has them, else from participants.tsv. Text from these files
is data: it is compared, counted and written, never used as a path, a pattern or code, and files
of absurd size are refused before they are read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.derivatives import sidecar
from bids_gevnet.bids.participants import target_column
from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.bids.writing import write_text
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.scan_rows import (
    SAMPLES_ENDING,
    ScanFacts,
    ScanRow,
    dataset_name,
    read_people,
    scan_name,
)
from bids_gevnet.learn.cohort.tables import name_people, tsv_cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

_MAX_CLASSES = 20


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
    dataset : str
        Name of the dataset, to recognise its participants later.
    warnings : tuple of str
    """

    rows: tuple[ScanRow, ...]
    target: str
    shape: tuple[int, int, int]
    affine: np.ndarray[Any, np.dtype[np.float64]]
    nside: int
    dataset: str = ""
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
    table = read_people(bids_dir)
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
    facts = ScanFacts(table, bids_dir, site, tuple(covariates))
    rows = [facts.row(image, column) for image in images]
    labelled = [row for row in rows if row is not None]
    if len(labelled) < len(rows):
        known = {row.scan for row in labelled}
        unknown = [scan_name(image) for image in images if scan_name(image) not in known]
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
        dataset=dataset_name(bids_dir),
        warnings=tuple(facts.warnings),
    )
    _check_classes(cohort, folds)
    return cohort


def cohort_to_json(cohort: Cohort) -> dict[str, Any]:
    """Give plain values that `cohort_from_json` turns back."""
    content = asdict(cohort) | {"affine": cohort.affine.tolist()}
    for row in content["rows"]:
        row["image"], row["mask"] = str(row["image"]), str(row["mask"])
    return content


def cohort_from_json(content: Mapping[str, Any]) -> Cohort:
    """Read what `cohort_to_json` gave."""
    rows = tuple(
        ScanRow(**(row | {"image": Path(row["image"]), "mask": Path(row["mask"])}))
        for row in content["rows"]
    )
    x, y, z = content["shape"]
    changed = {
        "rows": rows,
        "shape": (x, y, z),
        "affine": np.array(content["affine"]),
        "warnings": tuple(content["warnings"]),
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
    columns = ["participant_id", "session_id", "scan", cohort.target, "site", "age", "sex"]
    lines = [[*columns, "mean_framewise_displacement", *(f"fold_{task}" for task in folds)]]
    for row in cohort.rows:
        cells: list[object] = [f"sub-{row.participant}", row.session and f"ses-{row.session}"]
        cells += [row.scan, row.label, row.site, row.age, row.sex, row.motion]
        cells += [folds[task].get(row.participant) for task in folds]
        lines.append([tsv_cell(cell) for cell in cells])
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


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


def _find_images(output_dir: Path, people: set[str]) -> list[Path]:
    found = [
        *output_dir.glob(f"sub-*/dwi/*{SAMPLES_ENDING}"),
        *output_dir.glob(f"sub-*/ses-*/dwi/*{SAMPLES_ENDING}"),
    ]
    # Compared, not searched for: a label from the table never becomes part of a pattern.
    images = sorted(path for path in found if split_name(path)[0].get("sub") in people)
    if not images:
        raise InputError(
            expected=f"spherical samples (sub-*/dwi/*{SAMPLES_ENDING}) in {output_dir}",
            found="none for the participants of participants.tsv",
            remedy="run the participant level first, with the same OUTPUT_DIR",
        )
    spaces: dict[str, list[str]] = {}
    for path in images:
        space = path.name.split("_space-", 1)[-1].removesuffix(SAMPLES_ENDING)
        spaces.setdefault(space, []).append(scan_name(path))
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


def _common_grid(
    rows: Sequence[ScanRow],
) -> tuple[tuple[int, int, int], np.ndarray[Any, np.dtype[np.float64]], int]:
    """Shape, affine and nside that all scans share; others are named."""
    import nibabel as nib

    grids: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        try:
            image, mask = nib.load(row.image), nib.load(row.mask)
            nside = int(json.loads(sidecar(row.image).read_text(encoding="utf-8"))["Nside"])
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
