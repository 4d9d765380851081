"""Processor time of a dry run over thousands of participants.

    python benchmarks/many_participants.py --participants 10000

Everybody has a scan, a T1w and sidecars under own names; the bytes are hard links to those
of one phantom, so that the dataset is written in a minute. Indexing is part of the dry run. The
lines with bars are rows of benchmarks/results/scale.md.
"""

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def write_dataset(folder: Path, participants: int) -> None:
    one = folder.with_name("one")
    command = [sys.executable, "-m", "bids_gevnet.cli.phantom", one, "--groups", "AD,CN"]
    command += [
        "--per-group",
        "1",
        "--sites",
        "1",
        "--voxel-mm",
        "8",
        "--directions",
        "16",
        "--t1w",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    person = one / "sub-001"
    for number in range(participants):
        name = f"sub-{number:05d}"
        for file in sorted(person.rglob("*.*")):
            to = folder / name / file.relative_to(person).parent
            to.mkdir(parents=True, exist_ok=True)
            os.link(file, to / file.name.replace(person.name, name))
    for file in one.glob("*.json"):
        os.link(file, folder / file.name)
    with (folder / "participants.tsv").open("w", newline="") as table:
        rows = csv.writer(table, delimiter="\t")
        rows.writerow(["participant_id", "diagnosis"])
        rows.writerows([f"sub-{n:05d}", "AD" if n % 2 else "CN"] for n in range(participants))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--participants", type=int, default=10_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, output = Path(temporary) / "data", Path(temporary) / "out"
        write_dataset(folder, wanted.participants)
        command = [sys.executable, "-m", "bids_gevnet.cli.start", folder, output, "participant"]
        for title, options in (
            ("with the validator", ()),
            ("without the validator", ("--skip-bids-validation",)),
        ):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            started = time.monotonic()
            ended = subprocess.run(
                [*command, "--dry-run", *options],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            said = ended.stdout.splitlines()
            print(*said[:6], "...", *said[-3:], sep="\n")
            print(
                f"| {wanted.participants} | {title} | {processor_s:.0f} | "
                f"{time.monotonic() - started:.0f} | {after.ru_maxrss / 1e6:.2f} |"
            )
            if ended.returncode:
                return ended.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
