"""The BIDS inheritance principle: which bval, bvec and JSON files speak for an image.

A file applies to an image if it lies in the image's folder or above it within the dataset,
has the same suffix, and names no entity with another value. Nearer files win. pybids answers
the same question by a scan of its whole index for every image, which takes hours on large
datasets; here only the few folders above the image are listed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bids_gevnet.errors import ParticipantError


def split_name(path: Path) -> tuple[dict[str, str], str]:
    """Split a BIDS file name into its entities and its suffix.

    >>> split_name(Path("sub-01_dir-AP_dwi.nii.gz"))
    ({'sub': '01', 'dir': 'AP'}, 'dwi')
    """
    *pairs, suffix = path.name.split(".", 1)[0].split("_")
    return dict(pair.partition("-")[::2] for pair in pairs), suffix


def applicable_files(image: Path, extension: str, dataset_dir: Path) -> Iterator[Path]:
    """Yield the files that apply to an image, nearest and most specific first."""
    entities, suffix = split_name(image)
    folders = [image.parent, *image.parent.parents]
    for folder in folders[: folders.index(dataset_dir) + 1]:
        found = []
        for candidate in folder.glob(f"*{suffix}{extension}"):
            named, candidate_suffix = split_name(candidate)
            if candidate_suffix == suffix and named.items() <= entities.items():
                found.append((len(named), candidate))
        yield from (path for _, path in sorted(found, reverse=True))


def read_metadata(image: Path, dataset_dir: Path) -> dict[str, Any]:
    """Merge the JSON sidecars that apply to an image; nearer files override farther ones."""
    merged: dict[str, Any] = {}
    for path in reversed(list(applicable_files(image, ".json", dataset_dir))):
        try:
            content = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise ParticipantError(
                expected=f"JSON in {path}", found=str(error), remedy="mend or remove the file"
            ) from None
        if not isinstance(content, dict):
            raise ParticipantError(
                expected=f"a JSON object in {path}",
                found=f"a {type(content).__name__}",
                remedy="put the metadata between braces",
            )
        merged |= content
    return merged
