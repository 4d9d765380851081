"""Which participants are finished: made from the same input and settings, and whole on disk."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bids_gevnet.bids.manifest import hash_file, read_manifest, write_manifest
from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.cli.parser import Request
from bids_gevnet.versions import __version__
from bids_gevnet.workflows.tools import choose_tools, may_use_gpu

log = logging.getLogger("bids_gevnet")


@dataclass(frozen=True, slots=True)
class Finisher:
    """Seals participants when they are finished, and tells which ones were.

    Parameters
    ----------
    request : Request
    participants : mapping
        Name of a participant's workflow to the participant.
    tools : any
        Programs that were chosen: a dataclass of plain values.
    adaptation : str or None
        Digest of the gains for sites that the model was not trained on.
    """

    request: Request
    participants: Mapping[str, Participant]
    tools: Any
    adaptation: str | None = None

    def is_finished(self, participant: Participant) -> bool:
        """Whether everything of a participant is there and as it would be made again."""
        manifest = read_manifest(self.request.output.manifest(participant.label))
        if manifest is None:
            return False
        if manifest.made_from != self._made_from(participant):
            log.warning(
                "sub-%s: finished before from other input, with other settings or by another "
                "version, so it is made again",
                participant.label,
            )
            return False
        changed = manifest.changed_inputs(_images(participant))
        if changed:
            log.warning(
                "sub-%s: its input has changed since it was made, so it is made again: %s",
                participant.label,
                ", ".join(changed),
            )
            return False
        damaged = manifest.damaged(self.request.output_dir)
        if damaged:
            log.warning(
                "sub-%s: missing or changed since it was made, so it is made again: %s",
                participant.label,
                ", ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" * (len(damaged) > 3)),
            )
        return not damaged

    def seal(self, name: str) -> None:
        """Record what a participant owns; remove its intermediate files where that is asked for.

        Called by Nipype's scheduler, which an error must not stop: the participant is then made
        again by the next run.
        """
        participant, request = self.participants[name], self.request
        try:
            write_manifest(
                request.output.manifest(participant.label),
                request.output_dir,
                participant.label,
                made_from=self._made_from(participant),
                inputs=_images(participant),
            )
        except OSError as error:
            log.warning("sub-%s: its manifest could not be written (%s)", participant.label, error)
            return
        if request.settings.execution.clean_workdir:
            shutil.rmtree(request.work.nodes("participant") / name, ignore_errors=True)

    def _made_from(self, participant: Participant) -> str:
        """Hash everything that decides the output of a participant."""
        settings, model = self.request.settings, self.request.settings.learning.model
        content = {
            "version": __version__,
            "settings": settings.to_tables()["preprocessing"],
            "site": settings.learning.site,
            "model": None if model is None else hash_file(model / "model.json"),
            "tools": asdict(self.tools),
            "runs": [_describe(run) for run in participant.runs],
        }
        if self.adaptation is not None:
            content["adaptation"] = self.adaptation
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def find_finished(request: Request, participants: Sequence[Participant]) -> frozenset[str]:
    """Label those for whom a run would have nothing to do.

    With `--adapt` that depends on gains that only a run computes, so nobody counts as finished.
    """
    if request.settings.learning.adapt or not any(request.output.logs.glob("manifests/*.json")):
        return frozenset()
    gpu = may_use_gpu(request.settings.learning.devices)
    finisher = Finisher(request, {}, choose_tools(request.settings.preprocessing, gpu=gpu))
    return frozenset(p.label for p in participants if p.usable and finisher.is_finished(p))


def _images(participant: Participant) -> list[Path]:
    """List the images that a participant is made from."""
    images = []
    for run in participant.runs:
        images += [run.image, *(fieldmap.image for fieldmap in run.fieldmaps)]
        images += [path for path in (run.t1w, run.mask) if path is not None]
    return images


def _describe(run: DiffusionRun) -> list[Any]:
    """Plain values that change when a run or what belongs to it does."""
    maps = [[_size(fieldmap.image), fieldmap.metadata] for fieldmap in run.fieldmaps]
    tables: Sequence[Path] = (run.bval, run.bvec)
    anatomy = None if run.t1w is None else _size(run.t1w)
    mask = None if run.mask is None else _size(run.mask)
    described = [
        _size(run.image),
        [hash_file(p) for p in tables],
        run.metadata,
        maps,
        anatomy,
        mask,
    ]
    if run.preprocessed is None:
        return described
    scan = run.preprocessed
    further = [_size(path) for path in (scan.transform, scan.confounds) if path is not None]
    return [*described, str(scan.dataset), scan.bvec_axes, further, dict(scan.quality)]


def _size(path: Path) -> list[Any]:
    return [path.name, path.stat().st_size]
