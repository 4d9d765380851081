"""What a reader must know before believing a result: confounds that reach as far as the network.

Site, motion, age and sex know nothing of the brain. Where one of them alone does as well as the
network, within the network's interval, or where the site alone is clearly better than chance, the
network may have learned that instead of the diagnosis. Whether a network is better than chance is
said by the headline of its task.

A fact is said once: what holds for several tasks names them, with the figures of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.baselines import BASELINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

STRONG_ASSOCIATION = 0.3
"""Cramér's V of site and diagnosis from which a reader is warned."""


@dataclass(frozen=True)
class Fact:
    """Something true of one task: what, of which task, with which figures."""

    text: str
    task: str
    figures: str = ""


_ORIGINS = {"site": "scanners", "source": "pipelines"}


def _alone(task: Mapping[str, Any], name: str) -> str:
    """Say that the site or the source alone tells what is predicted."""
    if task["kind"] == REGRESSION:
        return (
            f"The {name} alone predicts {task['title']}: what scans tell about it may be "
            f"differences between {_ORIGINS[name]}."
        )
    return (
        f"The {name} alone tells the groups apart: differences between groups may be "
        f"differences between {_ORIGINS[name]}."
    )


def confound_warnings(content: Mapping[str, Any]) -> list[str]:
    """Sentences about confounds that keep up with the networks.

    Parameters
    ----------
    content : mapping
        From `bids_gevnet.learn.evaluate.scoring.evaluate_table`.
    """
    tasks = content["tasks"]
    facts = [fact for task in tasks for fact in _task_facts(task)]
    association = content.get("site_association")
    first = []
    said = any(fact.text == _alone(task, "site") for fact in facts for task in tasks)
    if association is not None and association >= STRONG_ASSOCIATION and not said:
        first = [_associated(tasks[0], association)]
    return [*first, *merge_facts(facts, len(tasks))]


def _associated(task: Mapping[str, Any], association: float) -> str:
    if task["kind"] == REGRESSION:
        return (
            f"Site and {task['title']} are associated (correlation ratio {association:.2f}): what "
            "scans tell about it may be differences between scanners."
        )
    return (
        f"Site and diagnosis are associated (Cramér's V {association:.2f}): differences between "
        "diagnoses may be differences between scanners."
    )


def merge_facts(facts: Iterable[Fact], tasks: int) -> list[str]:
    """Say every fact once, with the tasks it holds for; all of a study's tasks need no names.

    Examples
    --------
    >>> facts = [Fact("Site A is small.", "AD v. PD"), Fact("Site A is small.", "AD v. DLB")]
    >>> merge_facts(facts, 3)
    ['Site A is small. (AD v. PD; AD v. DLB)']
    >>> merge_facts(facts, 2)
    ['Site A is small.']
    """
    merged: dict[str, dict[str, str]] = {}
    for fact in facts:
        merged.setdefault(fact.text, {})[fact.task] = fact.figures
    sentences = []
    for text, where in merged.items():
        named = [
            f"{task}: {figures}" if figures and tasks > 1 else figures or task
            for task, figures in where.items()
        ]
        everywhere = len(where) == tasks and not any(where.values())
        sentences.append(text if everywhere else f"{text} ({'; '.join(named)})")
    return sentences


def _task_facts(task: Mapping[str, Any]) -> Iterator[Fact]:
    scores = [
        (model["kind"], model["model"], model["title"], _score(model, task["figure"]))
        for model in task["models"]
        if "folds" in model["schemes"]
    ]
    confounds = [
        (name, title, score)
        for kind, name, title, score in scores
        if kind == "baseline"
        and name in BASELINES
        and BASELINES[name].confound
        and score["value"] is not None
    ]
    for name, _, score in confounds:
        if name in _ORIGINS and _lower(score) > task["chance"]:
            figure = task["figure"].replace("_", " ")
            yield Fact(_alone(task, name), task["title"], f"{figure} {_say(score)}")
    target = task["title"] if task["kind"] == REGRESSION else "the groups"
    for kind, _, title, score in scores:
        if kind != "network" or score["value"] is None or _lower(score) <= task["chance"]:
            continue
        for name, rival, other in confounds:
            if other["value"] >= _lower(score):
                yield Fact(
                    f"{rival} does as well as {title}, within its interval or above: the network "
                    f"may have learned {BASELINES[name].lesson} instead of {target}.",
                    task["title"],
                    f"{other['value']:.2f} against {_say(score)}",
                )


def _score(model: Mapping[str, Any], figure: str) -> Any:
    return model["schemes"]["folds"]["pooled"][figure]


def _lower(score: Mapping[str, Any]) -> float:
    """Lower end of an interval; of three people or fewer a correlation has none."""
    return -1.0 if score["low"] is None else float(score["low"])


def _say(value: Mapping[str, Any]) -> str:
    if value["low"] is None:
        return f"{value['value']:.2f}"
    return f"{value['value']:.2f}, {value['low']:.2f} to {value['high']:.2f}"
