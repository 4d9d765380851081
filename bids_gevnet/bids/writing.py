"""Write files that appear whole or not at all, and are the same bytes every time.

A file is written under a hidden name in its own folder and renamed when it is complete; a
run that dies leaves at most the hidden part, which the next run writes over. gzip stamps
neither time nor name, so equal content means equal bytes.
"""

import errno
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.errors import ParticipantError

# Noise hardly compresses: level 1 is six times faster than the usual 9 for 3 % more bytes.
_GZIP_LEVEL = 1
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a hidden path to write to, and rename it to `path` if the block succeeds."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno in _DISK_FULL:
            raise ParticipantError(
                expected=f"room on the disk for {path}",
                found="none left",
                remedy="free some space and run the same command again: it goes on from here",
            ) from error
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON with sorted keys."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_image(
    path: Path,
    data: npt.NDArray[Any],
    affine: npt.NDArray[np.float64],
    *,
    scale: float | None = None,
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
    """
    import nibabel as nib

    if scale is not None:
        data = np.clip(np.rint(data / scale), -32768, 32767).astype(np.int16)
    elif data.dtype == np.bool_:
        data = data.astype(np.uint8)
    elif data.dtype == np.float64:
        data = data.astype(np.float32)
    image = nib.Nifti1Image(data, affine)
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    image.header.set_xyzt_units("mm", "sec" if data.ndim == 4 else None)
    if scale is not None:
        # Scaling is set after the data: nibabel would divide by it otherwise.
        image.header.set_slope_inter(scale, 0)
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
