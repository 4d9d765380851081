"""The answer of an external validation in a sentence: how a finished model does elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.intervals import NOTHING
from bids_gevnet.learn.evaluate.permutation import p_text
from bids_gevnet.learn.evaluate.wording import with_unit

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
    figure = task["figure"]
    p = scores["permutation"][figure]["p"]
    level, sentence = _sentence(task, scores, p)
    parts = [
        f"{model['title']}: chance {task['chance']:.2f}" + ("" if p is None else f", {p_text(p)}"),
        *(_number_parts(task, pooled) if _is_number(task) else _class_parts(task, pooled)),
    ]
    return {
        "level": level,
        "sentence": sentence,
        "numbers": "; ".join(parts) + ".",
        "told_apart": level == "good",
        "best": model["model"],
        "best_p": p,
        "expected": pooled["mae" if _is_number(task) else figure],
        "confound": None,
        "network": model["model"],
        "network_adds": "neither",
        "simple": None,
        "difference": NOTHING,
        "models_compared": 1,
        "tasks": 1,
    }


def _is_number(task: Mapping[str, Any]) -> bool:
    return bool(task["kind"] == REGRESSION)


def _class_parts(task: Mapping[str, Any], pooled: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(
        f"{sum(c['participants'] for c in task['cohort'] if c['label'] == label)} {label}"
        for label in task["labels"]
    )
    return [
        f"ROC AUC {_say(pooled['roc_auc'])}",
        f"Brier score {_say(pooled['brier'])}",
        counts,
    ]


def _number_parts(task: Mapping[str, Any], pooled: Mapping[str, Any]) -> list[str]:
    low, high = task["range"]
    error = with_unit(_say(pooled["mae"]), task["unit"])
    span = with_unit(f"{low:g} to {high:g}", task["unit"])
    return [
        f"mean absolute error {error}, {pooled['guessing_mae']:.2f} by one number for everybody",
        f"R² {_say(pooled['r2'])}",
        f"{task['n_participants']} participants, {task['title']} {span}",
    ]


def _sentence(
    task: Mapping[str, Any], scores: Mapping[str, Any], p: float | None
) -> tuple[str, str]:
    """Give level and sentence."""
    start = f"In {task['n_participants']} people it has never seen, the model"
    number = _is_number(task)
    name = task["figure"].replace("_", " ")
    figure = f"{name} {_say(scores['pooled'][task['figure']])}"
    verb, what = ("predicts", task["title"]) if number else ("tells", _apart(task["labels"]))
    if number:
        error = scores["pooled"]["mae"]["value"]
        figure += f", off by {with_unit(f'{error:.3g}', task['unit'])} on average"
    if p is None:
        alone = (
            "no site has people who differ in it"
            if number
            else ("every site has only one of the groups")
        )
        return "warning", (
            f"{start} reaches a {figure}; but {alone}, and a difference between scanners looks "
            "the same."
        )
    if scores["constant"]:
        return "note", f"{start} {scores['constant']}: {figure}."
    if p < _LEVEL:
        return "good", f"{start} {verb} {what}: {figure}."
    return "note", (
        f"{start} could not be shown to {verb[:-1]} {what}: {figure}, not distinguishable from "
        "chance."
    )


def _apart(labels: Sequence[str]) -> str:
    if len(labels) == 2:
        return f"{labels[0]} from {labels[1]}"
    return f"{', '.join(labels[:-1])} and {labels[-1]} apart"


def _say(value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return "n/a"
    if value["low"] is None:
        return f"{value['value']:.2f}"
    return f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
