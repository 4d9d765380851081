"""Tell broken images from whole ones, without reading gigabytes where a few bytes will do.

Headers are checked when a dataset is listed. Whether the voxels are whole shows only when they
are decompressed: `load_image`, through which all of them come, reads every file to its end.
"""

import errno
import gzip
import struct
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.dwi.conform import drop_unit_axes
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.errors import ParticipantError

_CHUNK_BYTES = 1 << 22
_GZIP_RATIO = 1032
"""The deflate format cannot compress by more than this."""

_MOST_TRAILING_BYTES = 1 << 20
"""Padding behind the last voxel that is still taken for an accident."""

SMALLEST_VOXEL_MM, LARGEST_VOXEL_MM = 0.3, 10.0
LARGEST_EXTENT_MM = 600.0
"""Head coils see half a metre at most."""

_COPY_AGAIN = "copy or convert the file again"
_LEAVE_OUT = "convert the scan again, or leave it out with --bids-filter-file"


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the header of a usable image says.

    Attributes
    ----------
    shape : tuple of int
        Three or four axes.
    affine : (4, 4) array
        Voxel to world RAS in mm.
    stored_shape : tuple of int
        As in the file, which may have further axes of length 1.
    """

    shape: tuple[int, ...]
    affine: npt.NDArray[np.float64]
    stored_shape: tuple[int, ...]


def check_image(path: Path) -> tuple[int, ...]:
    """Return the shape of a usable NIfTI image, or raise a `ParticipantError` that says why not.

    Axes of length 1 behind the fourth are left out.
    """
    return read_header(path).shape


def read_header(path: Path) -> ImageHeader:
    """Read the header of a NIfTI image, or raise a `ParticipantError` that says what is wrong.

    A truncated file is found from its length: uncompressed files by their size on disk,
    gzipped ones by the size that gzip notes in its last four bytes. Only where that note
    disagrees (it does, too, for the rare file of several gzip members) the file is read.
    """
    _require_file(path)
    header, affine, offset = _parse(path)
    kind = header.get_data_dtype()
    stored_shape = tuple(int(n) for n in header.get_data_shape())
    _require_numbers(path, kind)
    expected_bytes = offset + int(kind.itemsize) * prod(stored_shape)
    _require_bytes(path, expected_bytes)
    shape = drop_unit_axes(stored_shape)
    if min(shape[:3], default=0) < 2 or len(shape) < 3:
        raise ParticipantError(
            expected="volumes with several slices",
            found=f"shape {'x'.join(map(str, shape))} in {path}",
            remedy="leave the file out with --bids-filter-file; one slice cannot be registered",
        )
    _require_head_sized(path, shape, affine)
    return ImageHeader(shape, affine, stored_shape)


def read_voxel_mm(path: Path) -> tuple[float, float, float]:
    """Read the voxel size of an image from its header, in mm."""
    from nibabel import Nifti1Image
    from nibabel.affines import voxel_sizes

    x, y, z = voxel_sizes(Nifti1Image.from_filename(path).affine)
    return float(x), float(y), float(z)


def require_series(path: Path, shape: tuple[int, ...]) -> int:
    """Return the number of volumes of a series of that shape, or raise a `ParticipantError`."""
    if len(shape) != 4 or shape[3] < 2:
        raise ParticipantError(
            expected="a diffusion series with four axes and several volumes",
            found=f"shape {'x'.join(map(str, shape))} in {path}",
            remedy="leave the file out with --bids-filter-file, or merge the volumes into one "
            "series",
        )
    return shape[3]


def load_image(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Read an image to its end, so that a damaged file never passes for a scan.

    Uncompressed files are mapped into memory. Of gzipped ones the checksum is compared, which
    comes behind the last voxel; a reader that stops at that voxel takes any garbage for data.

    Returns
    -------
    data : (X, Y, Z[, n]) array
        As stored; axes of length 1 behind the fourth are left out.
    affine : (4, 4) array
        Voxel to world RAS in mm.
    """
    import nibabel as nib

    _require_file(path)
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                image = nib.Nifti1Image.from_stream(stream)
                data = np.asanyarray(image.dataobj)
                _read_to_end(stream)
        else:
            image = nib.load(path)
            data = np.asanyarray(image.dataobj)
    except _unreadable() as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError(f"cannot allocate memory for {path}") from None
        raise ParticipantError(
            expected="an image that can be read to its end",
            found=f"{path}, whose content is damaged ({str(error) or type(error).__name__})",
            remedy=_COPY_AGAIN,
        ) from None
    return data.reshape(drop_unit_axes(data.shape)), np.asarray(image.affine, dtype=np.float64)


def _unreadable() -> tuple[type[Exception], ...]:
    """Return what nibabel and gzip raise for files that are no images, or not any more."""
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError

    of_nibabel = (ImageFileError, HeaderDataError, WrapStructError)
    of_python = (OSError, EOFError, ValueError, ArithmeticError, LookupError, TypeError)
    return (*of_nibabel, *of_python, zlib.error)


