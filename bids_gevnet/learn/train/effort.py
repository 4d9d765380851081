"""What a study will ask of a machine, as far as it follows from the plan alone: steps and disk."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.learn.cohort.store import stored_bytes
from bids_gevnet.learn.models.files import build_network
from bids_gevnet.learn.train.mixup import samples_per_epoch, split_batches
from bids_gevnet.learn.train.trainer import CURVE_SCANS, STATISTICS_SCANS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.train.planning import PlannedModel, StudyPlan
    from bids_gevnet.settings import LearningSettings


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Size of a study.

    Parameters
    ----------
    steps : tuple of int
        Training steps of each model, in the order of the plan.
    scored : tuple of int
        Scans that each model is run on besides, whole and without learning from them.
    scan_passes : int
        Times that a scan, or a mixture of two, goes through a network in training: over all
        models, epochs times samples.
    store_bytes : int
        Scans in the work directory, as training reads them: the first scan's brain, for all.
    model_bytes : int
        Weights and harmonisation of all models, before compression.
    """

    steps: tuple[int, ...]
    scored: tuple[int, ...]
    scan_passes: int
    store_bytes: int
    model_bytes: int


def plan_effort(cohort: Cohort, plan: StudyPlan, settings: LearningSettings) -> Effort:
    """Count steps and bytes of a study.

    Parameters
    ----------
    cohort : Cohort
    plan : StudyPlan
    settings : LearningSettings
    """
    samples = [
        samples_per_epoch(settings.samples_per_class, len(model.task.labels))
        for model in plan.models
    ]
    weights = {
        (network, len(task.labels)): _weight_bytes(network, len(task.labels), cohort, settings)
        for network in plan.networks
        for task in plan.tasks
    }
    return Effort(
        steps=tuple(settings.epochs * len(split_batches(n, settings.batch_size)) for n in samples),
        scored=tuple(_scored(model, settings) for model in plan.models),
        scan_passes=settings.epochs * sum(samples),
        store_bytes=len(cohort.rows) * _scan_bytes(cohort),
        model_bytes=sum(
            weights[model.network, len(model.task.labels)] + _gain_bytes(cohort, model, settings)
            for model in plan.models
        ),
    )


def first_brain(cohort: Cohort) -> NDArray[np.bool_]:
    """Brain of the first scan: (X, Y, Z) array."""
    import nibabel as nib

    try:
        brain: NDArray[np.bool_] = np.asarray(nib.load(cohort.rows[0].mask).dataobj) > 0
    except (OSError, EOFError, ValueError, zlib.error):
        return np.ones(cohort.shape, bool)  # an upper bound; reading the scan says what is wrong
    return brain if brain.any() else np.ones(cohort.shape, bool)


def _scan_bytes(cohort: Cohort) -> int:
    return stored_bytes(first_brain(cohort), nside=cohort.nside, shells=cohort.shells)


def _scored(model: PlannedModel, settings: LearningSettings) -> int:
    """Count the scans that one model is run on without learning from them.

    Training starts and ends with some of its scans, for features and statistics, and scores some
    of the held-out ones after every epoch, for the learning curve, and all in the end.
    """
    some = min(len(model.split.training), STATISTICS_SCANS)
    tested = len(model.split.testing)
    return 3 * some + min(tested, CURVE_SCANS) * settings.epochs + tested


def _weight_bytes(network: str, classes: int, cohort: Cohort, settings: LearningSettings) -> int:
    built = build_network(network, classes, cohort.nside, settings.strides, shells=cohort.shells)
    return sum(tensor.numel() * tensor.element_size() for tensor in built.state_dict().values())


def _gain_bytes(cohort: Cohort, model: PlannedModel, settings: LearningSettings) -> int:
    """Gains of one model: float32 for every site, voxel, shell and degree."""
    if settings.harmonisation == "none":
        return 0
    sites = {cohort.rows[i].site for i in model.split.training}
    features = cohort.shells * len(fit_limits(cohort.nside)[1])
    return 4 * len(sites) * int(np.prod(cohort.shape)) * features
