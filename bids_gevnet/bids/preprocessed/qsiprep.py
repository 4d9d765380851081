"""Read the derivatives of QSIPrep.

Names as of version 1: everything lies in ``space-ACPC``; up to 0.21 it was called ``space-T1w``
(the same place) and transforms began at ``from-T1w``.

Gradients: images are stored LPS+, and the bvec file holds directions along these voxel axes, not
in FSL's convention, which would negate x. The ``.b`` file beside it has the same directions in
world RAS; where both are there they are compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bids_gevnet.bids.gradient_files import read_bvec
from bids_gevnet.bids.images import read_header
from bids_gevnet.bids.preprocessed.files import first_file, require_file, scan_entities
from bids_gevnet.bids.preprocessed.record import DerivativeDataset, Finding, PreprocessedScan
from bids_gevnet.bids.reading import read_text
from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.dwi.gradients import bvecs_voxel_to_ras, direction_angle_deg
from bids_gevnet.errors import ParticipantError

_ENDING = "_desc-preproc_dwi.nii.gz"
_SPACES = ("ACPC", "T1w")
_RUN_AGAIN = "check that QSIPrep finished with this participant, or leave it out"
_LARGEST_ANGLE_DEG = 1.0
"""Files hold eight digits; a flipped axis turns most directions by far more."""


class QSIPrep:
    """Find and read what QSIPrep wrote."""

    name = "qsiprep"
    title = "QSIPrep"

    def recognises(self, folder: Path) -> bool:
        """Tell by the space in the names of series."""
        return next(_series(folder), None) is not None

    def find(self, folder: Path) -> Mapping[str, Sequence[Finding]]:
        """List the series of each participant."""
        findings: dict[str, list[Finding]] = {}
        for image in _series(folder):
            entities = scan_entities(split_name(image)[0])
            label = image.relative_to(folder).parts[0].removeprefix("sub-")
            finding = Finding(entities=entities | {"sub": label}, image=image)
            findings.setdefault(label, []).append(finding)
        return findings

    def read(self, dataset: DerivativeDataset, finding: Finding) -> PreprocessedScan:
        """Look for gradients, mask, confounds, quality figures and anatomy of a series."""
        image = finding.image
        stem = image.name.removesuffix(_ENDING)
        scan = stem.rsplit("_space-", 1)[0]
        bval, bvec = (
            require_file([image.with_name(f"{stem}_desc-preproc_dwi.{kind}")], what, _RUN_AGAIN)
            for kind, what in (("bval", "b-values"), ("bvec", "gradient directions"))
        )
        _compare_tables(image, bvec)
        anat = _anatomy_folders(dataset.folder, finding.entities)
        transform, template = _transform(anat)
        notes = [] if transform else ["QSIPrep left no transform to an MNI template"]
        return PreprocessedScan(
            dataset=dataset,
            entities=finding.entities,
            image=image,
            bval=bval,
            bvec=bvec,
            bvec_axes="voxel",
            sidecar=first_file([image.with_name(f"{stem}_desc-preproc_dwi.json")]),
            mask=first_file([image.with_name(f"{stem}_desc-brain_mask.nii.gz")]),
            t1w=_t1w(anat),
            transform=transform,
            template=template,
            confounds=first_file(
                image.with_name(f"{scan}_{ending}")
                for ending in ("desc-confounds_timeseries.tsv", "confounds.tsv")
            ),
            quality=_quality(image, stem, scan),
            report=first_file([dataset.folder / f"sub-{finding.entities['sub']}.html"]),
            notes=tuple(notes),
        )


def _series(folder: Path) -> Iterator[Path]:
    for pattern in (f"sub-*/dwi/*{_ENDING}", f"sub-*/ses-*/dwi/*{_ENDING}"):
        for image in sorted(folder.glob(pattern)):
            if split_name(image)[0].get("space") in _SPACES:
                yield image


def _compare_tables(image: Path, bvec: Path) -> None:
    """Refuse a bvec file that says something else than the table for MRtrix beside it."""
    table = bvec.with_suffix(".b")
    if not table.is_file():
        return
    try:
        world = np.loadtxt(read_text(table).splitlines(), ndmin=2)[:, :3]
    except (OSError, ValueError, IndexError) as error:
        raise ParticipantError(
            expected=f"x, y, z and b of each volume in {table}",
            found=str(error),
            remedy=_RUN_AGAIN,
        ) from None
    directions = bvecs_voxel_to_ras(read_bvec(bvec), read_header(image).affine)
    if len(world) != len(directions):
        found = f"{len(directions)} directions in one and {len(world)} in the other"
    else:
        angles = direction_angle_deg(directions, world)[np.any(world, axis=1)]
        if not angles.size or angles.max() <= _LARGEST_ANGLE_DEG:
            return
        found = f"angles of up to {angles.max():.0f} degrees between them"
    raise ParticipantError(
        expected=f"the same directions in {bvec.name} (along the voxel axes) and {table.name} "
        "(in world coordinates), as QSIPrep writes them",
        found=found,
        remedy="restore both files; if one of them was changed by hand, remove the .b file and "
        "make sure that the .bvec file is along the voxel axes",
    )


def _anatomy_folders(folder: Path, entities: Mapping[str, str]) -> list[Path]:
    """Folders that may hold the anatomy of a session, nearest first."""
    subject = folder / f"sub-{entities['sub']}"
    session = [subject / f"ses-{entities['ses']}" / "anat"] if "ses" in entities else []
    return [*session, subject / "anat"]


def _transform(folders: Sequence[Path]) -> tuple[Path | None, str]:
    for folder in folders:
        for space in _SPACES:
            for path in sorted(folder.glob(f"*_from-{space}_to-MNI*_mode-image_xfm.h5")):
                return path, split_name(path)[0]["to"]
    return None, ""


def _t1w(folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        for path in sorted(folder.glob("*_desc-preproc_T1w.nii.gz")):
            if split_name(path)[0].get("space", _SPACES[0]) in _SPACES:
                return path
    return None


def _quality(image: Path, stem: str, scan: str) -> dict[str, float]:
    """Read the one row of numbers of QSIPrep's image QC; without the file there are none."""
    path = first_file(
        image.with_name(name)
        for name in (
            f"{stem}_desc-image_qc.tsv",
            f"{scan}_desc-image_qc.tsv",
            f"{scan}_desc-ImageQC_dwi.csv",
        )
    )
    if path is None:
        return {}
    separator = "," if path.suffix == ".csv" else "\t"
    try:
        header, row = (line.split(separator) for line in read_text(path).splitlines()[:2])
    except (OSError, ValueError):
        return {}
    numbers = {}
    for name, text in zip(header, row, strict=False):
        try:
            value = float(text)
        except ValueError:
            continue
        if np.isfinite(value):
            numbers[name] = value
    return numbers
