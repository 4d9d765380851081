"""One still phantom head, raw, that tests lay out as other pipelines would."""

from pathlib import Path

from preprocessed_layouts import RawScan, read_raw

from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

STILL = {"motion_mm": 0, "motion_deg": 0, "eddy": 0}


def write_still_cohort(folder: Path, **changes: object) -> Path:
    write_cohort(folder, tiny_settings(**({"groups": ("AD",), "sites": 1} | STILL | changes)))
    return folder


def still_scan(folder: Path, label: str = "001", **changes: object) -> RawScan:
    return read_raw(write_still_cohort(folder, **changes), label)
