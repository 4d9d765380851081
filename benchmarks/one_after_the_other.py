"""When reports come, and how many participants the work directory holds meanwhile.

    python benchmarks/one_after_the_other.py --nprocs 1 2

Six phantoms go through the participant level with --clean-workdir. Participants should finish
one after the other: the first report after about a sixth of the time on one core, and no folders
in the work directory but those of participants that are running.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEOPLE = 6


def follow(cohort: Path, folder: Path, nprocs: int) -> tuple[list[float], float, int]:
    """Run the participant level; return when each report was there, the end, and the most people.

    The most people are those with folders in the work directory at the same time.
    """
    output, work = folder / f"out-{nprocs}", folder / f"work-{nprocs}"
    command = [sys.executable, "-m", "bids_gevnet.cli.start", cohort, output, "participant"]
    command += ["-w", work, "--clean-workdir", "--nprocs", str(nprocs), "--skip-bids-validation"]
    command += ["--output-resolution", "8"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reports: dict[str, float] = {}
    most = 0
    while process.poll() is None:
        for report in output.glob("sub-*.html"):
            reports.setdefault(report.name, time.monotonic() - started)
        most = max(most, sum(1 for _ in (work / "participant").glob("sub_*")))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"the participant level ended with {process.returncode}; see {output}/logs")
    return sorted(reports.values()), time.monotonic() - started, most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nprocs", type=int, nargs="+", default=[1, 2])
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        cohort = Path(temporary) / "cohort"
        command = [sys.executable, "-m", "bids_gevnet.cli.phantom", cohort, "--groups", "AD"]
        command += ["--per-group", str(PEOPLE), "--voxel-mm", "8"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print("| cores | reports after (s) | end (s) | most people in the work directory |")
        print("|---:|---|---:|---:|")
        for nprocs in wanted.nprocs:
            reports, end, most = follow(cohort, Path(temporary), nprocs)
            times = ", ".join(f"{at:.0f}" for at in reports)
            print(f"| {nprocs} | {times} | {end:.0f} | {most} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
