"""Compare networks: Table 3 of the paper beside the same networks on this cohort."""

from dataclasses import dataclass
from typing import Any

from bids_gevnet.report.group.results import JsonObject, as_list, as_map, as_number


@dataclass(frozen=True)
class AblationRow:
    """A network: what the paper reached with its patients, and what was reached here."""

    title: str
    paper: list[str]
    ours: list[str]


@dataclass(frozen=True)
class Ablation:
    """Table 3 of the paper beside the same networks on this cohort."""

    measure: str
    source: str
    paper_cohort: str
    paper_tasks: list[str]
    our_tasks: list[str]
    rows: list[AblationRow]


def read_ablation(metrics: JsonObject) -> Ablation | None:
    """Read the comparison of networks; nothing if there was one network only."""
    raw = as_map(metrics.get("ablation"))
    entries = [as_map(entry) for entry in as_list(raw.get("rows"))]
    if not entries:
        return None
    paper = as_map(raw.get("paper"))
    paper_tasks = [str(task) for task in as_list(paper.get("tasks"))]
    ours = list(dict.fromkeys(str(t) for entry in entries for t in as_map(entry.get("ours"))))
    rows = []
    for entry in entries:
        printed = as_map(entry.get("paper"))
        numbers = [as_number(printed.get(task)) for task in paper_tasks]
        reached = as_map(entry.get("ours"))
        rows.append(
            AblationRow(
                str(entry.get("title") or entry.get("network") or ""),
                ["–" if n is None else f"{100 * n:.2f} %" for n in numbers],
                [_percent(reached.get(task)) for task in ours],
            )
        )
    return Ablation(
        str(raw.get("measure", "accuracy")),
        str(paper.get("source", "the paper")),
        str(paper.get("cohort", "the paper's patients")),
        paper_tasks,
        ours,
        rows,
    )


def _percent(raw: Any) -> str:
    summary = as_map(raw)
    mean, sd = as_number(summary.get("mean")), as_number(summary.get("sd"))
    if mean is None:
        return "–"
    return f"{100 * mean:.1f} %" + (f" ± {100 * sd:.1f}" if sd is not None else "")
