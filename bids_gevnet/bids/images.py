"""Tell broken images from whole ones, without reading gigabytes where a few bytes will do."""

import gzip
import struct
import zlib
from pathlib import Path

from bids_gevnet.errors import ParticipantError

_CHUNK_BYTES = 1 << 22


def check_image(path: Path) -> tuple[int, ...]:
    """Return the shape of a whole NIfTI image, or raise a `ParticipantError` that says why not.

    A truncated file is found from its length: uncompressed files by their size on disk,
    gzipped ones by the size that gzip notes in its last four bytes. Only where that note
    disagrees (it does, too, for the rare file of several gzip members) the file is read.
    """
    from nibabel import Nifti1Image
    from nibabel.filebasedimages import ImageFileError
    from nibabel.wrapstruct import WrapStructError

    try:
        image = Nifti1Image.from_filename(path)
        header = image.header
        shape = tuple(int(n) for n in image.shape)
        expected_bytes = int(image.dataobj.offset) + (
            int(header.get_data_dtype().itemsize) * _product(shape)
        )
    except (OSError, EOFError, zlib.error, ValueError, ImageFileError, WrapStructError) as error:
        raise ParticipantError(
            expected="a NIfTI image",
            found=f"{path}, which cannot be read ({str(error) or type(error).__name__})",
            remedy="copy or convert the file again",
        ) from None
    found_bytes = _stored_bytes(path, expected_bytes)
    if found_bytes < expected_bytes:
        raise ParticipantError(
            expected=f"{expected_bytes} bytes of image, as the header announces",
            found=f"{found_bytes} in {path}, which is truncated",
            remedy="copy or convert the file again",
        )
    if min(shape[:3], default=0) < 2 or len(shape) < 3:
        raise ParticipantError(
            expected="volumes with several slices",
            found=f"shape {'x'.join(map(str, shape))} in {path}",
            remedy="leave the file out with --bids-filter-file; one slice cannot be registered",
        )
    return shape


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


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _stored_bytes(path: Path, expected_bytes: int) -> int:
    """Bytes of header and image in a file, read only if the cheap answer is not `expected`."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(-4, 2)
        (noted,) = struct.unpack("<I", stream.read(4))
    if noted == expected_bytes % 2**32:
        return expected_bytes
    total = 0
    try:
        with gzip.open(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                total += len(chunk)
    except (EOFError, zlib.error, OSError):
        # What could be read up to the break is what counts as found, and it is never enough:
        # a stream that breaks after the last voxel has lost only its checksum, but gzip
        # cannot vouch for the voxels then.
        return min(total, expected_bytes - 1)
    return total
