"""Which images a dataset holds, by pybids' index and query language.

Only images in the places that BIDS has for them are indexed (sub-X/[ses-Y/]anat, dwi, fmap):
copies in folders of another name, and links that lead back into the dataset, are none of its
scans. That keeps the index small, too.
"""

import json
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.reading import parse_json
from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from bids import BIDSLayout

_IMAGE = [".nii", ".nii.gz"]
_DEFAULT_FILTERS: dict[str, dict[str, Any]] = {
    "dwi": {"datatype": "dwi", "suffix": "dwi", "extension": _IMAGE},
    "t1w": {"datatype": "anat", "suffix": "T1w", "extension": _IMAGE},
    "fmap": {"datatype": "fmap", "suffix": "epi", "extension": _IMAGE},
}
# What is no UTF-8 in a name reaches Python as half a surrogate pair, which no database stores.
_NAME = r"[^/\ud800-\udfff]+"
_NO_CONFIGURATION = f"{os.devnull}/none"
"""A path that cannot exist: pybids takes its rules from files in a dataset, which must not
configure its reader."""


def read_filter_file(path: Path | None) -> dict[str, dict[str, Any]]:
    """Merge a filter file, written as for fMRIPrep, into the default pybids queries."""
    if path is None:
        return _DEFAULT_FILTERS
    try:
        custom = parse_json(path)
    except (OSError, ValueError) as error:
        raise InputError(
            expected="a JSON file for --bids-filter-file",
            found=f"{path} ({error})",
            remedy="check the path and the file's syntax",
        ) from None
    known = isinstance(custom, dict) and set(custom) <= set(_DEFAULT_FILTERS)
    if not known or not all(isinstance(value, dict) for value in custom.values()):
        raise InputError(
            expected=f"an object with some of the keys {', '.join(_DEFAULT_FILTERS)}, each an "
            f"object of entities, in {path}",
            found=json.dumps(custom)[:200],
            remedy='write for instance {"dwi": {"acquisition": "b1000"}}',
        )
    return {name: query | custom.get(name, {}) for name, query in _DEFAULT_FILTERS.items()}


def index_dataset(
    dataset_dir: Path, subjects: Sequence[str], database_dir: Path | None
) -> "BIDSLayout":
    """Index the images the app may use and nothing else.

    With a database directory all participants are indexed whatever was asked for, because
    the next run will read the same database and may ask for others.
    """
    from bids import BIDSLayout, BIDSLayoutIndexer

    subject = _NAME
    if subjects and database_dir is None:
        subject = "(" + "|".join(re.escape(label) for label in subjects) + ")"
    images = rf"/(anat|dwi|fmap)(/{_NAME}\.nii(\.gz)?)?"
    wanted = rf"/sub-{subject}(/ses-{_NAME})?({images})?$"
    try:
        return BIDSLayout(
            dataset_dir,
            indexer=BIDSLayoutIndexer(
                validate=False,
                index_metadata=False,
                ignore=[re.compile(rf"^(?!{wanted})", re.DOTALL)],
                config_filename=_NO_CONFIGURATION,
            ),
            database_path=database_dir,
        )
    except Exception as error:
        raise InputError(
            expected=f"a dataset that pybids can index in {dataset_dir}",
            found=f"{type(error).__name__}: {error}",
            remedy="check dataset_description.json and, if it is given, that "
            "--bids-database-dir was written by the same version for the same dataset",
        ) from error


def unreadable_folder(folder: Path) -> Path | None:
    """Name the first folder of a participant that may not be listed; None if all may."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except PermissionError:
        return folder
    except OSError:
        return None
    return next(filter(None, (unreadable_folder(Path(path)) for path in below)), None)


def images_by_participant(
    layout: "BIDSLayout", query: Mapping[str, Any], dataset_dir: Path, *, sessions: Sequence[str]
) -> dict[str, list[Path]]:
    """Return the images that a query selects, by the label of the folder they lie in.

    The folder counts, not the name of the file: a copy of a participant in sub-X_old must not
    become more of sub-X.
    """
    query = dict(query)
    if sessions:
        query.setdefault("session", list(sessions))
    place = re.compile(rf"sub-({_NAME})(/ses-{_NAME})?/(anat|dwi|fmap)/{_NAME}", re.DOTALL)
    grouped: dict[str, list[Path]] = {}
    try:
        selected = layout.get(return_type="filename", **query)
    except Exception as error:
        raise InputError(
            expected="entities and values that pybids can look for in --bids-filter-file",
            found=_explain_refusal(query, error),
            remedy='write for instance {"dwi": {"acquisition": "b1000"}}',
        ) from error
    for image in sorted(map(Path, selected)):
        if not image.is_relative_to(dataset_dir):
            raise InputError(
                expected=f"an index of {dataset_dir} in --bids-database-dir",
                found=f"one that holds {image}",
                remedy="delete the --bids-database-dir, or give another one",
            )
        # An index of another version may hold more than is indexed today.
        if match := place.fullmatch(str(image.relative_to(dataset_dir))):
            grouped.setdefault(match.group(1), []).append(image)
    return grouped


def _explain_refusal(query: Mapping[str, Any], error: Exception) -> str:
    """Say which part of a query pybids refuses; in its own words where it is none of these."""
    arguments = {"absolute_paths", "invalid_filters", "return_type", "scope", "target"}
    if taken := sorted(arguments & set(query)):
        return f"{', '.join(taken)}: an argument of pybids, not an entity"
    for name, value in query.items() if query.get("regex_search") else ():
        for pattern in value if isinstance(value, list) else [value]:
            try:
                re.compile(str(pattern))
            except re.error as fault:
                return f"{pattern!r} for {name}, which is not a regular expression ({fault})"
    words = re.split(r"\[SQL|\. If you're sure", str(error))[0]  # and then hints for programmers
    return f"{reprlib.repr(query)} ({words.strip()[:200]})"
