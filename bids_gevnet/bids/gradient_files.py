"""Read FSL-style gradient files (bval, bvec) and say precisely what is wrong with them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from bids_gevnet.errors import ParticipantError

FloatArray = npt.NDArray[np.float64]

MINIMUM_DIRECTIONS = 6
"""Six directions are the least that determine a diffusion tensor."""

UNIT_TOLERANCE = 0.05
"""Largest deviation of a gradient's length from 1; scanners print three to six digits."""


def _read_rows(path: Path) -> list[list[float]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ParticipantError(
            expected="a readable text file of numbers",
            found=f"{path} ({error})",
            remedy="export the gradients again from the scanner's DICOM files",
        ) from None
    rows: list[list[float]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append([float(word) for word in line.replace(",", " ").split()])
        except ValueError:
            raise ParticipantError(
                expected="numbers separated by spaces",
                found=f"{line.strip()[:60]!r} in line {number} of {path}",
                remedy="remove what is not a number, or export the gradients again",
            ) from None
    if not rows:
        raise ParticipantError(
            expected="one number per volume",
            found=f"the empty file {path}",
            remedy="export the gradients again from the scanner's DICOM files",
        )
    return rows


def read_bval(path: Path) -> FloatArray:
    """Read b-values.

    Returns
    -------
    bvals : (n_volumes,) array
        In s/mm².
    """
    rows = _read_rows(path)
    # A single column is a common dialect and cannot be misread.
    values = rows[0] if len(rows) == 1 else [row[0] for row in rows]
    if len(rows) > 1 and any(len(row) != 1 for row in rows):
        raise ParticipantError(
            expected="one row of b-values",
            found=f"{len(rows)} rows in {path}",
            remedy="write all b-values in one row, one number per volume",
        )
    bvals = np.asarray(values)
    if not np.isfinite(bvals).all() or (bvals < 0).any():
        wrong = int(np.flatnonzero(~np.isfinite(bvals) | (bvals < 0))[0])
        raise ParticipantError(
            expected="b-values that are finite and not negative",
            found=f"{bvals[wrong]} for volume {wrong} in {path}",
            remedy="correct that value or remove the volume from image, bval and bvec",
        )
    return bvals


def read_bvec(path: Path) -> FloatArray:
    """Read gradient vectors as BIDS writes them: three rows, one column per volume.

    Returns
    -------
    bvecs : (n_volumes, 3) array
        In voxel axes with FSL's convention on the sign of x.
    """
    rows = _read_rows(path)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ParticipantError(
            expected="three rows of equal length",
            found=f"rows of {', '.join(str(len(row)) for row in rows[:6])} numbers in {path}",
            remedy="complete the short row, or export the gradients again",
        )
    if len(rows) != 3:
        transposed = lengths == [3]
        raise ParticipantError(
            expected="three rows (x, y, z) with one column per volume",
            found=f"{len(rows)} rows of {lengths[0]} in {path}",
            remedy="transpose the file" if transposed else "export the gradients again",
        )
    return np.asarray(rows).T


def check_gradients(
    bvals: FloatArray,
    bvecs: FloatArray,
    *,
    n_volumes: int,
    b0_threshold: float,
    image: Path,
    bval: Path,
    bvec: Path,
) -> None:
    """Raise a `ParticipantError` unless the table fits the image and can be used.

    Parameters
    ----------
    bvals : (n,) array
    bvecs : (m, 3) array
    n_volumes : int
        Length of the image's fourth axis.
    b0_threshold : float
        Volumes up to this b-value are b0s; their vectors are not looked at.
    image, bval, bvec : Path
        Named in the messages.
    """
    if not len(bvals) == len(bvecs) == n_volumes:
        raise ParticipantError(
            expected="as many b-values and gradient vectors as volumes",
            found=(
                f"{n_volumes} volumes in {image}, {len(bvals)} b-values in {bval.name}, "
                f"{len(bvecs)} vectors in {bvec.name}"
            ),
            remedy="find out which volume was dropped and restore or remove it in all three files",
        )
    weighted = bvals > b0_threshold
    if weighted.all():
        raise ParticipantError(
            expected=f"at least one b0 (b ≤ {b0_threshold:g} s/mm²)",
            found=f"a smallest b-value of {bvals.min():g} in {bval}",
            remedy="add a b0 to the series, or raise --b0-threshold if that volume is one",
        )
    lengths = np.linalg.norm(bvecs, axis=1)
    wrong = weighted & ~(np.abs(lengths - 1) <= UNIT_TOLERANCE)  # NaN lengths are wrong, too
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        vector = " ".join(f"{value:g}" for value in bvecs[first])
        raise ParticipantError(
            expected="gradient vectors of length 1",
            found=f"({vector}) for volume {first} (b = {bvals[first]:g}) in {bvec}"
            + (f", and {wrong.sum() - 1} more like it" if wrong.sum() > 1 else ""),
            remedy="correct the vectors; where the length encodes b, move it into the bval file; "
            "remove volumes that are averages over directions (trace images)",
        )
    directions = count_directions(bvecs[weighted])
    if directions < MINIMUM_DIRECTIONS:
        raise ParticipantError(
            expected=f"at least {MINIMUM_DIRECTIONS} different gradient directions",
            found=f"{directions} in {bvec}",
            remedy="leave this series out with --bids-filter-file; no sphere can be sampled "
            "from it",
        )


def count_directions(bvecs: FloatArray) -> int:
    """Count distinct axes among unit vectors: g and -g are one, and so is a repeat within 1°.

    Parameters
    ----------
    bvecs : (n, 3) array
    """
    remaining = bvecs
    count = 0
    while len(remaining):
        count += 1
        remaining = remaining[np.abs(remaining @ remaining[0]) < np.cos(np.deg2rad(1.0))]
    return count
