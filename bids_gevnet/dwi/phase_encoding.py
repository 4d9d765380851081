"""Phase encoding and readout time from BIDS metadata, with what to do when they are missing.

Philips, GE and many old conversions lack TotalReadoutTime, and some PhaseEncodingDirection. Each
fallback is a sentence that the report shows.

FSL's table of acquisition parameters (acqp) has one row per phase-encoding direction and readout
time: a unit vector in voxel axes and seconds. A wrong readout time common to all rows scales the
field that is estimated and not the displacement, so a stated dummy does no harm to the corrected
images; it does when rows have different times, or when a field map in Hz comes from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

DUMMY_READOUT_S = 0.05
_LONGEST_READOUT_S = 1.0
"""A readout of a second or more is milliseconds written as seconds."""

_VECTORS = {"i": (1, 0, 0), "j": (0, 1, 0), "k": (0, 0, 1)}


@dataclass(frozen=True)
class ReadoutTime:
    """Total readout time in seconds, and where it comes from."""

    seconds: float
    source: str
    is_dummy: bool = False


@dataclass(frozen=True)
class PhaseEncoding:
    """Phase-encoding direction in BIDS spelling ("j-"), and where it comes from."""

    direction: str
    source: str
    is_guess: bool = False

    @property
    def vector(self) -> tuple[int, int, int]:
        """Unit vector in voxel axes."""
        x, y, z = _VECTORS[self.direction[0]]
        sign = -1 if self.direction.endswith("-") else 1
        return sign * x, sign * y, sign * z


def _positive(metadata: Mapping[str, Any], key: str) -> float | None:
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) and value > 0 else None


def _readout_candidates(
    metadata: Mapping[str, Any], fallback_s: float | None
) -> list[tuple[float | None, str]]:
    lines = _positive(metadata, "ReconMatrixPE")
    spacing = _positive(metadata, "EffectiveEchoSpacing")
    estimated = _positive(metadata, "EstimatedEffectiveEchoSpacing")
    return [
        (_positive(metadata, "TotalReadoutTime"), "TotalReadoutTime"),
        (
            spacing * (lines - 1) if spacing and lines else None,
            "EffectiveEchoSpacing x (ReconMatrixPE - 1)",
        ),
        (
            _positive(metadata, "EstimatedTotalReadoutTime"),
            "EstimatedTotalReadoutTime, an estimate of the converter",
        ),
        (
            estimated * (lines - 1) if estimated and lines else None,
            "EstimatedEffectiveEchoSpacing x (ReconMatrixPE - 1), an estimate of the converter",
        ),
        (fallback_s, "the command line (--fallback-total-readout-time)"),
    ]


def readout_time(metadata: Mapping[str, Any], fallback_s: float | None = None) -> ReadoutTime:
    """Return the total readout time by the first of the known ways that works.

    Parameters
    ----------
    metadata : mapping
        The sidecar of the scan, inheritance resolved.
    fallback_s : float, optional
        What the user gave for scans without any.

    Returns
    -------
    readout : ReadoutTime
    """
    skipped = ""
    for seconds, source in _readout_candidates(metadata, fallback_s):
        if seconds is None:
            continue
        if seconds < _LONGEST_READOUT_S:
            return ReadoutTime(seconds, f"{seconds:.4g} s from {source}{skipped}")
        skipped += f" ({source} of {seconds:g} s is not believable and was passed over)"
    return ReadoutTime(
        DUMMY_READOUT_S,
        f"{DUMMY_READOUT_S:g} s, a dummy: the sidecar has no usable readout time{skipped}",
        is_dummy=True,
    )


def phase_encoding(metadata: Mapping[str, Any], guess: str = "j") -> PhaseEncoding:
    """Return the phase-encoding direction, or a guess that says it is one.

    Parameters
    ----------
    metadata : mapping
        The sidecar of the scan.
    guess : str
        Direction when the sidecar has none; most brain scans are encoded along the second axis.

    Returns
    -------
    encoding : PhaseEncoding
    """
    stated = metadata.get("PhaseEncodingDirection")
    if stated is not None:
        if str(stated) not in {axis + sign for axis in _VECTORS for sign in ("", "-")}:
            raise ParticipantError(
                expected="a PhaseEncodingDirection of i, i-, j, j-, k or k-",
                found=repr(stated),
                remedy="repair the sidecar of the scan",
            )
        return PhaseEncoding(str(stated), f"{stated} from PhaseEncodingDirection")
    axis = metadata.get("PhaseEncodingAxis")
    if isinstance(axis, str) and axis[:1] in _VECTORS:
        return PhaseEncoding(
            axis[0],
            f"{axis[0]} from PhaseEncodingAxis; its sign is not in the sidecar and was taken as +",
            is_guess=True,
        )
    return PhaseEncoding(
        guess,
        f"{guess}, a guess: the sidecar has no PhaseEncodingDirection",
        is_guess=True,
    )


def reorder_phase_encoding(
    direction: str, axes: tuple[int, int, int], signs: tuple[int, int, int]
) -> str:
    """Return the direction in the axes of an image that was reordered.

    Parameters
    ----------
    direction : str
        In the voxel axes before, BIDS spelling.
    axes, signs : (int, int, int)
        From :func:`bids_gevnet.dwi.conform.ras_order`.

    Returns
    -------
    direction : str
    """
    old = "ijk".index(direction[0])
    new = axes.index(old)
    negative = direction.endswith("-") != (signs[new] < 0)
    return "ijk"[new] + ("-" if negative else "")


def are_opposite(first: str, second: str) -> bool:
    """Tell whether two directions lie on one axis and point apart."""
    return first[0] == second[0] and first != second


def acquisition_rows(
    encodings: Sequence[tuple[tuple[int, int, int], float]],
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return FSL's acqp table and the index of each volume into it.

    Parameters
    ----------
    encodings : sequence of ((int, int, int), float), one per volume
        Phase-encoding vector in voxel axes and readout time in seconds.

    Returns
    -------
    acqp : (rows, 4) array
        One row per combination that occurs, in order of appearance.
    index : (n,) array of int
        Counted from 1, as FSL does.
    """
    rows: dict[tuple[float, ...], int] = {}
    index = [
        rows.setdefault((*map(float, vector), round(seconds, 6)), len(rows) + 1)
        for vector, seconds in encodings
    ]
    return np.array(list(rows), dtype=np.float64), np.array(index, dtype=np.intp)
