"""What a dataset holds, as typed records: participants and their diffusion runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bids_gevnet.bids.preprocessed.record import PreprocessedScan
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

    `notes` are sentences about what was unusual and could be put right; `mask` is a brain mask
    that somebody else has made; `preprocessed` says who has corrected the series before.
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
    mask: Path | None = None
    preprocessed: PreprocessedScan | None = None

    @property
    def name(self) -> str:
        """What tells the run from others: sub-X[_ses-Y][_acq-A][_dir-D][_run-Z]."""
        return "_".join(f"{key}-{value}" for key, value in self.entities.items())

    @property
    def uri(self) -> str:
        """BIDS URI of the image, by the names in DatasetLinks of our dataset_description.json."""
        return self.uri_of(self.image)

    def uri_of(self, path: Path) -> str:
        """BIDS URI of a file of the image's dataset, or the address of another file."""
        if self.preprocessed is not None:
            dataset = self.preprocessed.dataset
            name, folder = dataset.pipeline, dataset.folder
        else:
            top = self.image.parents[1 if self.session is None else 2]
            name, folder = "raw", top.parent
        if path.is_relative_to(folder):
            return f"bids:{name}:{path.relative_to(folder).as_posix()}"
        return path.absolute().as_uri()


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
