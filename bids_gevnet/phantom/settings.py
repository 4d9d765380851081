"""What a phantom cohort is made of: one frozen object, checked when it is made.

Only the standard library is imported here, so that the command line can answer at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_GROUPS = 7
MAX_SITES = 26


@dataclass(frozen=True, kw_only=True)
class PhantomSettings:
    """Everything that decides the bytes of a phantom cohort.

    Parameters
    ----------
    groups : tuple of str
        Diagnoses. The first group has no effect; the others differ from it and each other.
    per_group : int
        Participants per group, spread evenly over the sites.
    sites : int
        Scanners.
    voxel_mm : float
        Voxel size at the first site; other sites differ by up to 15 %.
    seed : int
        Same seed, same bytes.
    directions : int
        Directions per shell at the first site; other sites differ.
    b_values : tuple of float
        One nominal b-value in s/mm² per shell.
    snr : float
        Signal to noise of white matter without diffusion weighting; inf for none.
    micro_effect, macro_effect : float
        Strength of the microscopic (crossing angle, dispersion) and of the macroscopic
        (atrophy) group effect; 1 is the standard size, 0 switches it off.
    anisotropy_effect : float
        Strength of a group effect on anisotropy in all white matter; 0, the default, for none.
    shell_effect : float
        Strength of a group effect that several shells together show and no single one; 0, the
        default, for none.
    age_effect : float
        Strength of ageing, in everybody: 1, the default, widens the ventricles by 0.2 % a year
        and thins grey matter with them, 0 leaves age without a trace.
    site_effect : bool
        Whether sites differ in anything but their name.
    motion_mm, motion_deg : float
        Largest translation and rotation per axis within a scan; 0 and 0 for a still head.
    eddy : float
        Strength of eddy-current distortions; 1 is about 2 mm at the edge of the brain.
    outliers : float
        Probability that a diffusion-weighted volume loses a slice.
    reverse_b0 : bool
        Add susceptibility distortion and a b0 with the opposite phase encoding.
    t1w : bool
        Add a T1-weighted image.
    pose_deg, pose_mm, pose_size : float
        Largest rotation and translation per axis and relative size difference of the heads.

    Examples
    --------
    >>> PhantomSettings(groups=("control", "patient"), per_group=2, seed=7).sites
    2
    """

    groups: tuple[str, ...] = ("AD", "DLB", "PD")
    per_group: int = 4
    sites: int = 2
    voxel_mm: float = 6.0
    seed: int = 0
    directions: int = 32
    b_values: tuple[float, ...] = (1000.0,)
    snr: float = 30.0
    micro_effect: float = 1.0
    macro_effect: float = 1.0
    anisotropy_effect: float = 0.0
    shell_effect: float = 0.0
    age_effect: float = 1.0
    site_effect: bool = True
    motion_mm: float = 2.0
    motion_deg: float = 2.0
    eddy: float = 1.0
    outliers: float = 0.0
    reverse_b0: bool = False
    t1w: bool = False
    pose_deg: float = 10.0
    pose_mm: float = 8.0
    pose_size: float = 0.08

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, naming the value."""
        _check_groups(self.groups)
        _check_b_values(self.b_values)
        _check_range("participants per group", self.per_group, 1, 10_000)
        _check_range("number of sites", self.sites, 1, MAX_SITES)
        _check_range("voxel size in mm", self.voxel_mm, 1.5, 12)
        _check_range("seed", self.seed, 0, 2**63)
        _check_range("number of directions", self.directions, 6, 300)
        _check_range("microscopic effect", self.micro_effect, 0, 2)
        _check_range("macroscopic effect", self.macro_effect, 0, 2)
        _check_range("effect on anisotropy", self.anisotropy_effect, 0, 2)
        _check_range("effect between shells", self.shell_effect, 0, 2)
        _check_range("effect of age", self.age_effect, 0, 10)
        if self.shell_effect and len(self.b_values) < 2:
            _refuse("number of b-values for an effect between shells", "of 2 or more", 1)
        _check_range("motion in mm", self.motion_mm, 0, 20)
        _check_range("motion in degrees", self.motion_deg, 0, 20)
        _check_range("eddy strength", self.eddy, 0, 5)
        _check_range("outlier probability", self.outliers, 0, 1)
        _check_range("pose rotation in degrees", self.pose_deg, 0, 45)
        _check_range("pose translation in mm", self.pose_mm, 0, 40)
        _check_range("size difference", self.pose_size, 0, 0.2)
        if not self.snr >= 1:
            _refuse("signal to noise ratio", "at least 1", self.snr)


def tiny_settings(**changes: Any) -> PhantomSettings:
    """Make the settings of a cohort for tests: three coarse scans, a fraction of a second each.

    Parameters
    ----------
    **changes
        Fields of :class:`PhantomSettings` to set otherwise.

    Examples
    --------
    >>> tiny_settings(sites=1).voxel_mm
    9.0
    """
    tiny: dict[str, Any] = {"per_group": 1, "voxel_mm": 9.0, "directions": 16}
    return PhantomSettings(**(tiny | changes))


def _check_groups(groups: Sequence[str]) -> None:
    unusable = [g for g in groups if not (g.isascii() and g.isalnum())]
    if not groups or unusable or len(set(groups)) != len(groups) or len(groups) > MAX_GROUPS:
        raise InputError(
            expected=f"1 to {MAX_GROUPS} different group names of letters and digits",
            found=", ".join(repr(g) for g in groups) or "none",
            remedy="name the groups as in --groups AD,DLB,PD",
        )


def _check_b_values(b_values: Sequence[float]) -> None:
    if not b_values or not all(200 <= b <= 10_000 for b in b_values):
        _refuse("b-values in s/mm²", "one or more between 200 and 10000", tuple(b_values))
    if len(set(b_values)) != len(b_values):
        _refuse("b-values in s/mm²", "different from each other", tuple(b_values))


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        _refuse(name, f"between {low:g} and {high:g}", value)


def _refuse(name: str, expected: str, found: object) -> None:
    raise InputError(
        expected=f"a {name} {expected}" if not name.endswith("mm²") else f"{name} {expected}",
        found=str(found),
        remedy="choose another value; `bids_gevnet_phantom --help` lists the defaults",
    )
