"""Fit the harmonisation of a fold again, from its training scans alone, and compare.

Run when the group level ends and the scans are still in the store; the answer is kept beside the
models for the leakage audit of this and later reports.
"""

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_json
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.harmonisation.gains import RishGains, load_gains
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.jobs import TrainJob

REFIT = "harmonisation_check.json"
"""Kept beside the models of a task."""

MOST_VALUES = 100_000_000
"""Scans times voxels: a fit of this size takes a few minutes."""


def check_harmonisation(job: TrainJob) -> Path:
    """Refit the harmonisation of a fold and write how far it is from the stored one.

    Returns
    -------
    path : Path
        The file with the answer, beside the models of the task; kept if it is this job's.
    """
    path = Path(job.model_dir).parent / REFIT
    if read_json(path).get("digest") != job.digest:
        facts = {"digest": job.digest, "fold": job.fold, "scans": len(job.training)}
        write_json(path, facts | _compare(job, _refit(job)))
    return path


def _refit(job: TrainJob) -> RishGains | str:
    """Gains from the training scans, or why there are none."""
    from bids_gevnet.learn.train.trainer import fit_harmonisation

    if len(job.training) * math.prod(job.shape) > MOST_VALUES:
        return f"{len(job.training)} scans are too many to fit again for a report."
    with tempfile.TemporaryDirectory() as work:
        alone = replace(job, testing=(), work_dir=work)
        try:
            gains = fit_harmonisation(alone, Processes())
        except (OSError, BidsGevnetError) as error:
            return str(error)
    return gains if gains is not None else "the job does not harmonise."


def _compare(job: TrainJob, fitted: RishGains | str) -> dict[str, object]:
    if isinstance(fitted, str):
        return {"reason": fitted}
    try:
        stored = load_gains(Path(job.model_dir) / "harmonisation.npz")
    except BidsGevnetError as error:
        return {"reason": str(error)}
    if fitted.sites != stored.sites or fitted.gains.shape != stored.gains.shape:
        return {"reason": "the stored gains are of other sites or another grid."}
    return {"largest_difference": float(np.abs(fitted.gains - stored.gains).max())}
