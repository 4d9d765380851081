"""Phase encoding and readout time from BIDS metadata, with what to do when they are missing.

Philips, GE and many old conversions lack TotalReadoutTime, and some PhaseEncodingDirection. Each
fallback is a sentence that the report shows.

FSL's table of acquisition parameters (acqp) has one row per phase-encoding direction and readout
time: a unit vector in voxel axes and seconds. A wrong readout time common to all rows scales the
field that is estimated and not the displacement, so a stated dummy does no harm to the corrected
images; it does when rows have different times, or when a field map in Hz comes from elsewhere.

Some scanners state the axis and not its sign. Then the way the protocol was called tells it, "AP"
for instance: from anterior to posterior, which is "j-" where voxels are counted towards anterior.
A sign that nobody tells is unknown, and unknown is never taken for equal.
"""

from __future__ import annotations

import enum
import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.conform import ras_order
from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

DUMMY_READOUT_S = 0.05
_LONGEST_READOUT_S = 1.0
"""A readout of a second or more is milliseconds written as seconds."""

_NO_NUMBER = 1e300

_VECTORS = {"i": (1, 0, 0), "j": (0, 1, 0), "k": (0, 0, 1)}
_DIRECTIONS = tuple(axis + sign for axis in _VECTORS for sign in ("", "-"))

_WORLD = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1),
          "H": (2, 1), "F": (2, -1)}  # fmt: skip
"""Letters of anatomical directions: world axis and sign in RAS; H and F are head and feet."""

_PAIRS = "AP|PA|LR|RL|HF|FH|SI|IS"
_WORDS = re.compile(rf"(?<![A-Za-z])(?:{_PAIRS}|ap|pa|lr|rl)(?![A-Za-z])")
"""Directions in running text; "is" and "si" are words of other meaning in small letters."""

LEAST_SHARE_EXPLAINED = 0.5
"""Share of the disagreement of two b0s that a field has to explain to make them opposite. It
explained 0.75 between the b0s of two real pairs (UIH, Siemens), and at most 0.3 between a b0 and
its own copy after 2° of motion and noise."""


@dataclass(frozen=True)
class ReadoutTime:
    """Total readout time in seconds, and where it comes from."""

    seconds: float
    source: str
    is_dummy: bool = False


@dataclass(frozen=True)
class PhaseEncoding:
    """Phase-encoding direction in BIDS spelling ("j-"), and where it comes from.

    ``is_guess`` where the sidecar does not tell the direction, or not its sign, and nothing else
    does; ``is_inferred`` where the protocol's name told it; ``axis_is_guess`` where not even the
    axis is told.
    """

    direction: str
    source: str
    is_guess: bool = False
    is_inferred: bool = False
    axis_is_guess: bool = False

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
    # Compared before it is converted: JSON may hold integers that no float can.
    return float(value) if 0 < value < _NO_NUMBER else None


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
    skipped = "".join(f" ({text})" for text in disbelieved_readouts(metadata))
    for seconds, source in _readout_candidates(metadata, fallback_s):
        if seconds is not None and seconds < _LONGEST_READOUT_S:
            return ReadoutTime(seconds, f"{seconds:.4g} s from {source}{skipped}")
    return ReadoutTime(
        DUMMY_READOUT_S,
        f"{DUMMY_READOUT_S:g} s, a dummy: the sidecar has no usable readout time{skipped}",
        is_dummy=True,
    )


