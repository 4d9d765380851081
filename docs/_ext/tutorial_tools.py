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

PREPROCESSING = "--output-resolution 12 --correction none --skip-bids-validation"
TRAINING = "--folds 2 --epochs 4 --samples-per-class 16 --strides 1 1 2 1"
"""Enough to see every step; real studies keep the defaults."""


@cache
def scratch() -> Path:
    """Make a folder that lasts as long as the build."""
    folder = Path(tempfile.mkdtemp(prefix="bids_gevnet-tutorials-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run(line: str) -> None:
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
    print(done.stdout.replace(f"{scratch()}/", ""))
    if done.returncode:
        raise SystemExit(f"{line} ended with {done.returncode}")


@cache
def study() -> Path:
    """Make a cohort of sixteen phantoms, process everybody and train; returns its output."""
    run(
        "bids_gevnet_phantom cohort --groups AD,PD --per-group 8 --sites 2 --voxel-mm 9 "
        "--directions 16 --effects both --seed 4"
    )
    run(f"bids_gevnet cohort out participant {PREPROCESSING}")
    run(f"bids_gevnet cohort out group {TRAINING}")
    return scratch() / "out"


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
