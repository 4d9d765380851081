"""Which of the images in a participant's dwi folders are series to process.

Whatever would count one measurement twice, or mix what must not be mixed, is refused or left
out with a note.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.errors import ParticipantError

_LABEL = "[0-9A-Za-z+]+"
_IMAGE_NAME = re.compile(rf"sub-{_LABEL}(_[A-Za-z]+-{_LABEL})*_[A-Za-z0-9]+\.nii(\.gz)?")
_NOT_MAGNITUDE = ("phase", "real", "imag")


@dataclass(frozen=True, slots=True)
class SeriesChoice:
    """The series to process, notes about those left out beside them, and what is wrong."""

    images: tuple[Path, ...]
    notes: Mapping[Path, str]
    problems: tuple[ParticipantError, ...]


def check_label(label: str, folder: Path) -> None:
    """Raise a `ParticipantError` unless a participant's label is one that BIDS allows."""
    if not re.fullmatch(_LABEL, label):
        raise ParticipantError(
            expected="a label of letters, digits and plus signs after sub-",
            found=f"the folder {folder}",
            remedy="rename the folder and the files in it, or move it out of the dataset if it "
            "is a copy",
        )


def choose_series(images: Sequence[Path], dataset_dir: Path) -> SeriesChoice:
    """Choose the series to process among the images in a participant's dwi folders.

    Parameters
    ----------
    images : sequence of Path
    dataset_dir : Path
    """
    problems: list[ParticipantError] = []
    well_named = []
    for image in images:
        try:
            check_name(image, dataset_dir)
        except ParticipantError as problem:
            problems.append(problem)
        else:
            well_named.append(image)
    magnitudes = [image for image in well_named if not _is_other_part(image)]
    problems += _find_repeats(magnitudes)
    notes: dict[Path, str] = {}
    for image in well_named:
        if _is_other_part(image):
            partners = [
                other for other in magnitudes if _measurement(other) == _measurement(image)
            ]
            for partner in partners:
                before = f"{notes[partner]}; " if partner in notes else ""
                notes[partner] = f"{before}{image.name} is no magnitude image and was left out"
            if not partners:
                problems.append(_no_magnitude(image))
    return SeriesChoice(tuple(magnitudes), notes, tuple(problems))


def check_name(image: Path, dataset_dir: Path) -> None:
    """Raise a `ParticipantError` unless the name of a file agrees with the folders above it."""
    folders = image.relative_to(dataset_dir).parts[:-2]  # sub-X[, ses-Y]
    prefix = "_".join(folders)
    entities, _ = split_name(image)
    if "desc" in entities:
        raise ParticipantError(
            expected=f"raw series in {image.parent}",
            found=f"{image.name}, which is called as derivatives are",
            remedy="give the folder of the preprocessed dataset with --derivatives, or move the "
            "file out of the raw dataset",
        )
    agrees = image.name.startswith(f"{prefix}_") and ("ses" in entities) == (len(folders) == 2)
    if not agrees or not _IMAGE_NAME.fullmatch(image.name):
        raise ParticipantError(
            expected=f"a name such as {prefix}_dwi.nii.gz or {prefix}_run-1_dwi.nii.gz",
            found=str(image),
            remedy="rename the file, or move it out of the folder",
        )


def _is_other_part(image: Path) -> bool:
    return split_name(image)[0].get("part") in _NOT_MAGNITUDE


def _measurement(image: Path) -> dict[str, str]:
    """Return the entities that the parts of one complex-valued measurement share."""
    return {key: value for key, value in split_name(image)[0].items() if key != "part"}


def _no_magnitude(image: Path) -> ParticipantError:
    return ParticipantError(
        expected=f"the magnitude images that belong to {image.name}",
        found="none",
        remedy="convert the scan again and keep its magnitude, or leave it out with "
        "--bids-filter-file",
    )


def _find_repeats(images: Sequence[Path]) -> list[ParticipantError]:
    """Find series that are there twice: compressed and not, or under two names by a link."""
    problems = []
    by_stem: dict[Path, list[Path]] = {}
    by_file: dict[Path, list[Path]] = {}
    for image in images:
        by_stem.setdefault(image.with_name(image.name.split(".", 1)[0]), []).append(image)
        by_file.setdefault(image.resolve(), []).append(image)
    for repeats in (*by_stem.values(), *by_file.values()):
        if len(repeats) > 1:
            listed = " and ".join(map(str, repeats))
            problems.append(
                ParticipantError(
                    expected="every series once",
                    found=f"{listed}, which are one series",
                    remedy="remove all but one of them",
                )
            )
    return problems