def _require_file(path: Path) -> None:
    """Refuse what is no regular file: a link to nothing, or a device that never ends."""
    if path.is_file():
        return
    if path.is_symlink() and not path.exists():
        raise ParticipantError(
            expected=f"the file {path}",
            found="a link to a file that is not there",
            remedy="fetch it (datalad get, git annex get); in a container, mount the folder that "
            "the link points to",
        )
    raise ParticipantError(
        expected=f"the file {path}",
        found="something that is no regular file" if path.exists() else "none",
        remedy=f"{_COPY_AGAIN}, or delete the --bids-database-dir if the dataset has changed",
    )


def _parse(path: Path) -> tuple[Any, npt.NDArray[np.float64], int]:
    """Return header, affine and offset of the first voxel."""
    from nibabel import Nifti1Image
    from nibabel.imageglobals import LoggingOutputSuppressor

    try:
        with LoggingOutputSuppressor():  # it prints what it then raises, without the file's name
            image = Nifti1Image.from_filename(path)
        return image.header, np.asarray(image.affine, np.float64), int(image.dataobj.offset)
    except _unreadable() as error:
        raise ParticipantError(
            expected="a NIfTI image",
            found=f"{path}, which cannot be read ({str(error) or type(error).__name__})",
            remedy=_COPY_AGAIN,
        ) from None


def _require_numbers(path: Path, kind: np.dtype[Any]) -> None:
    """Refuse colours, complex numbers, and numbers that only some machines know."""
    if kind.kind in "iuf" and kind.itemsize <= 8:
        return
    what = "colours (RGB)" if kind.names else f"numbers of type {kind.name}"
    raise ParticipantError(
        expected="integers or floating-point numbers of 64 bits at most",
        found=f"{what} in {path}",
        remedy="convert the scan again and store its magnitude",
    )


def _require_bytes(path: Path, expected_bytes: int) -> None:
    found_bytes = _stored_bytes(path, expected_bytes)
    if found_bytes < expected_bytes:
        raise ParticipantError(
            expected=f"{expected_bytes} bytes of image, as the header announces",
            found=f"{found_bytes} in {path}, which is truncated",
            remedy=_COPY_AGAIN,
        )
    if found_bytes > expected_bytes + _MOST_TRAILING_BYTES:
        raise ParticipantError(
            expected=f"{expected_bytes} bytes of image, as the header announces",
            found=f"at least {found_bytes} in {path}",
            remedy=_COPY_AGAIN,
        )


def _stored_bytes(path: Path, expected_bytes: int) -> int:
    """Bytes of header and image in a file, read only if the cheap answer is not `expected`."""
    size = path.stat().st_size
    if path.suffix != ".gz":
        return size
    if size * _GZIP_RATIO < expected_bytes:
        return size * _GZIP_RATIO
    with path.open("rb") as stream:
        stream.seek(-4, 2)
        (noted,) = struct.unpack("<I", stream.read(4))
    if noted == expected_bytes % 2**32:
        return expected_bytes
    total = 0
    try:
        with gzip.open(path) as unpacked:
            # No further than needed to know: a few bytes may unpack to terabytes.
            while total <= expected_bytes + _MOST_TRAILING_BYTES and (
                chunk := unpacked.read(_CHUNK_BYTES)
            ):
                total += len(chunk)
    except (EOFError, zlib.error, OSError):
        # What could be read up to the break is what counts as found, and it is never enough:
        # a stream that breaks after the last voxel has lost only its checksum, but gzip
        # cannot vouch for the voxels then.
        return min(total, expected_bytes - 1)
    return total


def _read_to_end(stream: gzip.GzipFile) -> None:
    """Read what follows the last voxel, which makes gzip compare its checksum."""
    total = 0
    while chunk := stream.read(_CHUNK_BYTES):
        total += len(chunk)
        if total > _MOST_TRAILING_BYTES:
            raise ValueError("it goes on long after the last voxel that its header announces")


def _require_head_sized(
    path: Path, shape: tuple[int, ...], affine: npt.NDArray[np.float64]
) -> None:
    """Refuse headers that no scan of a head has, before they ask for all memory there is."""
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        numbers = np.array2string(affine[:3], precision=3, separator=" ").replace("\n", "")
        raise ParticipantError(
            expected="a header that says where the voxels are",
            found=f"the affine {numbers} in {path}",
            remedy=_LEAVE_OUT,
        )
    sizes = voxel_sizes(affine)
    extents = sizes * shape[:3]
    if sizes.min() < SMALLEST_VOXEL_MM or sizes.max() > LARGEST_VOXEL_MM:
        raise ParticipantError(
            expected=f"voxels of {SMALLEST_VOXEL_MM:g} to {LARGEST_VOXEL_MM:g} mm, as scans of "
            "heads have them",
            found=f"{_times(sizes)} mm in {path}",
            remedy=f"check the unit in the header, which must be mm; {_LEAVE_OUT}",
        )
    if extents.max() > LARGEST_EXTENT_MM:
        raise ParticipantError(
            expected=f"a field of view of {LARGEST_EXTENT_MM:g} mm at most",
            found=f"{_times(extents)} mm in {path}",
            remedy=_LEAVE_OUT,
        )


def _times(numbers: npt.NDArray[np.float64]) -> str:
    return " x ".join(f"{number:.3g}" for number in numbers)
