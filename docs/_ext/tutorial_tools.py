"""What the tutorials share: commands as a user types them, and cohorts that are made once."""

from __future__ import annotations

import atexit
import html
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_MODULES = {
    "bids_gevnet": "bids_gevnet.cli.start",
    "bids_gevnet_phantom": "bids_gevnet.cli.phantom",
}

PREPROCESSING = (
    "--output-resolution 12 --denoise none --unring none --correction none --skip-bids-validation"
)
TRAINING = "--folds 2 --epochs 4 --samples-per-class 16"
"""Enough to see every step; real studies keep the defaults."""

_PEOPLE = "--per-group 6 --sites 2 --voxel-mm 9 --directions 16 --effects both --seed 4"
_STUDY = (
    f"bids_gevnet_phantom cohort --groups AD,PD {_PEOPLE}",
    f"bids_gevnet cohort out participant {PREPROCESSING}",
    f"bids_gevnet cohort out group {TRAINING}",
)
_done: set[str] = set()


@cache
def scratch() -> Path:
    """Make a folder that lasts as long as the build."""
    folder = Path(tempfile.mkdtemp(prefix="bids_gevnet-tutorials-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run(line: str, *, talks: bool = True) -> None:
    """Run a command in the scratch folder and print what it says, as on a terminal."""
    program, *arguments = line.split()
    print(f"$ {line}")
    done = subprocess.run(
        [sys.executable, "-m", _MODULES[program], *arguments],
        cwd=scratch(),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = done.stdout.replace(f"{scratch()}/", "")
    if talks or done.returncode:
        print(said)
    if done.returncode:
        raise SystemExit(f"{line} ended with {done.returncode}")


def study() -> Path:
    """Make a cohort of twelve phantoms, process everybody and train; returns its output.

    Every page shows the commands, as each is read by itself; only the first one runs them.
    """
    for line in _STUDY:
        run_once(line)
    return scratch() / "out"


def run_once(line: str) -> None:
    """Show a command, and run it if no page has done so before."""
    if line in _done:
        print(f"$ {line}")
    else:
        run(line, talks=False)
        _done.add(line)


def lay_out_as_qsiprep(raw: str, derivatives: str) -> None:
    """Write everybody of a still phantom cohort as QSIPrep would, by the layout of the tests."""
    from preprocessed_layouts import read_raw, write_qsiprep

    cohort = scratch() / raw
    for folder in sorted(cohort.glob("sub-*")):
        write_qsiprep(scratch() / derivatives, read_raw(cohort, folder.name[len("sub-") :]))


def show_tree(name: str) -> None:
    """Print the files below a folder."""
    folder = scratch() / name
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            print(path.relative_to(scratch()))


class Report:
    """A report, shown inside the page."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _repr_html_(self) -> str:
        text = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return (
            f'<iframe srcdoc="{text}" title="{self.path.name}" loading="lazy" '
            'style="width: 100%; height: 42rem; border: 1px solid currentColor"></iframe>'
        )
