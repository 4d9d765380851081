"""The paper's Table 3 beside the networks of this cohort.

The paper tells apart its own patients: its figures are what six networks reached there, a context
for those of another cohort and nothing they could be tested against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PAPER_TASKS = ("AD v. DLB", "AD v. PD", "DLB v. PD")
PAPER_TABLE = {
    "ckn2": ("CKN2", (0.8676, 0.9032, 0.9806)),
    "gevnet": ("GEVNet", (0.7708, 0.7236, 0.8112)),
    "ckn1+deepsphere": ("CKN1 + DS", (0.8676, 0.7916, 0.8924)),
    "ckn1+gevnet": ("CKN1 + GEVNet", (0.9034, 0.8630, 0.9330)),
    "ckn2+deepsphere": ("CKN2 + DS", (0.8982, 0.9507, 0.9846)),
    "ckn2+gevnet": ("CKN2 + GEVNet", (0.9286, 0.9836, 0.9827)),
}
"""Name in Table 3 and mean test accuracy over five folds, for each of `PAPER_TASKS`."""


def network_title(name: str) -> str:
    """Name of a network as the paper writes it."""
    return PAPER_TABLE[name][0] if name in PAPER_TABLE else name


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
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        for model in task["models"]:
            if model["kind"] == "network" and "folds" in model["schemes"]:
                summary = model["schemes"]["folds"]["fold_summary"]["accuracy"]
                own = found.setdefault(model["model"], {})
                own[task["title"]] = summary | {"task": task["task"]}
    if len(found) < 2:
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
                "title": title,
                "paper": dict(zip(PAPER_TASKS, accuracies, strict=True)),
                "ours": found[name],
            }
            for name, (title, accuracies) in PAPER_TABLE.items()
            if name in found
        ],
    }
