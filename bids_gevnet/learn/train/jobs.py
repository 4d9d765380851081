"""Training jobs as plain data: one per task, network and fold or site, one for the final model.

A JSON file holds one job or all jobs of a study; every training process reads it. A scan stands in
it once, however many folds and left-out sites use it: the file, and what it takes in memory, grow
with the scans and not with scans times models. A job names scans of the store and says everything
that decides its result, so its `digest` tells whether a harmonisation, a checkpoint or a finished
model belongs to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_json
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION, Kind
from bids_gevnet.settings import ExecutionSettings, LearningSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FORMAT = "bids_gevnet training jobs 6"
_PARTS = ("training", "testing")
_LEARNING = LearningSettings()


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How to train; what the user can set has the default of `bids_gevnet.settings`.

    The appendix of the paper has 15 epochs of Adam with an exponentially decaying learning rate
    and a weight decay of 1e-5; it says neither how fast the rate decays nor the batch size.

    Parameters
    ----------
    network : str
        Name in the registry of networks.
    strides : tuple of 4 int
        Pooling of the kernel network's layers, if the network has one.
    epochs, samples_per_class : int
        How many epochs, and samples of each class in one.
    batch_size : int
        Samples per step, over all processes.
    accumulate : int
        Parts a process computes its share of a batch in, one after the other.
    voxels_per_step : float or "all"
        Part of each brain that a step sees: a fraction, or a number of voxels above 1.
    learning_rate : float
        At the first step.
    final_rate : float
        Learning rate at the last step, as a fraction of the first.
    weight_decay : float
        Of Adam: this much of each weight is added to its gradient.
    seed : int
        Of the weights at the start and the order of samples.
    precision : str
        "auto" and "float32", or "bfloat16" for all but the kernel network.
    harmonise : bool
        Whether to harmonise where there are several sites.
    reference_site : str or None
        Site that harmonisation brings the others to; None for the mean over sites.
    adapt : bool
        Whether people of a left-out site are also tested with their site adapted to from their
        unlabelled scans; changes no model.
    held_out_curve : bool
        Whether to score the test participants after every epoch, for the learning curve only.
    """

    network: str = _LEARNING.network
    strides: tuple[int, ...] = _LEARNING.strides
    epochs: int = _LEARNING.epochs
    samples_per_class: int = _LEARNING.samples_per_class
    batch_size: int = _LEARNING.batch_size
    accumulate: int = 1
    voxels_per_step: float | str = _LEARNING.voxels_per_step
    learning_rate: float = _LEARNING.learning_rate
    final_rate: float = 0.1
    weight_decay: float = 1e-5
    seed: int = ExecutionSettings().random_seed
    precision: str = _LEARNING.precision
    harmonise: bool = _LEARNING.harmonisation == "rish"
    reference_site: str | None = _LEARNING.reference_site
    adapt: bool = _LEARNING.adapt
    held_out_curve: bool = True

    @classmethod
    def from_settings(
        cls,
        learning: LearningSettings,
        execution: ExecutionSettings,
        *,
        start: TrainOptions | None = None,
    ) -> TrainOptions:
        """Take over what the user set.

        Parameters
        ----------
        learning : LearningSettings
            Where it asks for all networks, `network` is to be replaced by one of them.
        execution : ExecutionSettings
        start : TrainOptions, optional
            What the settings do not have, such as the weight decay.

        Examples
        --------
        >>> from bids_gevnet.settings import ExecutionSettings, LearningSettings
        >>> TrainOptions.from_settings(LearningSettings(epochs=3), ExecutionSettings()).epochs
        3
        """
        shared = {field.name for field in dataclasses.fields(cls)} & {
            field.name for field in dataclasses.fields(learning)
        }
        return dataclasses.replace(
            start or cls(),
            seed=execution.random_seed,
            harmonise=learning.harmonisation == "rish",
            **{name: getattr(learning, name) for name in shared},
        )


@dataclass(frozen=True, kw_only=True)
class JobScan:
    """A scan of a job: its folder in the store, class or number, and what harmonisation needs.

    `label` is the output of the network that stands for its class; where a number is predicted
    there is one output, 0, and `value` is the number.
    """

    folder: str
    participant: str
    session: str | None
    scan: str
    label: int
    site: str
    motion: float | None
    covariates: Mapping[str, float | str | None]
    value: float | None = None


