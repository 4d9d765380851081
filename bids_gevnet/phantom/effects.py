"""What distinguishes the groups, and what distinguishes people within a group.

Microscopic effects change where the signal is on the sphere, never its mean over the sphere:

- the angle at which two fibre populations cross in the crossing region (turning a fibre leaves
  its spherical mean alone);
- dispersion in the dispersion region: a fraction kappa of the fibres points in every direction
  equally, E' = (1 - kappa) E + kappa mean(E), whose spherical mean is that of E at every b-value.

The macroscopic effect is atrophy: larger ventricles and thinner grey matter.

Group 0 has none; odd groups differ in angle, even ones in dispersion, later ones more so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.phantom.cohort import participant_rng

if TYPE_CHECKING:
    from bids_gevnet.phantom.cohort import ParticipantSpec
    from bids_gevnet.phantom.settings import PhantomSettings

CROSSING_ANGLE_DEG = 80.0
BASE_DISPERSION = 0.1
_ANGLE_STEP_DEG = -25.0
_DISPERSION_STEP = 0.4
_ATROPHY_STEP = 0.1


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
    """

    crossing_angle_deg: float
    dispersion: float
    atrophy: float


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
    )


def participant_state(settings: PhantomSettings, spec: ParticipantSpec) -> TissueState:
    """Return the state of one person: the group's, with individual spread and ageing."""
    rng = participant_rng(settings.seed, spec.index, "tissue")
    group = group_state(settings, spec.group)
    angle, dispersion, atrophy = rng.normal(0, (3.0, 0.03, 0.02))
    return TissueState(
        crossing_angle_deg=float(np.clip(group.crossing_angle_deg + angle, 10, 90)),
        dispersion=float(np.clip(group.dispersion + dispersion, 0, 0.95)),
        atrophy=float(np.clip(group.atrophy + atrophy + 0.002 * (spec.age - 72), -0.15, 0.6)),
    )
