"""Who is in the cohort: labels, groups, sites, age, sex, and everyone's own random numbers.

Participant k is drawn from random numbers that depend on the seed and on k alone, so a cohort
can grow without changing those who are already in it: k runs over the groups first, and the
site alternates within each group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from bids_gevnet.phantom.settings import PhantomSettings

Stream = Literal[
    "person", "pose", "tissue", "motion", "outliers", "noise", "reverse", "t1w", "table", "eddy",
    "coupling", "anisotropy",
]  # fmt: skip


@dataclass(frozen=True)
class ParticipantSpec:
    """One participant of the plan.

    Parameters
    ----------
    index : int
        Position in the cohort; decides this person's random numbers.
    label : str
        BIDS label without "sub-".
    group, site : int
        Positions in ``settings.groups`` and among the sites. The same index with another site
        is the same person on another scanner (a travelling subject).
    diagnosis : str
        Name of the group.
    age : float
        Years.
    sex : str
        "F" or "M".
    """

    index: int
    label: str
    group: int
    site: int
    diagnosis: str
    age: float
    sex: str


def participant_rng(seed: int, index: int, stream: Stream) -> np.random.Generator:
    """Random numbers of one participant for one purpose.

    Purposes are apart so that switching one off (motion, say) leaves all others as they were.
    """
    key = (1, index, get_args(Stream).index(stream))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def site_rng(seed: int, site: int, stream: Stream) -> np.random.Generator:
    """Random numbers of one site for one purpose."""
    key = (0, site, get_args(Stream).index(stream))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def plan_participant(settings: PhantomSettings, index: int) -> ParticipantSpec:
    """Draw participant `index` (0-based): age and sex do not depend on group or site."""
    rng = participant_rng(settings.seed, index, "person")
    within_group, group = divmod(index, len(settings.groups))
    return ParticipantSpec(
        index=index,
        label=f"{index + 1:03d}",
        group=group,
        # Shifted by the group, so that even one participant per group uses every site.
        site=(within_group + group) % settings.sites,
        diagnosis=settings.groups[group],
        age=float(np.round(np.clip(rng.normal(72, 6), 50, 89), 1)),
        sex="F" if rng.random() < 0.5 else "M",
    )


def plan_cohort(settings: PhantomSettings) -> tuple[ParticipantSpec, ...]:
    """List every participant of the cohort, ordered by label.

    Examples
    --------
    >>> from bids_gevnet.phantom import tiny_settings
    >>> [person.diagnosis for person in plan_cohort(tiny_settings())]
    ['AD', 'DLB', 'PD']
    """
    total = settings.per_group * len(settings.groups)
    return tuple(plan_participant(settings, index) for index in range(total))
