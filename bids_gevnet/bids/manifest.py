"""What a finished participant owns: every file with its size and hash, and what it was made from.

A file on disk is trusted where size and time are those of the manifest, and hashed where they are
not: copies keep their content but rarely their time. What is finished is what the manifest says
and the disk confirms.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_json

_FORMAT = "bids_gevnet manifest 1"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: bytes, nanoseconds since the epoch, SHA-256."""

    size: int
    time_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one participant.

    Parameters
    ----------
    made_from : str
        Hash of the input and the settings that they follow from.
    files : dict of str to FileRecord
        By path relative to the output folder.
    inputs : dict of str to FileRecord
        Images that they were made from, by name: datasets move, and keep their names.
    """

    made_from: str
    files: dict[str, FileRecord]
    inputs: dict[str, FileRecord] = field(default_factory=dict)

    def damaged(self, root: Path) -> list[str]:
        """Name the files that are missing or changed, sorted."""
        return sorted(
            name for name, record in self.files.items() if not _is_same(root / name, record)
        )

    def changed_inputs(self, images: Iterable[Path]) -> list[str]:
        """Name those of the images that are no longer what the files were made from, sorted."""
        return sorted(
            image.name
            for image in images
            if image.name in self.inputs and not _is_same(image, self.inputs[image.name])
        )


def participant_files(root: Path, label: str) -> Iterable[Path]:
    """List what belongs to a participant: the folder of its derivatives and its report."""
    folder = root / f"sub-{label}"
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())
    if (root / f"sub-{label}.html").is_file():
        yield root / f"sub-{label}.html"


def write_manifest(
    path: Path, root: Path, label: str, *, made_from: str, inputs: Iterable[Path] = ()
) -> None:
    """Record all files of a participant as they are now.

    Parameters
    ----------
    path : Path
        Where the manifest goes.
    root : Path
        The output folder.
    label : str
        The participant's, without "sub-".
    made_from : str
        Hash of what the files follow from.
    inputs : iterable of Path
        Images that they were made from.
    """
    files = {
        str(file.relative_to(root)): asdict(_record(file))
        for file in participant_files(root, label)
    }
    images = {image.name: asdict(_record(image)) for image in inputs}
    content = {"format": _FORMAT, "made_from": made_from, "files": files, "inputs": images}
    write_json(path, content)


def record_again(path: Path, root: Path, files: Iterable[Path]) -> None:
    """Record files that were written anew on purpose, if there is a manifest that lists them."""
    manifest = read_manifest(path)
    if manifest is None:
        return
    renewed = {str(file.relative_to(root)): _record(file) for file in files}
    records = manifest.files | {k: v for k, v in renewed.items() if k in manifest.files}
    content = asdict(replace(manifest, files=records))
    write_json(path, {"format": _FORMAT, **content})


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if there is none that can be read."""
    content = read_json(path)
    try:
        if content["format"] != _FORMAT:
            return None
        files, inputs = (_read_records(content.get(key, {})) for key in ("files", "inputs"))
        return Manifest(str(content["made_from"]), files, inputs)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read_records(table: Any) -> dict[str, FileRecord]:
    return {
        str(name): FileRecord(int(r["size"]), int(r["time_ns"]), str(r["sha256"]))
        for name, r in table.items()
    }


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _record(path: Path) -> FileRecord:
    status = path.stat()
    return FileRecord(status.st_size, status.st_mtime_ns, hash_file(path))


def _is_same(path: Path, record: FileRecord) -> bool:
    try:
        status = path.stat()
        if status.st_size != record.size:
            return False
        return status.st_mtime_ns == record.time_ns or hash_file(path) == record.sha256
    except OSError:
        return False
