"""Time and peak memory of every stage of the participant level.

    python benchmarks/participant.py BIDS_DIR [options of bids_gevnet]

runs `bids_gevnet BIDS_DIR <temporary folder> participant` in a process of its own, samples the
resident memory of that process and its children, and prints, for each stage, its time and the
largest total while it ran. Stages that run at the same time share the memory they are charged.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_S = 0.05
_LINE = re.compile(r"^\S+ \S+ INFO (?P<who>sub-\S+)\s+(?P<stage>.+?)\s+(?P<seconds>[\d.]+) s$")


def tree_memory(pid: int) -> int:
    """Resident bytes of a process and all its descendants."""
    total, pending = 0, [pid]
    while pending:
        current = pending.pop()
        try:
            total += int(Path(f"/proc/{current}/statm").read_text().split()[1]) * _PAGE
            for task in Path(f"/proc/{current}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
    return total


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bids_gevnet.cli.run", sys.argv[1]]
        command += [str(Path(folder) / "out"), "participant", "-v", *sys.argv[2:]]
        started = time.monotonic()
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        samples: list[tuple[float, int]] = []

        def sample() -> None:
            while process.poll() is None:
                samples.append((time.monotonic(), tree_memory(process.pid)))
                time.sleep(_SAMPLE_S)

        sampler = threading.Thread(target=sample)
        sampler.start()
        stages = []
        assert process.stderr is not None
        for line in process.stderr:
            found = _LINE.match(line.rstrip())
            if found:
                end, seconds = time.monotonic(), float(found["seconds"])
                inside = [size for when, size in samples if end - seconds - 0.2 <= when <= end]
                stages.append((found["who"], found["stage"], seconds, max(inside, default=0)))
            else:
                print(line, end="", file=sys.stderr)
        process.wait()
        sampler.join()
        total = time.monotonic() - started
    print("| participant | stage | time (s) | peak memory (GB) |\n|---|---|---:|---:|")
    for who, stage, seconds, peak in stages:
        print(f"| {who} | {stage} | {seconds:.1f} | {peak / 1e9:.2f} |")
    overall = max((size for _, size in samples), default=0)
    print(f"| all | everything | {total:.1f} | {overall / 1e9:.2f} |")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
