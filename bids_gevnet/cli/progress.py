"""Progress of a workflow: a bar and lines on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bids_gevnet.bids.writing import write_text

log = logging.getLogger("bids_gevnet.progress")

_LAST = "report"
"""The last node of a participant's workflow."""

RESOURCE_COLUMNS = ("scan", "stage", "seconds", "peak_memory_gb", "peak_cpu_percent")


class WorkflowProgress:
    """Say which stage of which participant or model has ended and how long it took.

    An instance is Nipype's status callback. Nodes are named
    `<workflow>.<owner>.<...>.<stage>`; stages without a description are plumbing and are not
    mentioned.

    Parameters
    ----------
    owners : mapping
        Name of the workflow of a participant or a model to its name for people.
    stages : mapping
        Name of a node, or what it begins with up to an underscore, to its description for people.
    nodes : iterable of str or None
        Names of all nodes to run, with or without those of their workflows; None for no bar.
    resources : mapping, optional
        Name of a participant's workflow to the table that time and memory of its stages go to.
    finished : callable, optional
        Told the name of a participant's workflow when its last node has ended well.
    """

    def __init__(
        self,
        owners: Mapping[str, str],
        stages: Mapping[str, str],
        *,
        nodes: Iterable[str] | None,
        resources: Mapping[str, Path] | None = None,
        finished: Callable[[str], None] | None = None,
    ) -> None:
        from tqdm import tqdm

        self._owners, self._stages = owners, stages
        self._resources = dict(resources or {})
        self._finished = finished
        self._rows: dict[str, list[str]] = {name: [] for name in self._resources}
        self._started: dict[str, float] = {}
        self._left = Counter(name.rsplit(".", 1)[-1] for name in nodes or ())
        """How many nodes of a name have not ended."""
        self._longest: dict[str, float] = {}
        """The most seconds that a node of a name took; one that was finished before takes none."""
        self._busy = 0.0
        self._bar = tqdm(
            total=self._left.total(),
            unit="step",
            disable=nodes is None or not sys.stderr.isatty(),
            bar_format="{percentage:3.0f} % |{bar}| {elapsed}{postfix}",
        )
        self._running: dict[str, str] = {}
        self._begun = time.monotonic()

    def __call__(self, node: Any, status: str) -> None:
        """Take note of a node that starts, ends or fails."""
        name = node.fullname
        stage = self.stage(node.name)
        if status == "start":
            self._started[name] = time.monotonic()
            if stage is not None:
                self._running[name] = f"{self._owner(name)} {stage}".strip()
            self._show()
            return
        started = self._started.get(name)
        self._running.pop(name, None)
        self._left[node.name] -= 1
        if started is not None and status == "end":
            took = time.monotonic() - started
            self._busy += took
            self._longest[node.name] = max(took, self._longest.get(node.name, 0.0))
        self._bar.update()
        self._show()
        # Nipype also reports the end of nodes that never ran because one before them failed.
        if started is None or (stage is None and status == "end"):
            return
        seconds = time.monotonic() - started
        outcome = f"{seconds:6.1f} s" if status == "end" else "  FAILED"
        line = f"{self._owner(name):<16} {stage or node.name:<32} {outcome}"
        self._bar.clear()
        log.info("%s", line)
        self._bar.refresh()
        if status == "end":
            self._record(node)
            parts = name.split(".")
            if self._finished is not None and parts[1:] == [parts[1], _LAST]:
                self._finished(parts[1])

    def _show(self) -> None:
        """Show what is running, and how long the rest will take as far as that is known."""
        if self._bar.disable:
            return
        parts = list(self._running.values())[:3]
        if len(self._running) > 3:
            parts.append(f"{len(self._running) - 3} more")
        left = self.seconds_left()
        if left is not None:
            parts.insert(0, f"about {_duration(left)} left")
        self._bar.set_postfix_str("; ".join(parts))

    def seconds_left(self) -> float | None:
        """Estimate from what each stage took before; None until every one that is left has run.

        That is so when the first participant is finished: before it, nobody knows.
        """
        left = {name: count for name, count in self._left.items() if count > 0}
        now = time.monotonic()
        if not left or not left.keys() <= self._longest.keys() or now <= self._begun:
            return None
        to_do = sum(count * self._longest[name] for name, count in left.items())
        for fullname in self._running:
            name = fullname.rsplit(".", 1)[-1]
            to_do -= min(now - self._started[fullname], self._longest.get(name, 0.0))
        at_once = self._busy / (now - self._begun)
        return to_do / at_once if at_once > 0 else None

    def stage(self, node_name: str) -> str | None:
        """Describe a node for people; None for plumbing."""
        return self._stages.get(node_name) or self._stages.get(node_name.split("_", 1)[0])

    def _owner(self, fullname: str) -> str:
        parts = fullname.split(".")
        return next((self._owners[part] for part in parts if part in self._owners), "")

    def _record(self, node: Any) -> None:
        """Add time and memory of a finished stage to its participant's table."""
        parts = node.fullname.split(".")
        owner = next((part for part in parts if part in self._resources), None)
        if owner is None:
            return
        runtime = node.result.runtime
        runtime = runtime[0] if isinstance(runtime, list) else runtime
        measured = (
            getattr(runtime, "duration", None),
            getattr(runtime, "mem_peak_gb", None),
            getattr(runtime, "cpu_percent", None),
        )
        cells = ["n/a" if value is None else f"{value:.3f}" for value in measured]
        inside = [part for part in parts[:-1] if part not in {parts[0], owner}]
        stage = self.stage(node.name) or node.name
        row = "\t".join([".".join(inside) or "n/a", stage, *cells])
        self._rows[owner].append(row)
        text = "\n".join(["\t".join(RESOURCE_COLUMNS), *self._rows[owner]]) + "\n"
        write_text(self._resources[owner], text)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.close()


def _duration(seconds: float) -> str:
    """Say a duration as a person would."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
