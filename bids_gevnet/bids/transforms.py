"""Tell ITK transform files from broken ones, which crash the library that reads them."""

from pathlib import Path

from bids_gevnet.bids.reading import read_text
from bids_gevnet.errors import ParticipantError

_HEADING = "#Insight Transform File"


def check_transform(path: Path) -> None:
    """Raise a `ParticipantError` unless a file can be an ITK transform, `.h5` or text."""
    try:
        reason = _reason_against(path)
    except (OSError, ValueError) as error:
        reason = str(error)[:200] or type(error).__name__
    if reason:
        raise ParticipantError(
            expected=f"an ITK transform in {path}",
            found=reason,
            remedy="copy the file again, or remove it to estimate the registration instead",
        )


def _reason_against(path: Path) -> str:
    if path.suffix != ".h5":
        return "" if read_text(path).startswith(_HEADING) else f"no line {_HEADING}"
    import h5py

    with h5py.File(path) as stored:
        transforms = stored.get("TransformGroup")
        # Not its numbers: a field of a millimetre has a hundred megabytes. A file that was cut off
        # is noticed when it is opened.
        whole = isinstance(transforms, h5py.Group) and len(transforms)
    return "" if whole else "no group of transforms"
