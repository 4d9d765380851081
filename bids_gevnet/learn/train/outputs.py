"""What a training leaves: the model's card, its learning curve, scores of held-out people."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_json
from bids_gevnet.errors import InputError
from bids_gevnet.learn.models.files import ModelCard, damaged_files, read_card
from bids_gevnet.learn.train.objectives import ACCURACY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.train.jobs import TrainJob


def curve_columns(figure: str = ACCURACY) -> tuple[str, ...]:
    """Name the columns of a learning curve whose figure is an accuracy or an error."""
    judged = [f"{part}_{what}" for part in ("train", "held_out") for what in ("loss", figure)]
    return ("epoch", "learning_rate", *judged)


HELD_OUT = "held_out.json"
"""Scores of the people a model was not trained on, in the model's folder."""


def is_trained(job: TrainJob) -> bool:
    """Whether the job's model is there and undamaged."""
    folder = Path(job.model_dir)
    try:
        return read_card(folder).digest == job.digest and not damaged_files(folder)
    except InputError:
        return False


def is_tested(job: TrainJob) -> bool:
    """Whether the held-out scores of the job's model are there."""
    content = read_json(Path(job.model_dir) / HELD_OUT)
    scans = content.get("scans")
    complete = content.get("digest") == job.digest and isinstance(scans, list)
    return complete and ("adapted" in content) == job.tests_adapted


def write_held_out(
    job: TrainJob,
    scores: Sequence[Sequence[float]],
    adapted: tuple[Sequence[Sequence[float]], str] | None = None,
) -> Path:
    """Write the scores of the job's test scans; return where they are.

    Parameters
    ----------
    job : TrainJob
    scores : (n_scans, n_classes) nested sequence
    adapted : (scores, str), optional
        Scores with the left-out site adapted to, none where it could not be, and what was done.
    """

    def entries(values: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
        return [
            {"scan": scan.scan, "scores": list(row)}
            for scan, row in zip(job.testing, values, strict=bool(values))
        ]

    content: dict[str, Any] = {"digest": job.digest, "scans": entries(scores)}
    if adapted is not None:
        content |= {"adapted": entries(adapted[0]), "adaptation": adapted[1]}
    path = Path(job.model_dir) / HELD_OUT
    write_json(path, content)
    return path


def make_card(
    job: TrainJob,
    gains: RishGains | None,
    fingerprints: Iterable[str],
    energies: np.ndarray[Any, np.dtype[np.float64]],
) -> ModelCard:
    """Describe a model that was trained.

    Parameters
    ----------
    job : TrainJob
    gains : RishGains or None
    fingerprints : iterable of str
        Of the training scans.
    energies : (n_scans, n_degrees) array
        Log mean energy of each degree of each training scan, harmonised.
    """
    # Four standard deviations beyond the mean, and never inside what was seen.
    spread = 4 * energies.std(axis=0)
    low = np.minimum(energies.mean(axis=0) - spread, energies.min(axis=0))
    high = np.maximum(energies.mean(axis=0) + spread, energies.max(axis=0))
    motion = [scan.motion for scan in job.training if scan.motion is not None]
    return ModelCard(
        network=job.options.network,
        labels=job.labels,
        task=job.task,
        fold=job.fold,
        nside=job.nside,
        strides=job.options.strides,
        b_values=job.b_values,
        shape=job.shape,
        affine=job.affine,
        temperature=1.0,
        options=asdict(job.options) | ({"init_model": job.init_sha256} if job.init_dir else {}),
        participants=tuple(sorted({scan.participant for scan in job.training})),
        fingerprints=tuple(sorted(fingerprints)),
        dataset=job.dataset,
        sites=tuple(sorted({scan.site for scan in job.training})),
        max_motion=max(motion, default=None),
        rish_low=tuple(low.tolist()),
        rish_high=tuple(high.tolist()),
        harmonised=gains is not None,
        warnings=gains.warnings if gains is not None else (),
        digest=job.digest,
        kind=job.kind,
        **_number_facts(job),
    )


def _number_facts(job: TrainJob) -> dict[str, Any]:
    """Give what a card says of a number that is predicted: its unit, mean, spread and range."""
    if not job.is_regression:
        return {}
    values = [scan.value for scan in job.training if scan.value is not None]
    mean, spread = job.scale
    return {
        "unit": job.unit,
        "target_mean": mean,
        "target_sd": spread,
        "target_low": min(values),
        "target_high": max(values),
    }


def curve_text(rows: Sequence[dict[str, float | int | None]]) -> str:
    """Write a learning curve as CSV."""
    stream = io.StringIO()
    columns = tuple(rows[0]) if rows else curve_columns()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def read_held_out(folder: Path, *, adapted: bool = False) -> dict[str, list[float]]:
    """Scores of the people a model was not trained on, by scan.

    Parameters
    ----------
    folder : Path
        Of the model.
    adapted : bool
        Those with the left-out site adapted to; empty where it was not.
    """
    content = json.loads((folder / HELD_OUT).read_text(encoding="utf-8"))
    return {entry["scan"]: entry["scores"] for entry in content["adapted" if adapted else "scans"]}


def read_adaptation(folder: Path) -> str:
    """Say how the left-out site was adapted to; empty without ``--adapt``."""
    return str(read_json(folder / HELD_OUT).get("adaptation", ""))
