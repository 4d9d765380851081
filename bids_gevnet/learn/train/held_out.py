"""Score people that a trained model was not trained on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bids_gevnet.learn.models.adaptation import adapt_sites, without_labels
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.device_batches import DeviceReader
from bids_gevnet.learn.train.device_pieces import free_bytes
from bids_gevnet.learn.train.loop import autocast
from bids_gevnet.learn.train.outputs import HELD_OUT, is_tested, write_held_out
from bids_gevnet.learn.train.pieces import choose_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from bids_gevnet.learn.train.distributed import Processes
    from bids_gevnet.learn.train.jobs import TrainJob


def score_held_out(job: TrainJob, processes: Processes) -> Path:
    """Score the people that a trained model was not trained on, and write the scores.

    Returns
    -------
    path : Path
        The file with the scores, in the model's folder.
    """
    if is_tested(job):
        return Path(job.model_dir) / HELD_OUT
    network, _, gains = load_model(Path(job.model_dir))
    share = -(-job.options.batch_size // processes.size)
    brain, free = ScanReader(job.training, gains).largest, free_bytes(processes.device)
    network.pieces = choose_pieces(job, network, brain, share, free=free)
    network.to(processes.device)
    precision = partial(autocast, job.options.precision, processes.device)
    scores = evaluate_scans(network, ScanReader(job.testing, gains), processes, precision)
    path = Path(job.model_dir) / HELD_OUT
    adapted = None
    if job.tests_adapted and gains is not None:
        found = adapt_sites(gains, without_labels(job.testing))
        sentences = [each.sentence for each in found.adaptations]
        again = (
            evaluate_scans(network, ScanReader(job.testing, found.gains), processes, precision)
            if sentences
            else []
        )
        adapted = again, " ".join([*sentences, *found.refusals])
    if processes.first:
        write_held_out(job, scores, adapted)
    processes.wait()
    return path


@torch.no_grad()
def evaluate_scans(
    function: Callable[[Tensor, Tensor], Tensor],
    reader: ScanReader,
    processes: Processes,
    precision: Callable[[], AbstractContextManager[Any]],
) -> list[list[float]]:
    """Evaluate a function of each scan and mask, the work shared among processes.

    Returns
    -------
    values : (n_scans, n_values) nested list
        The same in all processes.
    """
    evaluated = []
    indices = processes.share(range(len(reader.scans)))
    if processes.device.type == "cpu":
        scans: Iterable[Sequence[Tensor]] = (reader.single(index) for index in indices)
    else:
        scans = DeviceReader(reader, processes.device, masks_on_host=False).singles(indices)
    for index, (volume, mask, *_) in zip(indices, scans, strict=True):
        with precision():
            values = function(volume, mask)[0]
        evaluated.append((index, values.float().tolist()))
    return [values for _, values in sorted(processes.gather(evaluated))]
