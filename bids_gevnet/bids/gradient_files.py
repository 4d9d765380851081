"""Read FSL-style gradient files (bval, bvec) and say precisely what is wrong with them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.reading import read_text
from bids_gevnet.dwi.gradients import unit_directions
from bids_gevnet.dwi.shells import count_directions
from bids_gevnet.errors import ParticipantError

FloatArray = npt.NDArray[np.float64]

MINIMUM_DIRECTIONS = 6
"""Six directions are the least that determine a diffusion tensor."""

UNIT_TOLERANCE = 0.05
"""Largest deviation of a gradient's length from 1; scanners print three to six digits."""

LARGEST_B = 40_000.0
"""In s/mm²: beyond what the strongest gradients reach. Other units start above it: b = 500 s/mm²
is 50,000 s/cm² and 500,000,000 s/m²."""

_SMALL_UNIT_B = 20.0
"""In ms/µm², where b = 1000 s/mm² is 1, no scan has more."""

_MOST_COMPUTED = 4
"""Computed volumes at the end of a series: an ADC map, and a trace image for each shell."""


@dataclass(frozen=True, slots=True)
class GradientTable:
    """Gradients of a series, checked against its image.

    Attributes
    ----------
    bvals : (n,) array
        s/mm².
    bvecs : (n, 3) array
        Unit vectors in voxel axes with FSL's convention on the sign of x; zero for b0s.
    notes : tuple of str
        What was unusual and could be put right.

    The rows belong to the first n volumes of the image: volumes that the scanner has computed
    from the others follow them and have no row.
    """

    bvals: FloatArray
    bvecs: FloatArray
    notes: tuple[str, ...] = ()


def _read_rows(path: Path) -> list[list[float]]:
    try:
        lines = read_text(path).splitlines()
    except PermissionError:
        raise ParticipantError(
            expected=f"permission to read {path}",
            found="none",
            remedy="ask its owner for it, or leave the participant out",
        ) from None
    except (OSError, ValueError) as error:
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
    """Read gradient vectors: three rows as BIDS writes them, or three columns.

    Returns
    -------
    bvecs : (n_volumes, 3) array
        In voxel axes with FSL's convention on the sign of x.
    """
    return _read_vectors(path)[0]


def _read_vectors(path: Path) -> tuple[FloatArray, bool]:
    """Return the vectors (n, 3), and whether the file has one row for each instead of three."""
    rows = _read_rows(path)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ParticipantError(
            expected="three rows of equal length",
            found=f"rows of {', '.join(str(len(row)) for row in rows[:6])} numbers in {path}",
            remedy="complete the short row, or export the gradients again",
        )
    if len(rows) != 3 and lengths != [3]:
        raise ParticipantError(
            expected="three rows (x, y, z) with one column per volume",
            found=f"{len(rows)} rows of {lengths[0]} in {path}",
            remedy="export the gradients again",
        )
    table = np.asarray(rows)
    return (table.T, False) if len(rows) == 3 else (table, True)


def read_gradient_table(
    image: Path, bval: Path, bvec: Path, *, n_volumes: int, b0_threshold: float
) -> GradientTable:
    """Read the gradients of a series, or raise a `ParticipantError` that says what is wrong.

    Parameters
    ----------
    image, bval, bvec : Path
    n_volumes : int
        Length of the image's fourth axis.
    b0_threshold : float
        Volumes up to this b-value are b0s; their vectors are not looked at.
    """
    bvals = read_bval(bval)
    bvecs, is_transposed = _read_vectors(bvec)
    notes = []
    if is_transposed:
        notes.append(f"{bvec.name} has one row per volume instead of three rows: transposed")
    _require_unit(bvals, bvecs, bval=bval, b0_threshold=b0_threshold)
    computed = _count_computed(bvals, bvecs, n_volumes=n_volumes, b0_threshold=b0_threshold)
    if computed:
        kept = n_volumes - computed
        listed = ", ".join(
            f"volume {kept + i} (b = {b:g})" for i, b in enumerate(bvals[kept:].tolist())
        )
        notes.append(
            f"{image.name} ends with {listed}, with diffusion weighting but no direction: what "
            "the scanner computed from the others (trace, ADC), left out"
        )
        bvals, bvecs, n_volumes = bvals[:kept], bvecs[:kept], kept
    check_gradients(
        bvals,
        bvecs,
        n_volumes=n_volumes,
        b0_threshold=b0_threshold,
        image=image,
        bval=bval,
        bvec=bvec,
    )
    return GradientTable(bvals, unit_directions(bvecs, bvals > b0_threshold), tuple(notes))


def holds_only_b0(bval: Path, bvec: Path, *, b0_threshold: float) -> bool:
    """Tell whether a series has no diffusion weighting at all, judging by its gradients."""
    bvals = read_bval(bval)
    _require_unit(bvals, read_bvec(bvec), bval=bval, b0_threshold=b0_threshold)
    return bool((bvals <= b0_threshold).all())


def _require_unit(
    bvals: FloatArray, bvecs: FloatArray, *, bval: Path, b0_threshold: float
) -> None:
    """Refuse b-values that can only be meant in another unit than s/mm²."""
    largest = bvals.max()
    if largest > LARGEST_B:
        raise ParticipantError(
            expected=f"b-values in s/mm², {LARGEST_B:g} at most",
            found=f"{largest:g} in {bval}",
            remedy="write them in s/mm²: divide by 1,000,000 if they are in s/m²",
        )
    # b0s of b = 5 may have directions, too; but then none beside them is smaller by far.
    small = min(_SMALL_UNIT_B, b0_threshold)
    weighted = bvals > largest / 10
    if 0 < largest <= small and not weighted.all() and len(bvals) == len(bvecs):
        directions = count_directions(bvecs[weighted])
        if directions >= MINIMUM_DIRECTIONS:
            raise ParticipantError(
                expected="b-values in s/mm²",
                found=f"{largest:g} as the largest, with {directions} gradient directions, in "
                f"{bval}",
                remedy="write them in s/mm²: multiply by 1000 if they are in ms/µm²",
            )


def _count_computed(
    bvals: FloatArray, bvecs: FloatArray, *, n_volumes: int, b0_threshold: float
) -> int:
    """Count the volumes at the end that have diffusion weighting and no direction.

    Their vector is zero, or the table has one vector less than b-values. More than a few are no
    computed images but a table that has lost its directions.
    """
    if len(bvals) != n_volumes:
        return 0
    if len(bvecs) == n_volumes - 1:
        return int(bvals[-1] > b0_threshold)
    if len(bvecs) != n_volumes:
        return 0
    without = (bvals > b0_threshold) & ~np.any(bvecs, axis=1)
    count = n_volumes if without.all() else int(np.argmin(without[::-1]))
    return count if count <= _MOST_COMPUTED else 0


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
            "remove volumes that are averages over directions (trace images) from image, bval "
            "and bvec",
        )
    directions = count_directions(bvecs[weighted])
    if directions < MINIMUM_DIRECTIONS:
        raise ParticipantError(
            expected=f"at least {MINIMUM_DIRECTIONS} different gradient directions",
            found=f"{directions} in {bvec}",
            remedy="leave this series out with --bids-filter-file; no sphere can be sampled "
            "from it",
        )
