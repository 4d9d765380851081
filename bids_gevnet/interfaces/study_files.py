"""What passes between nodes of the group level as files or text, read back."""

import json
import tomllib
from pathlib import Path
from typing import Any

from bids_gevnet.settings import Settings


def read_settings(text: str) -> Settings:
    """Read the settings of a node."""
    return Settings.from_tables(tomllib.loads(text), source="the settings of the node")


def read_cohort_file(path: str) -> Any:
    """Read the `Cohort` that the first node wrote."""
    from bids_gevnet.learn.cohort.members import cohort_from_json

    return cohort_from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def read_job(path: str) -> Any:
    """Read the one `TrainJob` of a file."""
    from bids_gevnet.learn.train.jobs import read_jobs

    (job,) = read_jobs(Path(path))
    return job
