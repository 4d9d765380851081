"""What a dataset holds, as typed records: participants and their diffusion runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bids_gevnet.dwi.phase_encoding import PhaseEncoding
from bids_gevnet.errors import ParticipantError


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldmapRun:
    """A b0 with known phase encoding, from fmap/ or a series of its own, for a diffusion run."""

    image: Path
    metadata: Mapping[str, Any]
    encoding: PhaseEncoding


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionRun:
    """One diffusion series with all that is needed to process it.

    `notes` are sentences about what was unusual and could be put right.
    """

    subject: str
    session: str | None
    entities: Mapping[str, str]
    image: Path
    bval: Path
    bvec: Path
    metadata: Mapping[str, Any]
    encoding: PhaseEncoding
    fieldmaps: tuple[FieldmapRun, ...] = ()
    t1w: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """File name without suffix and extension: sub-X[_ses-Y][_acq-A][_dir-D][_run-Z]."""
        return self.image.name.removesuffix("_dwi.nii.gz").removesuffix("_dwi.nii")

    @property
    def relative_image(self) -> str:
        """Path of the image within the dataset, as BIDS URIs have it."""
        top = self.image.parents[1 if self.session is None else 2]
        return str(self.image.relative_to(top.parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A participant: the runs that can be processed and what is wrong with the others."""

    label: str
    runs: tuple[DiffusionRun, ...] = ()
    problems: tuple[ParticipantError, ...] = field(default=())

    @property
    def usable(self) -> bool:
        """Whether there is anything to process; a participant with any problem is not."""
        return bool(self.runs) and not self.problems

    def sessions(self) -> dict[str | None, tuple[DiffusionRun, ...]]:
        """Group the runs by session, in order."""
        grouped: dict[str | None, list[DiffusionRun]] = {}
        for run in self.runs:
            grouped.setdefault(run.session, []).append(run)
        return {session: tuple(runs) for session, runs in grouped.items()}
