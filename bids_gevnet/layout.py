"""Where a run keeps its files: the output folder and the work directory, each described once.

Every path a user gives is made absolute where the command line is parsed; from there on stages are
handed one of these objects, or a path taken from one, and never compute a place themselves.
"""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Level = Literal["participant", "group"]


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """OUTPUT_DIR: what a run leaves beside the derivatives of single participants.

    Parameters
    ----------
    root : Path
        OUTPUT_DIR, absolute.
    """

    root: Path

    @property
    def logs(self) -> Path:
        """Settings, crash files and records of every run."""
        return self.root / "logs"

    @property
    def locks(self) -> Path:
        """One file per participant, and one for the group level, locked while a run is on."""
        return self.logs / "locks"

    def settings_file(self, level: Level) -> Path:
        """Name the settings file of the last run of a level, as `--config-file` reads it."""
        return self.logs / ("settings.toml" if level == "participant" else "settings-group.toml")

    @property
    def group_run(self) -> Path:
        """When the group level ran, and with which command."""
        return self.logs / "run-group.json"

    def manifest(self, label: str) -> Path:
        """Name the list of all files that a finished participant owns."""
        return self.logs / "manifests" / f"sub-{label}.json"

    def resources(self, label: str) -> Path:
        """Name the table of time and memory per stage that `--resource-monitor` fills."""
        return self.logs / "resources" / f"sub-{label}.tsv"

    @property
    def models(self) -> Path:
        """Trained models: <task>[/<network>]/<split>."""
        return self.root / "models"

    @property
    def cohort_table(self) -> Path:
        """Every scan of the study with its label, site and folds."""
        return self.root / "group_cohort.tsv"

    @property
    def predictions_table(self) -> Path:
        """Every held-out prediction; all figures follow from it."""
        return self.root / "group_predictions.tsv"

    @property
    def metrics_file(self) -> Path:
        """Figures of the group level with their intervals."""
        return self.root / "group_metrics.json"

    @property
    def headline_table(self) -> Path:
        """What every task found, in a sentence and a line of numbers."""
        return self.root / "group_headline.tsv"

    @property
    def quality_table(self) -> Path:
        """Every scan with what is known of it, for the page of their quality."""
        return self.root / "group_qc.tsv"

    @property
    def quality_report(self) -> Path:
        """The page of `--qc-only`, to look at all scans and rate them."""
        return self.root / "group_qc.html"

    @property
    def group_report(self) -> Path:
        """The report of the group level."""
        return self.root / "group_report.html"


@dataclass(frozen=True, slots=True)
class WorkLayout:
    """The work directory: what is only needed until a run has finished.

    Nipype keeps its nodes in folders named after the workflow (`participant`, `group`); the other
    places are named here.

    Parameters
    ----------
    root : Path
        `--work-dir`, absolute.
    """

    root: Path

    def nodes(self, level: Level) -> Path:
        """Name the folder in which Nipype keeps the nodes of a level, after its workflow."""
        return self.root / level

    def locks(self, level: Level) -> Path:
        """Name the folder of locks: runs on other datasets may share the work directory."""
        return self.nodes(level) / "locks"

    @property
    def caches(self) -> Path:
        """Caches of libraries, because HOME may be read-only or missing."""
        return self.root / "cache"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Name all folders that the app makes here, and removes with `--clean-workdir`."""
        return (self.caches, self.crash_files, *map(self.nodes, get_args(Level)))

    def remove(self) -> None:
        """Remove what the app made here; what somebody else keeps in the folder stays."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.in_use.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    @property
    def in_use(self) -> Path:
        """Name the lock that every run holds which uses this folder."""
        return self.root / "in-use.lock"

    @property
    def crash_files(self) -> Path:
        """What Nipype writes when a node fails, one folder per run."""
        return self.root / "crash"

    @property
    def store(self) -> Path:
        """Scans as training reads them, named by their content."""
        return self.root / "group" / "store"

    @property
    def jobs_file(self) -> Path:
        """Every training job of the study in one file, for several nodes of a cluster."""
        return self.root / "group" / "jobs.json"

    @property
    def jobs(self) -> Path:
        """A folder per model to train: its job, harmonisation and checkpoint."""
        return self.root / "group" / "jobs"
