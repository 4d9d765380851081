"""What a reader must know before believing a result: confounds that reach as far as the network.

Site, motion, age and sex know nothing of the brain. Where one of them alone does as well as the
network, within the network's interval, or where the site alone is clearly better than chance, the
network may have learnt that instead of the diagnosis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INSTEAD = {
    "site": "the scanner",
    "motion": "how much people moved",
    "age_sex": "age and sex",
}


def confound_warnings(content: Mapping[str, Any]) -> list[str]:
    """Sentences about networks at chance and confounds that keep up with them.

    Parameters
    ----------
    content : mapping
        From `bids_gevnet.learn.evaluate.scoring.evaluate_table`.
    """
    return [text for task in content["tasks"] for text in _task_warnings(task)]


def _task_warnings(task: Mapping[str, Any]) -> Iterator[str]:
    scores = {
        (model["kind"], model["model"]): (
            model["title"],
            model["schemes"]["folds"]["pooled"]["balanced_accuracy"],
        )
        for model in task["models"]
        if "folds" in model["schemes"]
    }
    confounds = [
        (name, *entry)
        for (kind, name), entry in scores.items()
        if kind == "baseline" and name in _INSTEAD and entry[1]["value"] is not None
    ]
    for name, _, score in confounds:
        if name == "site" and score["low"] > task["chance"]:
            yield (
                f"{task['title']}: the site alone tells the groups apart (balanced accuracy "
                f"{_say(score)}): differences between groups may be differences between scanners."
            )
    for (kind, _), (title, score) in scores.items():
        if kind != "network" or score["value"] is None:
            continue
        if score["low"] <= task["chance"]:
            yield (
                f"{task['title']}: {title} is not clearly better than chance (balanced accuracy "
                f"{_say(score)})."
            )
            continue
        for name, rival, other in confounds:
            if other["value"] >= score["low"]:
                yield (
                    f"{task['title']}: {rival.lower()} reaches {other['value']:.2f}, within or "
                    f"above the interval of {title} ({_say(score)}): the network may have learnt "
                    f"{_INSTEAD[name]} instead of the groups."
                )


def _say(value: Mapping[str, Any]) -> str:
    return f"{value['value']:.2f}, {value['low']:.2f} to {value['high']:.2f}"
