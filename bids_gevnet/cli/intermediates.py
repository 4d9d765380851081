"""Intermediate files that are no longer what their stage left: the stage runs again."""

import gzip
import json
import logging
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.bids.writing import write_json

_SEAL = "_sha256.json"
"""Hash of every file that a stage left. Nipype compares times and sizes, which a disk that turns
a bit leaves as they are."""

log = logging.getLogger("bids_gevnet")


def seal_stage(stage: Path) -> None:
    """Write the hashes of a stage's files, unless they are those of an earlier run."""
    seal = stage / _SEAL
    if not seal.exists():
        write_json(seal, {path.name: hash_file(path) for path in _results(stage)})


def discard_damaged_stages(folder: Path) -> None:
    """Remove the stages below a folder whose files are damaged or were changed afterwards.

    Nipype trusts what it finds and stops at a record that it cannot read. A stage is damaged if
    its record does not decompress, and changed if one of its files is newer than its record,
    which is written last, or is not what `seal_stage` found.
    """
    for record in list(folder.rglob("result_*.pklz")):
        stage = record.parent
        if stage.is_dir() and not _is_whole(stage, record):
            log.warning("%s is damaged or was changed, so that stage runs again", stage)
            shutil.rmtree(stage, ignore_errors=True)


def _is_whole(stage: Path, record: Path) -> bool:
    try:
        for path in stage.glob("*.pklz"):
            if path.stat().st_size == 0:  # which decompresses to nothing, without an error
                return False
            with gzip.open(path) as stream:  # read to the checksum at its end, not unpickled
                while stream.read(1 << 20):
                    pass
        written_ns = record.stat().st_mtime_ns
        if any(path.stat().st_mtime_ns > written_ns for path in _results(stage)):
            return False
        seal = stage / _SEAL
        hashes = json.loads(seal.read_text(encoding="utf-8")) if seal.exists() else {}
        return all(hash_file(stage / name) == text for name, text in hashes.items())
    except (OSError, EOFError, ValueError, AttributeError, zlib.error):
        return False


def _results(stage: Path) -> Iterator[Path]:
    """Files that a stage made; those of Nipype's own that are written last begin with `_`."""
    return (
        path
        for path in sorted(stage.iterdir())
        if path.is_file() and not path.name.startswith("_")
    )
