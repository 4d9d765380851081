"""The accuracies of the paper's Table 3 beside those of the same networks on this cohort.

The paper classifies its own patients: its figures are what six networks reached there, a context
for those of another cohort and nothing they could be tested against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bids_gevnet.learn.cohort.tasks import CLASSIFICATION
from bids_gevnet.nn.registry import PAPER_TASKS, networks, scan_networks

if TYPE_CHECKING:
    from collections.abc import Sequence


def ablation_table(tasks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Mean accuracy over folds of every network, with the paper's.

    Parameters
    ----------
    tasks : sequence of dict
        Evaluated tasks.

    Returns
    -------
    table : dict or None
        None if only one network was trained.
    """
    reached: dict[str, dict[str, Any]] = {}
    # The paper has no regression.
    for task in (task for task in tasks if task["kind"] == CLASSIFICATION):
        for model in task["models"]:
            if model["kind"] == "network" and "folds" in model["schemes"]:
                summary = model["schemes"]["folds"]["fold_summary"]["accuracy"]
                by_task = reached.setdefault(model["model"], {})
                by_task[task["title"]] = summary | {"task": task["task"]}
    if len(reached) < 2:
        return None
    return {
        "measure": "mean accuracy over folds",
        "paper": {
            "source": "Table 3 of the paper: mean test accuracy over five folds",
            "cohort": "the paper's patients",
            "tasks": list(PAPER_TASKS),
        },
        "ours": {"cohort": "this cohort"},
        "rows": [
            {
                "network": name,
                "title": networks()[name].title,
                "paper": dict(zip(PAPER_TASKS, networks()[name].paper_accuracies, strict=False)),
                "ours": reached[name],
            }
            for name in scan_networks()
            if name in reached
        ],
    }
