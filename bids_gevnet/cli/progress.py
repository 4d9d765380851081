"""Progress of a workflow: a bar and lines on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("bids_gevnet.progress")


class WorkflowProgress:
    """Say which stage of which participant has ended and how long it took.

    An instance is Nipype's status callback. Nodes are named
    `<workflow>.<participant>.<scan>.<stage>`; stages without a description are plumbing and
    are not mentioned.

    Parameters
    ----------
    total : int
        Nodes to run.
    participants : mapping
        Name of a participant's workflow to its label.
    stages : mapping
        Name of a node to its description for people.
    """

    def __init__(
        self, *, total: int, participants: Mapping[str, str], stages: Mapping[str, str]
    ) -> None:
        from tqdm import tqdm

        self._participants = participants
        self._stages = stages
        self._started: dict[str, float] = {}
        self._bar = tqdm(
            total=total,
            unit="step",
            disable=not sys.stderr.isatty(),
            bar_format="{percentage:3.0f} % |{bar}| {n_fmt}/{total_fmt} steps, {elapsed}",
        )

    def __call__(self, node: Any, status: str) -> None:
        """Take note of a node that starts, ends or fails."""
        name = node.fullname
        if status == "start":
            self._started[name] = time.monotonic()
            return
        started = self._started.get(name)
        self._bar.update()
        stage = self._stages.get(node.name)
        # Nipype also reports the end of nodes that never ran because one before them failed.
        if started is None or (stage is None and status == "end"):
            return
        seconds = time.monotonic() - started
        outcome = f"{seconds:6.1f} s" if status == "end" else "  FAILED"
        line = f"{self._label(name):<16} {stage or node.name:<32} {outcome}"
        self._bar.clear()
        log.info("%s", line)
        self._bar.refresh()

    def _label(self, fullname: str) -> str:
        parts = fullname.split(".")
        return next((self._participants[part] for part in parts if part in self._participants), "")

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.close()
