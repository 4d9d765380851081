"""The answer of an external validation in a sentence: how a finished model does elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bids_gevnet.learn.evaluate.intervals import NOTHING
from bids_gevnet.learn.evaluate.permutation import p_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXTERNAL = "external"
"""Scheme of predictions by a model that was trained on other people, and not for this study."""
_LEVEL = 0.05


def external_headline(task: Mapping[str, Any]) -> dict[str, Any] | None:
    """Say how a finished model does on people it has never seen; None for other schemes.

    Parameters
    ----------
    task : mapping
        Of group_metrics.json, with the figures of its models.

    Returns
    -------
    headline : dict or None
        With the keys of `bids_gevnet.learn.evaluate.headline.headline`.
    """
    model = next((m for m in task["models"] if EXTERNAL in m["schemes"]), None)
    if model is None:
        return None
    scores = model["schemes"][EXTERNAL]
    pooled = scores["pooled"]
    p = scores["permutation"]["balanced_accuracy"]["p"]
    level, sentence = _sentence(task, scores, p)
    counts = ", ".join(
        f"{sum(c['participants'] for c in task['cohort'] if c['label'] == label)} {label}"
        for label in task["labels"]
    )
    parts = [
        f"{model['title']}: chance {task['chance']:.2f}" + ("" if p is None else f", {p_text(p)}"),
        f"ROC AUC {_say(pooled['roc_auc'])}",
        f"Brier score {_say(pooled['brier'])}",
        counts,
    ]
    return {
        "level": level,
        "sentence": sentence,
        "numbers": "; ".join(parts) + ".",
        "told_apart": level == "good",
        "best": model["model"],
        "best_p": p,
        "expected": pooled["balanced_accuracy"],
        "confound": None,
        "network": model["model"],
        "network_adds": "neither",
        "simple": None,
        "difference": NOTHING,
        "models_compared": 1,
        "tasks": 1,
    }


def _sentence(
    task: Mapping[str, Any], scores: Mapping[str, Any], p: float | None
) -> tuple[str, str]:
    """Give level and sentence."""
    start = f"In {task['n_participants']} people it has never seen, the model"
    figure = f"balanced accuracy {_say(scores['pooled']['balanced_accuracy'])}"
    groups = _apart(task["labels"])
    if p is None:
        return "warning", (
            f"{start} reaches a {figure}; but every site has only one of the groups, and a "
            "difference between scanners looks the same."
        )
    if scores["constant"]:
        return "note", f"{start} {scores['constant']}: {figure}."
    if p < _LEVEL:
        return "good", f"{start} tells {groups}: {figure}."
    return "note", (
        f"{start} could not be shown to tell {groups}: {figure}, not distinguishable from chance."
    )


def _apart(labels: Sequence[str]) -> str:
    if len(labels) == 2:
        return f"{labels[0]} from {labels[1]}"
    return f"{', '.join(labels[:-1])} and {labels[-1]} apart"


def _say(value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return "n/a"
    return f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
