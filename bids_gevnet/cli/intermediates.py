"""Intermediate files that are no longer what their stage left: the stage runs again."""

import gzip
import logging
import shutil
import zlib
from pathlib import Path

log = logging.getLogger("bids_gevnet")


def discard_damaged_stages(folder: Path) -> None:
    """Remove the stages below a folder whose files are damaged or were changed afterwards.

    Nipype trusts what it finds and stops at a record that it cannot read. A stage is damaged if
    its record does not decompress, and changed if one of its files is newer than its record,
    which is written last.
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
        return all(
            path.stat().st_mtime_ns <= written_ns
            for path in stage.iterdir()
            if path.is_file() and not path.name.startswith("_")
        )
    except (OSError, EOFError, zlib.error):
        return False
