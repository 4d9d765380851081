"""b-values into shells, the choice among them, and the signal as a fraction of b0.

Scanners write jittered b-values (995, 1000, 1005, or 950 to 1050) and b0s of b = 1 or 5. A
shell here is a run of sorted b-values without a gap wider than ``tolerance``; everything up to
``b0_threshold`` is b0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError, ParticipantError, name_people
from bids_gevnet.settings import ALL_SHELLS, B0_THRESHOLD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from bids_gevnet.settings import ShellChoice

SHELL_TOLERANCE = 100.0
PREFERRED_B = 1000.0
"""The paper pools clinical scans, most of them at b = 1000, and learning needs the same b from
everyone: so by default the shell nearest to it is taken, not the one with most directions."""

MIN_DIRECTIONS = 6
ENOUGH_DIRECTIONS = 15
"""Directions that make a shell a sensible default: those of spherical harmonics of degree 4."""

SAME_AXIS_DEG = 2.0
"""Axes nearer than this are one: two digits move a direction by half a degree, and the denser of
real schemes keep more than five between their directions."""

REPEAT_DEG = 5.0
"""The same for directions that were turned with the head, which moves between repeats and runs."""


@dataclass(frozen=True)
class Shell:
    """One shell: its mean b-value and the volumes on it."""

    b_value: float
    volumes: NDArray[np.intp]

    @property
    def n_volumes(self) -> int:
        """Number of volumes on the shell."""
        return int(self.volumes.size)

    def n_directions(self, bvecs: NDArray[np.float64]) -> int:
        """Count the different directions of a table (n, 3): a second run repeats them."""
        return count_directions(bvecs[self.volumes], tolerance_deg=REPEAT_DEG)

    def __str__(self) -> str:
        return f"b = {self.b_value:.0f} ({self.n_volumes} volumes)"


@dataclass(frozen=True)
class Shells:
    """The b0 volumes and the shells of a scan, in increasing order of b."""

    b0: NDArray[np.intp]
    shells: tuple[Shell, ...]

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.shells)) or "no diffusion weighting"
        return f"{self.b0.size} b0, {listed}"


def find_shells(
    bvals: ArrayLike,
    *,
    usable: NDArray[np.bool_] | None = None,
    b0_threshold: float = B0_THRESHOLD,
    tolerance: float = SHELL_TOLERANCE,
) -> Shells:
    """Sort volumes into b0s and shells.

    Parameters
    ----------
    bvals : (n,) array
        s/mm².
    usable : (n,) array of bool, optional
        Volumes to consider; all by default.
    b0_threshold : float
        Highest b-value of a b0 volume.
    tolerance : float
        A gap in the sorted b-values wider than this starts another shell.

    Returns
    -------
    shells : Shells

    Examples
    --------
    >>> print(find_shells([0, 5, 995, 1000, 1005, 2000]))
    2 b0, b = 1000 (3 volumes), b = 2000 (1 volumes)
    """
    b = np.asarray(bvals, dtype=np.float64)
    keep = np.ones(b.shape, bool) if usable is None else usable
    weighted = np.flatnonzero((b > b0_threshold) & keep)
    order = weighted[np.argsort(b[weighted], kind="stable")]
    breaks = np.flatnonzero(np.diff(b[order]) > tolerance) + 1
    groups = [np.sort(group) for group in np.split(order, breaks) if group.size]
    return Shells(
        b0=np.flatnonzero((b <= b0_threshold) & keep),
        shells=tuple(Shell(float(b[group].mean()), group) for group in groups),
    )


def choose_shell(
    shells: Shells, wanted: float | None = None, *, tolerance: float = SHELL_TOLERANCE
) -> Shell:
    """Choose the shell that is put on the sphere.

    Parameters
    ----------
    shells : Shells
    wanted : float, optional
        b-value asked for; it must lie within ``tolerance`` of a shell. Without it, of the shells
        with at least 15 directions (or, if there is none, with at least 6) the one nearest to
        b = 1000 is taken, and of two equally near the one with more directions.
    tolerance : float

    Returns
    -------
    shell : Shell
    """
    if not shells.b0.size:
        raise ParticipantError(
            expected="at least one b0 volume",
            found=str(shells),
            remedy="raise --b0-threshold if low b-values stand for b0, or leave this scan out",
        )
    fit = [shell for shell in shells.shells if shell.n_volumes >= MIN_DIRECTIONS]
    if wanted is not None:
        fit = [shell for shell in fit if abs(shell.b_value - wanted) <= tolerance]
        expected = f"a shell near b = {wanted:.0f} with at least {MIN_DIRECTIONS} directions"
    else:
        expected = f"a shell with at least {MIN_DIRECTIONS} directions"
        fit = [shell for shell in fit if shell.n_volumes >= ENOUGH_DIRECTIONS] or fit
    if not fit:
        raise ParticipantError(
            expected=expected,
            found=str(shells),
            remedy="choose another shell with --shell, or leave this scan out"
            if any(shell.n_volumes >= MIN_DIRECTIONS for shell in shells.shells)
            else "leave this scan out with --bids-filter-file: so few directions do not "
            "determine a sphere",
        )
    target = PREFERRED_B if wanted is None else wanted
    return min(fit, key=lambda shell: (abs(shell.b_value - target), -shell.n_volumes))


def choose_shells(shells: Shells, wanted: ShellChoice = None) -> tuple[Shell, ...]:
    """Choose the shells that are put on the sphere, in increasing order of b.

    Parameters
    ----------
    shells : Shells
    wanted : tuple of float, "all" or None
        b-values asked for, each of a shell of its own; every shell with at least 6 directions;
        or the one shell that `choose_shell` takes.

    Returns
    -------
    chosen : tuple of Shell

    Examples
    --------
    >>> scan = find_shells([0, *[1000] * 6, *[3000] * 6])
    >>> [shell.b_value for shell in choose_shells(scan, "all")]
    [1000.0, 3000.0]
    """
    if wanted is None:
        return (choose_shell(shells),)
    if wanted == ALL_SHELLS:
        choose_shell(shells)  # refuses a scan without b0, or without a single shell
        return tuple(s for s in shells.shells if s.n_volumes >= MIN_DIRECTIONS)
    chosen = [choose_shell(shells, b) for b in sorted(wanted)]
    if len({shell.b_value for shell in chosen}) < len(chosen):
        raise ParticipantError(
            expected=f"a shell for each of {name_shells(wanted)}",
            found=str(shells),
            remedy="name each shell once with --shell",
        )
    return tuple(chosen)


def shared_shells(
    b_values: Mapping[str, Sequence[float]], *, tolerance: float = SHELL_TOLERANCE
) -> tuple[float, ...]:
    """Return the mean b-values of the shells that all scans have; a missing one is refused.

    Parameters
    ----------
    b_values : mapping of scan to sequence of float
        b-values of the shells of each scan.
    tolerance : float
        How far a shell may be from the mean of its counterparts.

    Returns
    -------
    shared : tuple of float
        Increasing, to the nearest whole number.

    Examples
    --------
    >>> shared_shells({"sub-01": [1000, 3000], "sub-02": [990, 3010]})
    (995.0, 3005.0)
    """
    pooled = np.sort(np.concatenate([np.asarray(values, float) for values in b_values.values()]))
    groups = np.split(pooled, np.flatnonzero(np.diff(pooled) > tolerance) + 1)
    means = [float(np.round(group.mean())) for group in groups]
    lacking = []
    for mean in means:
        who = [
            scan
            for scan, values in b_values.items()
            if sum(abs(b - mean) <= tolerance for b in values) != 1
        ]
        if who:
            lacking.append(f"no single shell near b = {mean:.0f} in {name_people(who)}")
    if lacking:
        raise InputError(
            expected=f"the same shells in all scans, {name_shells(means)}, "
            f"to within {tolerance:g} s/mm²",
            found="; ".join(lacking),
            remedy="name the shells that all have with --shell at the participant level, or leave "
            "these scans out with --exclude-participant-label",
        )
    return tuple(means)


def same_shells(
    first: Sequence[float], second: Sequence[float], *, tolerance: float = SHELL_TOLERANCE
) -> bool:
    """Whether b-values are those of the same shells, in any order.

    >>> same_shells([3000, 1000], [995, 3000]), same_shells([1000], [1000, 3000])
    (True, False)
    """
    return len(first) == len(second) and bool(
        np.allclose(sorted(first), sorted(second), rtol=0, atol=tolerance)
    )


def require_shells(b_values: Sequence[float], wanted: ShellChoice) -> None:
    """Refuse samples of other shells than those asked for; unknown b-values pass."""
    if b_values and isinstance(wanted, tuple) and not same_shells(wanted, b_values):
        raise InputError(
            expected=f"samples of {name_shells(wanted)}, as --shell asks for",
            found=f"samples of {name_shells(b_values)}",
            remedy="run the participant level with this --shell, in an OUTPUT_DIR of its own, or "
            "leave --shell out",
        )


def name_shells(b_values: Sequence[float]) -> str:
    """Write b-values for a sentence.

    >>> name_shells([1000, 2995])
    'b = 1000, 2995 s/mm²'
    """
    return f"b = {', '.join(f'{b:.0f}' for b in sorted(b_values))} s/mm²"


def count_directions(bvecs: ArrayLike, *, tolerance_deg: float = SAME_AXIS_DEG) -> int:
    """Count distinct axes: g and -g are one, and so is a repeat within the tolerance.

    Parameters
    ----------
    bvecs : (n, 3) array
        Of any length; zero rows and rows that are not finite are no axes.
    tolerance_deg : float

    Returns
    -------
    count : int
    """
    table = np.asarray(bvecs, dtype=np.float64).reshape(-1, 3)
    lengths = np.linalg.norm(table, axis=1)
    usable = np.isfinite(lengths) & (lengths > 0)
    axes = table[usable] / lengths[usable, None]
    counted = np.zeros(len(axes), bool)
    count = 0
    for index, axis in enumerate(axes):
        if not counted[index]:
            count += 1
            counted |= np.abs(axes @ axis) >= np.cos(np.deg2rad(tolerance_deg))
    return count


def mean_volume(data: NDArray[np.floating[Any]], volumes: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return the mean of some volumes where they have data, without a copy of all of them.

    A zero is no measurement: in a voxel that left the field of view the other volumes count.

    Parameters
    ----------
    data : (..., n) array
    volumes : (k,) array of int

    Returns
    -------
    mean : (...) array of float32
    """
    total = np.zeros(data.shape[:-1], np.float64)
    count = np.zeros(data.shape[:-1], np.float64)
    for volume in volumes:
        total += data[..., volume]
        count += np.not_equal(data[..., volume], 0)
    return np.asarray(total / np.maximum(count, 1), dtype=np.float32)