def disbelieved_readouts(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the readout times of a sidecar that are passed over, because they cannot be right.

    >>> disbelieved_readouts({"TotalReadoutTime": 49.5})
    ('TotalReadoutTime of 49.5 s is not believable and was passed over',)
    """
    no_numbers = [
        f"{key} of {reprlib.repr(metadata[key])}"
        for key in ("TotalReadoutTime", "EstimatedTotalReadoutTime")
        if metadata.get(key) is not None and _positive(metadata, key) is None
    ]
    too_long = [
        f"{source} of {seconds:g} s"
        for seconds, source in _readout_candidates(metadata, None)
        if seconds is not None and seconds >= _LONGEST_READOUT_S
    ]
    return tuple(f"{text} is not believable and was passed over" for text in no_numbers + too_long)


def is_direction(value: object) -> bool:
    """Tell whether a value is one of the directions that BIDS knows: i, i-, j, j-, k, k-."""
    return isinstance(value, str) and value in _DIRECTIONS


def phase_encoding(
    metadata: Mapping[str, Any],
    guess: str = "j",
    *,
    label: str = "",
    affine: ArrayLike | None = None,
) -> PhaseEncoding:
    """Return the phase-encoding direction, or a guess that says it is one.

    Parameters
    ----------
    metadata : mapping
        The sidecar of the scan.
    guess : str
        Direction when nothing tells it; most brain scans are encoded along the second axis.
    label : str
        The `dir-` entity of the file's name, empty if it has none.
    affine : (4, 4) array, optional
        Voxel to world RAS; without it names such as "AP" cannot be turned into voxel axes.

    Returns
    -------
    encoding : PhaseEncoding
    """
    stated = metadata.get("PhaseEncodingDirection")
    if stated is not None:
        if not is_direction(stated):
            raise ParticipantError(
                expected="a PhaseEncodingDirection of i, i-, j, j-, k or k-",
                found=f"{stated!r:.60}",
                remedy="correct the sidecar of the scan",
            )
        return PhaseEncoding(stated, f"{stated} from PhaseEncodingDirection")
    axis = metadata.get("PhaseEncodingAxis")
    axis = axis[0] if isinstance(axis, str) and axis[:1] in _VECTORS else None
    named = [] if affine is None else list(_named_directions(metadata, label, affine))
    for direction, source in named:
        if axis in {None, direction[0]}:
            contradictions = [
                f"; {other_source} would make it {other}"
                for other, other_source in named
                if are_opposite(direction, other)
            ]
            what = "its sign" if axis else "axis and sign"
            text = f"{direction}, {what} from {source}, because the sidecar does not state it"
            return PhaseEncoding(direction, text + "".join(contradictions), is_inferred=True)
    if axis:
        return PhaseEncoding(
            axis,
            f"{axis} from PhaseEncodingAxis; neither the sidecar nor the file's name tells its "
            "sign, which was taken as +",
            is_guess=True,
        )
    return PhaseEncoding(
        guess,
        f"{guess}, a guess: the sidecar has no PhaseEncodingDirection",
        is_guess=True,
        axis_is_guess=True,
    )


def _named_directions(
    metadata: Mapping[str, Any], label: str, affine: ArrayLike
) -> Iterator[tuple[str, str]]:
    """Yield the directions that names tell, the most trustworthy first, with their sources."""
    description = str(metadata.get("SeriesDescription") or "")
    displayed = str(metadata.get("PhaseEncodingDirectionDisplayed") or "")
    words = {word.upper() for word in _WORDS.findall(description)}
    candidates = [
        (label.upper(), f"the file's name (dir-{label})"),
        # A description of both directions tells none.
        (words.pop() if len(words) == 1 else "", f"SeriesDescription ({description:.60})"),
        (
            re.sub(r"[^A-Z]", "", displayed.upper()),
            f"PhaseEncodingDirectionDisplayed ({displayed:.20})",
        ),
    ]
    axes, signs = ras_order(affine)
    for word, source in candidates:
        if word in _PAIRS.split("|"):
            world, sign = _WORLD[word[1]]  # "AP" runs towards P
            yield "ijk"[axes[world]] + ("" if sign == signs[world] else "-"), source


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


def conformed_vector(direction: str, affine: ArrayLike) -> tuple[int, int, int]:
    """Return a direction as a unit vector in the axes of the conformed image.

    Parameters
    ----------
    direction : str
        In the voxel axes of the raw image, BIDS spelling.
    affine : (4, 4) array
        Of the raw image.
    """
    return PhaseEncoding(reorder_phase_encoding(direction, *ras_order(affine)), "").vector


def are_opposite(first: str, second: str) -> bool:
    """Tell whether two directions lie on one axis and point apart."""
    return first[0] == second[0] and first != second


class Relation(enum.Enum):
    """How the phase encodings of two scans relate to each other."""

    EQUAL = "equal"
    OPPOSITE = "opposite"
    CROSSED = "along different axes"
    UNKNOWN = "equal or opposite, which nobody tells"


def relate(first: PhaseEncoding, second: PhaseEncoding) -> Relation:
    """Relate two phase encodings; one that is a guess is neither equal nor opposite to any."""
    if first.is_guess or second.is_guess:
        return Relation.UNKNOWN
    if first.direction == second.direction:
        return Relation.EQUAL
    if are_opposite(first.direction, second.direction):
        return Relation.OPPOSITE
    return Relation.CROSSED


def resolve_relation(correlation_as_equal: float, correlation_as_opposite: float) -> Relation:
    """Decide from the images whether two unknown phase encodings are equal or opposite.

    Both are tried: as equal, the b0s should match as they are; as opposite, once a
    susceptibility field has been estimated and undone in both. A field has many parameters and
    always explains a little, so it has to explain a fair share of what separates the two.

    Parameters
    ----------
    correlation_as_equal : float
        Of the b0s after rigid alignment, without a field.
    correlation_as_opposite : float
        Of the b0s corrected by the field that makes them most alike.

    Returns
    -------
    relation : Relation
        EQUAL or OPPOSITE; UNKNOWN where a correlation is not a number.
    """
    apart = 1 - correlation_as_equal
    explained = correlation_as_opposite - correlation_as_equal
    if not np.isfinite(explained):
        return Relation.UNKNOWN
    return Relation.OPPOSITE if explained > LEAST_SHARE_EXPLAINED * apart else Relation.EQUAL


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