def kept_apart(
    scans: Sequence[JobScan], labels: Sequence[str]
) -> tuple[list[str] | None, dict[str, list[float | str | None]]]:
    """Give what harmonisation keeps apart from the site: classes, and covariates by name.

    A number that is predicted is the first covariate: of two that cannot both be accounted for
    it is the one that matters.

    Parameters
    ----------
    scans : sequence of JobScan
        To fit to.
    labels : sequence of str
        Those of their job.
    """
    names = sorted({name for scan in scans for name in scan.covariates})
    covariates: dict[str, list[float | str | None]] = {
        name: [scan.covariates.get(name) for scan in scans] for name in names
    }
    if all(scan.value is None for scan in scans):
        return [labels[scan.label] for scan in scans], covariates
    numbers: list[float | str | None] = [scan.value for scan in scans]
    return None, {labels[0]: numbers} | covariates


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """One model to train.

    Parameters
    ----------
    name : str
        For people and logs.
    task : str
        Folder name of the task.
    fold : int or None
        From 1; None for the final model, which has nobody to be tested on.
    labels : tuple of str
        Classes in the order of the network's outputs, or the column whose number is predicted.
    kind : {"classification", "regression"}
    unit : str
        Of the number, if it is known.
    nside : int
    b_values : tuple of float
        Of the shells, in s/mm²; empty for one shell whose b-value is not known or not shared.
    shape : tuple of int
        Voxels of the grid.
    voxel_mm : float
    affine : 4 tuples of 4 float
        Grid to template mm.
    training, testing : tuples of JobScan
    options : TrainOptions
    model_dir, work_dir : str
        Where the model and the checkpoint go.
    dataset : str
        Name of the dataset, to recognise its participants later.
    held_out_site : str or None
        The site that nobody in training was scanned at; then `fold` counts the sites.
    init_dir, init_sha256 : str
        Folder of the model whose weights training starts from, and their hash; empty for random
        weights.
    init_labels : tuple of str
        Its classes or column: where they are the job's, its last layers are kept, too.
    """

    name: str
    task: str
    fold: int | None
    labels: tuple[str, ...]
    nside: int
    shape: tuple[int, ...]
    voxel_mm: float
    affine: tuple[tuple[float, ...], ...]
    training: tuple[JobScan, ...]
    testing: tuple[JobScan, ...]
    options: TrainOptions
    model_dir: str
    work_dir: str
    dataset: str = ""
    held_out_site: str | None = None
    b_values: tuple[float, ...] = ()
    init_dir: str = ""
    init_sha256: str = ""
    init_labels: tuple[str, ...] = ()
    kind: Kind = CLASSIFICATION
    unit: str = ""

    @property
    def is_regression(self) -> bool:
        """Whether the network predicts a number."""
        return self.kind == REGRESSION

    @property
    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the training scans' numbers: the unit of the output."""
        values = [scan.value for scan in self.training if scan.value is not None]
        return fmean(values), pstdev(values) or 1.0

    @property
    def keeps_classifier(self) -> bool:
        """Whether training starts from the classifier of another model."""
        return bool(self.init_dir) and self.init_labels == self.labels

    @property
    def shells(self) -> int:
        """How many shells the network takes."""
        return max(1, len(self.b_values))

    @property
    def tests_adapted(self) -> bool:
        """Whether test scans are also scored with gains for their site."""
        return self.options.adapt and self.options.harmonise and self.held_out_site is not None

    @property
    def digest(self) -> str:
        """Hash of all that decides the result."""
        content = dataclasses.asdict(self)
        for place in ("model_dir", "work_dir", "init_dir", "name"):
            del content[place]
        del content["options"]["adapt"]
        for scan in (*content["training"], *content["testing"]):
            # The folder is named by content; where the store lies does not matter.
            scan["folder"] = Path(scan["folder"]).name
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def write_jobs(path: Path, jobs: Sequence[TrainJob]) -> None:
    """Write jobs to a file, unless it holds the same already.

    A file that did not change keeps its time, so that what was made from it stays valid.
    """
    content = {"format": _FORMAT, **_shared_scans(jobs)}
    if read_json(path) != json.loads(json.dumps(content)):
        write_json(path, content)


def read_jobs(path: Path) -> tuple[TrainJob, ...]:
    """Read what `write_jobs` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(content["format"])  # noqa: TRY301
        scans = [JobScan(**scan) for scan in content["scans"]]
        return tuple(_job(entry, scans) for entry in content["jobs"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            expected=f"training jobs written by the group level in {path}",
            found=f"something else ({error})",
            remedy="start the group level again: it writes this file",
        ) from None


def _shared_scans(jobs: Sequence[TrainJob]) -> dict[str, Any]:
    """List the scans of all jobs, each once, and the jobs with numbers for their scans."""
    scans: dict[str, int] = {}
    places: dict[int, int] = {}  # of objects that jobs of one study share

    def place(scan: JobScan) -> int:
        if id(scan) not in places:
            text = json.dumps(dataclasses.asdict(scan), sort_keys=True)
            places[id(scan)] = scans.setdefault(text, len(scans))
        return places[id(scan)]

    entries = [
        dataclasses.asdict(dataclasses.replace(job, training=(), testing=()))
        | {part: [place(scan) for scan in getattr(job, part)] for part in _PARTS}
        for job in jobs
    ]
    return {"scans": [json.loads(text) for text in scans], "jobs": entries}


def _job(entry: dict[str, Any], known: Sequence[JobScan]) -> TrainJob:
    scans = {part: tuple(known[number] for number in entry[part]) for part in _PARTS}
    options = TrainOptions(**entry["options"])
    options = dataclasses.replace(options, strides=tuple(options.strides))
    fixed = {
        "labels": tuple(entry["labels"]),
        "shape": tuple(entry["shape"]),
        "b_values": tuple(entry["b_values"]),
        "init_labels": tuple(entry["init_labels"]),
        "affine": tuple(map(tuple, entry["affine"])),
    }
    return TrainJob(**(entry | fixed | scans | {"options": options}))
