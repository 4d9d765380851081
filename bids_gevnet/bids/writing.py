"""Write files that appear whole or not at all, and are the same bytes every time.

A file is written under a hidden name of its own in its own folder and renamed when it is
complete, so several processes may write the same file at once: the last one wins. A run that
dies leaves at most the hidden part, which the next writer of that file removes, unless it lies in
a folder of thousands of files. gzip stamps neither time nor name, so equal content means equal
bytes.
"""

import errno
import fcntl
import gzip
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.errors import explain_disk_error

# Noise hardly compresses: level 1 is six times faster than the usual 9 for 3 % more bytes.
_GZIP_LEVEL = 1
_ATTEMPTS = 100
_MOST_ENTRIES = 2000
"""Names read in search of abandoned parts. The reports of 50,000 participants lie in one folder:
to read all names at every write would grow with the square, on the server of a shared disk."""

SCANNER, ALIGNED, MNI152 = 1, 2, 4
"""NIfTI codes of the world: that of the scanner, of another image, of the MNI152 brain."""


@contextmanager
def replacing(path: Path, *, most_entries: int = _MOST_ENTRIES) -> Iterator[Path]:
    """Give a hidden path to write to, and rename it to `path` if the block succeeds.

    Parameters
    ----------
    path : Path
    most_entries : int
        Names of the folder that are read in search of parts that killed writers left.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned_parts(path, most_entries)
        part, lock = _create_part(path)
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
            os.close(lock)
    except OSError as error:
        explained = explain_disk_error(error, path)
        if explained is None:
            raise
        raise explained from error


def _create_part(path: Path) -> tuple[Path, int]:
    """Create a hidden file that nobody else has, and hold a lock on it while it is written."""
    for _ in range(_ATTEMPTS):
        part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        lock = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        # File systems without locks have no tidying either.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Before it was locked, another writer may have taken the part for an abandoned one.
        if os.fstat(lock).st_nlink:
            return part, lock
        os.close(lock)
    raise FileExistsError(errno.EEXIST, "every hidden name was taken", str(path))


def _remove_abandoned_parts(path: Path, most_entries: int) -> None:
    """Remove what writers of this file left when they were killed: nobody holds its lock."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.part")
    with os.scandir(path.parent) as entries:
        found = [entry.name for entry in islice(entries, most_entries)]
    for part in (path.parent / name for name in found if pattern.fullmatch(name)):
        with suppress(OSError), part.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8; half a surrogate pair, which has no bytes there, is escaped."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON with sorted keys."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_image(
    path: Path,
    data: npt.NDArray[Any],
    affine: npt.NDArray[np.float64],
    *,
    scale: float | None = None,
    code: int = SCANNER,
) -> None:
    """Write a NIfTI image, gzipped if its name ends in .gz.

    Parameters
    ----------
    path : Path
    data : (X, Y, Z[, n]) array
        In the type to store; booleans become uint8.
    affine : (4, 4) array
        Voxel to world RAS in mm.
    scale : float, optional
        Store `data` as 16-bit integers in steps of `scale`: half the space of float32 where
        values have a known range.
    code : int
        What the world is: SCANNER, ALIGNED or MNI152.
    """
    import nibabel as nib

    if scale is not None:
        data = np.clip(np.rint(data / scale), -32768, 32767).astype(np.int16)
    elif data.dtype == np.bool_:
        data = data.astype(np.uint8)
    elif data.dtype == np.float64:
        data = data.astype(np.float32)
    image = nib.Nifti1Image(data, affine)
    image.set_qform(affine, code=code)
    image.set_sform(affine, code=code)
    image.header.set_xyzt_units("mm", "sec" if data.ndim == 4 else None)
    # nibabel leaves both NaN where nothing is scaled, and FSL multiplies integers by them. They
    # are set after the data, which nibabel would divide by them otherwise.
    image.header.set_slope_inter(1.0 if scale is None else scale, 0.0)
    with replacing(path) as part, part.open("wb") as raw:
        if path.suffix != ".gz":
            _stream_image(raw, image, data)
            return
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, fileobj=raw, mtime=0) as packed:
            _stream_image(packed, image, data)


def _stream_image(stream: Any, image: Any, data: npt.NDArray[Any]) -> None:
    """Write header and voxels as they are, volume by volume: no second copy in memory."""
    header = image.header.copy()
    header.set_data_offset(352)
    stream.write(header.binaryblock)
    stream.write(b"\0" * (352 - len(header.binaryblock)))
    volumes = np.moveaxis(data, -1, 0) if data.ndim == 4 else data[np.newaxis]
    for volume in volumes:
        stream.write(volume.astype(header.get_data_dtype(), copy=False).tobytes(order="F"))
