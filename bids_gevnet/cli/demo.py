"""`make demo`: a phantom cohort through all levels, small enough for a laptop."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bids_gevnet.cli import phantom, run

_VOXEL_MM = "6"
_OUTPUT_MM = "8"
_TRAINING = ("--folds", "2", "--epochs", "3", "--samples-per-class", "4")
"""Enough to see every step, far too little to learn: a real run keeps the defaults."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write a phantom cohort, run both levels on it and print where the reports are."""
    folder = Path((argv or sys.argv[1:] or ["demo"])[0])
    cohort, output = folder / "cohort", folder / "derivatives"
    started = time.monotonic()
    if not (cohort / "dataset_description.json").exists():
        print(f"1. A phantom cohort: 12 simulated participants, 2 sites, in {cohort}")
        code = phantom.main([str(cohort), "--voxel-mm", _VOXEL_MM])
        if code:
            return code
    else:
        print(f"1. The phantom cohort is there already: {cohort}")
    print("2. Participant level: every scan to the sphere in MNI space")
    code = run.main(
        [str(cohort), str(output), "participant", "--output-resolution", _OUTPUT_MM, "-v"]
    )
    if code:
        return code
    print("3. Group level: harmonise, train and test over folds, and report")
    code = run.main([str(cohort), str(output), "group", "-v", *_TRAINING])
    if code:
        return code
    print(f"\nDone in {(time.monotonic() - started) / 60:.1f} minutes.")
    return tell_results(output)


def tell_results(output: Path) -> int:
    """Print where the reports, tables and models are; 1 if there is no group report."""
    subjects, groups = sorted(output.glob("sub-*.html")), sorted(output.glob("group_*.html"))
    tables = [path for path in sorted(output.glob("group_*")) if path not in groups]
    for heading, paths in (
        ("Tables and models of the group level:", [*tables, *output.glob("models/*/final")]),
        (f"{len(subjects)} subject reports, to open in a browser:", subjects),
        (f"{len(groups)} group report:", groups),
    ):
        print(heading)
        for path in paths:
            print(f"  {path}")
    print("These are results on simulated scans; they say nothing about patients.")
    return 0 if groups else 1


if __name__ == "__main__":
    sys.exit(main())
