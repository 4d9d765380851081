"""Start a training from the weights of a model that was trained before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.errors import InputError
from bids_gevnet.learn.models.files import WEIGHTS, load_model

if TYPE_CHECKING:
    from bids_gevnet.learn.train.jobs import TrainJob
    from bids_gevnet.nn.compound import ScanNetwork


def continue_from_(network: ScanNetwork, job: TrainJob) -> None:
    """Give a network the weights of the model that a job starts from.

    The last layers are kept where the classes or the column of the number are the same, and are
    as they were built elsewhere. A number is then predicted as the model would: the output is in
    units of the job's training scans.
    """
    folder = Path(job.init_dir)
    if hash_file(folder / WEIGHTS) != job.init_sha256:
        raise InputError(
            expected=f"the weights of --init-model in {folder} as they were when the study began",
            found="others",
            remedy="run the same command again; models are trained from the new weights",
        )
    start = load_model(folder)
    if job.is_regression and job.keeps_classifier:
        rescale_output_(start.network, (start.card.target_mean, start.card.target_sd), job.scale)
    weights = start.network.state_dict()
    kept = {
        name: value
        for name, value in weights.items()
        if job.keeps_classifier or not name.startswith("head.")
    }
    network.load_state_dict(network.state_dict() | kept)


@torch.no_grad()
def rescale_output_(
    network: ScanNetwork, before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Keep the number that a network predicts where mean and standard deviation change."""
    last = network.head[-1]
    if isinstance(last, torch.nn.Linear):
        factor = before[1] / after[1]
        last.weight.mul_(factor)
        last.bias.mul_(factor).add_((before[0] - after[0]) / after[1])
