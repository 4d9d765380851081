"""The BIDS inheritance principle: which bval, bvec and JSON files speak for an image.

A file applies to an image if it lies in the image's folder or above it within the dataset,
has the same suffix, and names no entity with another value. Nearer files win. pybids answers
the same question by a scan of its whole index for every image, which takes hours on large
datasets; here only the few folders above the image are listed.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bids_gevnet.bids.reading import parse_json
from bids_gevnet.errors import ParticipantError


def split_name(path: Path) -> tuple[dict[str, str], str]:
    """Split a BIDS file name into its entities and its suffix.

    >>> split_name(Path("sub-01_dir-AP_dwi.nii.gz"))
    ({'sub': '01', 'dir': 'AP'}, 'dwi')
    """
    *pairs, suffix = path.name.split(".", 1)[0].split("_")
    return dict(pair.partition("-")[::2] for pair in pairs), suffix


class Sidecars:
    """The files of a dataset that speak for its images.

    Folders are listed once: the top folder of a study of thousands would otherwise be listed
    again for each of them.
    """

    def __init__(self, dataset_dir: Path) -> None:
        self.dataset_dir = dataset_dir
        self._listings: dict[Path, list[Path]] = {}

    def applicable(self, image: Path, extension: str) -> Iterator[Path]:
        """Yield the files that apply to an image, nearest and most specific first."""
        entities, suffix = split_name(image)
        folders = [image.parent, *image.parent.parents]
        for folder in folders[: folders.index(self.dataset_dir) + 1]:
            candidates = []
            for candidate in self._list(folder):
                if candidate.name.endswith(f"{suffix}{extension}"):
                    named, candidate_suffix = split_name(candidate)
                    if candidate_suffix == suffix and named.items() <= entities.items():
                        candidates.append((len(named), candidate))
            yield from (path for _, path in sorted(candidates, reverse=True))

    def metadata(self, image: Path) -> dict[str, Any]:
        """Merge the JSON files that apply to an image; nearer files override farther ones."""
        merged: dict[str, Any] = {}
        for path in reversed(list(self.applicable(image, ".json"))):
            try:
                content = parse_json(path)
            except (OSError, ValueError) as error:
                raise ParticipantError(
                    expected=f"JSON in {path}",
                    found=str(error),
                    remedy="correct or remove the file",
                ) from None
            if not isinstance(content, dict):
                raise ParticipantError(
                    expected=f"a JSON object in {path}",
                    found=f"a {type(content).__name__}",
                    remedy="put the metadata between braces",
                )
            merged |= content
        return merged

    def _list(self, folder: Path) -> list[Path]:
        """List what may be a sidecar in a folder; other files and folders are not kept."""
        if folder not in self._listings:
            with os.scandir(folder) as entries:
                self._listings[folder] = [
                    folder / entry.name
                    for entry in entries
                    if entry.name.endswith((".json", ".bval", ".bvec"))
                ]
        return self._listings[folder]


def read_metadata(image: Path, dataset_dir: Path) -> dict[str, Any]:
    """Merge the JSON sidecars that apply to one image."""
    return Sidecars(dataset_dir).metadata(image)
