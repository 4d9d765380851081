"""Run a Nipype workflow and tell, participant by participant, what failed and why."""

import os
import platform
import reprlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bids_gevnet.cli.signals import raise_again
from bids_gevnet.crash_files import has_crashes, read_crashes
from bids_gevnet.errors import InputError, describe_unreadable
from bids_gevnet.layout import WorkLayout
from bids_gevnet.settings import LARGEST_FILE, ExecutionSettings, read_toml

_POLL_S = 0.1
"""Nipype looks for finished nodes this often; its two seconds cost more than our short nodes."""

IN_ORDER = "Linear"
"""Nipype's plugin for stages in this process, one after the other."""
LOCAL = "MultiProc"
"""Nipype's name for processes on this machine."""

PLUGINS = frozenset({
    *("Condor", "CondorDAGMan", "Debug", "IPython", "LegacyMultiProc", "Linear", "LSF"),
    *("MultiProc", "OAR", "PBS", "PBSGraph", "SGE", "SGEGraph", "SLURM", "SLURMGraph"),
    "SomaFlow",
})  # fmt: skip
"""Nipype's plugins; listed here because importing them takes seconds."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that failed, and the last line of its traceback."""

    owner: str
    """Whose node it was: a participant or a model; empty for one that is everybody's."""
    stage: str
    message: str
    crash_file: Path


def configure(workflow: Any, execution: ExecutionSettings, *, crash_dir: Path) -> None:
    """Set Nipype's execution options on one workflow, not globally."""
    workflow.config["execution"] = {
        "crashdump_dir": str(crash_dir),
        "crashfile_format": "txt",
        "stop_on_first_crash": str(execution.stop_on_first_crash).lower(),
        "poll_sleep_duration": str(_POLL_S),
        "check_version": "false",
        "use_relative_paths": "false",
        # Small files decide by content whether a node has to run again; images by time and
        # size, because reading gigabytes to learn that nothing changed would take longer.
        "hash_method": "timestamp",
        "remove_unnecessary_outputs": "false",
    }


def make_crash_dir(work: WorkLayout) -> Path:
    """Make an empty folder for the crash files of this run, on this machine."""
    folder = work.crash_files / f"run-{platform.node()}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def choose_plugin(execution: ExecutionSettings) -> tuple[str, dict[str, Any]]:
    """Name Nipype's plugin and its arguments: those of a file, or several local processes."""
    if execution.use_plugin is not None:
        table = read_plugin(execution.use_plugin)
        return str(table["plugin"]), dict(table.get("plugin_args", {}))
    arguments: dict[str, Any] = {"n_procs": execution.processes, "raise_insufficient": False}
    # Nodes that use a GPU take the first: one at a time, or they would share its memory.
    arguments["n_gpu_procs"] = 1
    if execution.mem_mb:
        arguments["memory_gb"] = execution.mem_mb / 1024
    return LOCAL, arguments


def read_plugin(path: Path) -> Mapping[str, Any]:
    """Read the TOML or YAML file of `--use-plugin`: a name and, by name, its arguments."""
    table = _read_yaml(path) if path.suffix in {".yml", ".yaml"} else read_toml(path)
    if not isinstance(table, Mapping) or "plugin" not in table:
        raise InputError(
            expected=f"a key plugin in {path}",
            found=reprlib.repr(table),
            remedy="write for instance plugin = 'SLURM'",
        )
    name, arguments = table["plugin"], table.get("plugin_args", {})
    if not isinstance(name, str) or name not in PLUGINS:
        raise InputError(
            expected=f"the name of a plugin of Nipype in {path}",
            found=repr(name)[:100] if isinstance(name, str) else f"a {type(name).__name__}",
            remedy=f"choose among {', '.join(sorted(PLUGINS))}",
        )
    if not isinstance(arguments, Mapping):
        raise InputError(
            expected=f"a table plugin_args in {path}",
            found=reprlib.repr(arguments),
            remedy="write its arguments by name, or leave plugin_args out",
        )
    return table


def _read_yaml(path: Path) -> Any:
    import yaml

    from bids_gevnet.bids.reading import read_text

    try:
        text = read_text(path)
        if len(text) > LARGEST_FILE:
            raise ValueError(f"more than {LARGEST_FILE} characters")  # noqa: TRY301
        return yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(
            expected="a readable file for --use-plugin",
            found=f"{path} ({describe_unreadable(error)[:500]})",
            remedy="check its path and syntax",
        ) from None


def run_workflow(
    workflow: Any,
    *,
    plugin: str,
    crash_dir: Path,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Run a configured workflow; nodes that fail leave crash files and do not raise here."""
    given: dict[str, Any] = dict(arguments or {})
    try:
        if plugin == LOCAL:
            # Late: Nipype reads its configuration when it is imported.
            from bids_gevnet.cli.workers import LocalProcessesPlugin

            workflow.run(plugin=LocalProcessesPlugin(given))
        else:
            if plugin == IN_ORDER:
                given["status_callback"] = _Stopping(given.get("status_callback"))
            workflow.run(plugin=plugin, plugin_args=given)
    except RuntimeError:
        # Nipype raises the first failure again when all that could run has run; every one of
        # them is in a crash file, and only those name their participants. Without a crash file
        # it was not a node that failed, and nobody else would tell.
        if not has_crashes(crash_dir):
            raise


@dataclass(frozen=True, slots=True)
class _Stopping:
    """A status callback after which a signal ends the run; Nipype takes it for a failure."""

    callback: Callable[[Any, str], None] | None

    def __call__(self, node: Any, status: str) -> None:
        """Hand on what happened to a node."""
        if status == "exception":
            raise_again()
        if self.callback is not None:
            self.callback(node, status)


def read_failures(crash_dir: Path, owners: Mapping[str, str]) -> list[Failure]:
    """Read what failed where from Nipype's crash files; what several stages met is told once.

    Parameters
    ----------
    crash_dir : Path
    owners : mapping
        Name of the workflow of a participant or a model to its name for people.
    """
    failures: dict[tuple[str, str], Failure] = {}
    for crash in read_crashes(crash_dir):
        owner = next((owners[name] for name in crash.node if name in owners), "")
        failure = Failure(owner, crash.stage, crash.message, crash.path)
        failures.setdefault((owner, crash.message), failure)
    return list(failures.values())