def divide_by_b0(
    signal: NDArray[np.floating[Any]],
    b0: NDArray[np.floating[Any]],
    *,
    clip: tuple[float, float] = (0.0, 1.0),
    floor: float = 1e-3,
) -> NDArray[np.float32]:
    """Return S/b0, with every value finite and inside ``clip``.

    Parameters
    ----------
    signal : (..., n) array
        Diffusion-weighted volumes.
    b0 : (...) array
        Mean b0.
    clip : (float, float)
        A free signal cannot gain from diffusion weighting: values above 1 are noise or
        misalignment, and are clipped as the harmonisation software the paper used does.
    floor : float
        Voxels with a b0 below this fraction of the 99th percentile have no signal: they become
        the lower clip.

    Returns
    -------
    fraction : (..., n) array of float32
    """
    reference = np.nan_to_num(b0, nan=0.0, posinf=0.0, neginf=0.0).astype(np.float32)
    positive = reference[reference > 0]
    threshold = floor * np.percentile(positive, 99) if positive.size else np.inf
    inverse = np.zeros_like(reference)
    np.divide(1.0, reference, out=inverse, where=reference > threshold)
    fraction = signal.astype(np.float32)
    fraction *= inverse[..., None]
    np.nan_to_num(fraction, copy=False, nan=clip[0], posinf=clip[0], neginf=clip[0])
    return np.clip(fraction, *clip, out=fraction)
