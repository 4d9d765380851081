"""What distinguishes the groups, and what distinguishes people within a group.

Microscopic effects change where the signal is on the sphere, never its mean over the sphere:

- the angle at which two fibre populations cross in the crossing region (turning a fibre leaves
  its spherical mean alone);
- dispersion in the dispersion region: a fraction kappa of the fibres points in every direction
  equally, E' = (1 - kappa) E + kappa mean(E), whose spherical mean is that of E at every b-value.

The macroscopic effect is atrophy: larger ventricles and thinner grey matter.

The effect on anisotropy is dispersion as above, in all white matter alike, and people of a group
differ in it; 0, the default, leaves everybody as if there were no such effect.

The effect between shells is in how two shells go together, and in no shell alone. Everybody has a
smooth random map phi (`ShellCoupling`) of mean 0, and the signal at b becomes S exp(a phi w(b)):
w is 1 at every b in group 0 and the other even ones, and falls from 1 at the lowest to -1 at the
highest b-value in odd groups. As phi and -phi have the same distribution, so has every single
shell in all groups; but where the lowest shell is brighter the highest is brighter in one group
and darker in the other, as if kurtosis had changed. Without several shells nobody can tell.

Ageing is in everybody: ventricles widen and grey matter thins with the years, `age_effect` times
0.2 % a year, whatever the group.

Group 0 has no group effect; odd groups differ in angle, even ones in dispersion, later ones more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.phantom.cohort import participant_rng
from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.phantom.cohort import ParticipantSpec
    from bids_gevnet.phantom.settings import PhantomSettings

CROSSING_ANGLE_DEG = 80.0
BASE_DISPERSION = 0.1
_ANGLE_STEP_DEG = -25.0
_DISPERSION_STEP = 0.4
_ATROPHY_STEP = 0.1
_ANISOTROPY_STEP = 0.05
_ANISOTROPY_SPREAD = 0.03
_ATROPHY_PER_YEAR = 0.002
_COUPLING_STEP = 0.15
_WAVES = 32
_WAVELENGTH_MM = 60.0  # blobs of half of it, which voxels of 16 mm still see


@dataclass(frozen=True)
class TissueState:
    """State of one head: the group's effect plus the person's own deviation.

    Parameters
    ----------
    crossing_angle_deg : float
        Angle between the two fibres in the middle of the crossing region.
    dispersion : float
        Fraction of dispersed fibres in the middle of the dispersion region; everywhere else it
        is `BASE_DISPERSION`.
    atrophy : float
        Ventricles grow by 1 / (1 - atrophy) along each axis.
    dispersion_everywhere : float
        Fraction of dispersed fibres in all white matter, beyond that.
    """

    crossing_angle_deg: float
    dispersion: float
    atrophy: float
    dispersion_everywhere: float = 0.0


@dataclass(frozen=True)
class ShellCoupling:
    """A person's map of signal changes, and how it enters each shell.

    Parameters
    ----------
    waves : (n, 3) array
        Wave vectors in rad/mm of template space.
    phases : (n,) array
    amplitude : float
        Standard deviation of the change of log S.
    b_range : tuple of float
        Lowest and highest b-value, s/mm².
    apart : bool
        Whether the changes of the lowest and highest shell have opposite signs.
    """

    waves: NDArray[np.float64]
    phases: NDArray[np.float64]
    amplitude: float
    b_range: tuple[float, float]
    apart: bool

    def log_change(self, points: NDArray[np.float64]) -> NDArray[np.float32]:
        """Change of log S where w is 1, at template mm: (..., 3) to (...) array."""
        total = np.zeros(points.shape[:-1])
        for wave, phase in zip(self.waves, self.phases, strict=True):
            total += np.cos(points @ wave + phase)
        scale = self.amplitude * np.sqrt(2 / len(self.phases))
        return np.asarray(scale * total, dtype=np.float32)

    def weight(self, b: float) -> float:
        """Return w at a b-value; 0 for a b0."""
        if b <= B0_THRESHOLD:
            return 0.0
        low, high = self.b_range
        share = float(np.clip((b - low) / (high - low), 0, 1))
        # Flat at both ends, where scanners jitter.
        return float(np.cos(np.pi * share)) if self.apart else 1.0


def shell_coupling(settings: PhantomSettings, spec: ParticipantSpec) -> ShellCoupling | None:
    """Draw the map of one person; None without an effect between shells."""
    if not settings.shell_effect:
        return None
    rng = participant_rng(settings.seed, spec.index, "coupling")
    directions = rng.normal(size=(_WAVES, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return ShellCoupling(
        waves=directions * (2 * np.pi / _WAVELENGTH_MM),
        phases=rng.uniform(0, 2 * np.pi, _WAVES),
        amplitude=_COUPLING_STEP * settings.shell_effect,
        b_range=(min(settings.b_values), max(settings.b_values)),
        apart=bool(spec.group % 2),
    )


def group_state(settings: PhantomSettings, group: int) -> TissueState:
    """Return the mean state of a group."""
    level = (group + 1) // 2
    angle = _ANGLE_STEP_DEG * level if group % 2 else 0.0
    dispersion = 0.0 if group % 2 else _DISPERSION_STEP * level
    return TissueState(
        crossing_angle_deg=float(
            np.clip(CROSSING_ANGLE_DEG + settings.micro_effect * angle, 15, 90)
        ),
        dispersion=float(np.clip(BASE_DISPERSION + settings.micro_effect * dispersion, 0, 0.95)),
        atrophy=float(np.clip(settings.macro_effect * _ATROPHY_STEP * group, 0, 0.5)),
        dispersion_everywhere=settings.anisotropy_effect * _ANISOTROPY_STEP * group,
    )


def participant_state(settings: PhantomSettings, spec: ParticipantSpec) -> TissueState:
    """Return the state of one person: the group's, with individual spread and ageing."""
    rng = participant_rng(settings.seed, spec.index, "tissue")
    group = group_state(settings, spec.group)
    angle, dispersion, atrophy = rng.normal(0, (3.0, 0.03, 0.02))
    ageing = settings.age_effect * _ATROPHY_PER_YEAR * (spec.age - 72)
    everywhere = group.dispersion_everywhere
    if settings.anisotropy_effect:
        own = participant_rng(settings.seed, spec.index, "anisotropy")
        everywhere = float(np.clip(everywhere + own.normal(0, _ANISOTROPY_SPREAD), -0.08, 0.5))
    return TissueState(
        crossing_angle_deg=float(np.clip(group.crossing_angle_deg + angle, 10, 90)),
        dispersion=float(np.clip(group.dispersion + dispersion, 0, 0.95)),
        atrophy=float(np.clip(group.atrophy + atrophy + ageing, -0.25, 0.6)),
        dispersion_everywhere=everywhere,
    )
