"""`make demo`: a phantom cohort through all levels, small enough for a laptop."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bids_gevnet.cli import phantom, run

_VOXEL_MM = "6"


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
        [str(cohort), str(output), "participant", "--output-resolution", _VOXEL_MM, "-v"]
    )
    if code:
        return code
    print("3. Group level:")
    run.main([str(cohort), str(output), "group"])
    reports = sorted(output.glob("*.html"))
    minutes = (time.monotonic() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes. {len(reports)} reports to open in a browser:")
    for report in reports:
        print(f"  {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
