"""Every figure of the group level, from group_predictions.tsv and nothing else.

`evaluate_table` takes the table of held-out predictions and gives what group_metrics.json says
about them; the group level writes that file through this function only, so anybody can have the
same numbers from the table. Point estimates are scikit-learn's; intervals are those of
`bids_gevnet.learn.evaluate.intervals`, the test that of `bids_gevnet.learn.evaluate.permutation`.

`interval_notes` says in sentences what each interval is; the report prints them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bids_gevnet.harmonisation.association import correlation_ratio, cramers_v, cross_table
from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION
from bids_gevnet.learn.evaluate.ablation import ablation_table
from bids_gevnet.learn.evaluate.baselines import BASELINES
from bids_gevnet.learn.evaluate.contest import Contender, compare_networks, kind_of
from bids_gevnet.learn.evaluate.curves import HeldOut
from bids_gevnet.learn.evaluate.external_headline import EXTERNAL, external_headline
from bids_gevnet.learn.evaluate.headline import Contest, correct_for_tasks, headline, run_contest
from bids_gevnet.learn.evaluate.interval_notes import methods_for
from bids_gevnet.learn.evaluate.intervals import CONFIDENCE, NOTHING, Value
from bids_gevnet.learn.evaluate.number_scores import HeldOutNumbers
from bids_gevnet.learn.evaluate.permutation import CROSS_VALIDATED, permutation_test
from bids_gevnet.learn.evaluate.yardsticks import (
    OF_CLASSES,
    OF_NUMBERS,
    Yardstick,
    compare,
    yardstick_of,
)
from bids_gevnet.nn.registry import networks, scan_networks

FORMAT = "bids_gevnet group metrics 3"
ADAPTED = "leave-site-out-adapted"
"""Left-out sites, each harmonised from its unlabelled scans."""
SCHEMES = ("folds", "leave-site-out", ADAPTED, EXTERNAL)
CHANCE = "prob_"
"""Before the name of a class: column of group_predictions.tsv with its probability."""

NUMBER = "value_"
"""Before the name of the target: column with the predicted number."""

Predicted = HeldOut | HeldOutNumbers


def read_predictions(path: Path) -> pd.DataFrame:
    """Read group_predictions.tsv; labels stay the text they are, even "NA" or a quote."""
    table = pd.read_csv(
        path, sep="\t", dtype=str, keep_default_na=False, na_values=[], quoting=csv.QUOTE_NONE
    )
    table["fold"] = table["fold"].astype(int)
    for name in table.columns:
        if name.startswith((CHANCE, NUMBER)):
            cells = [np.nan if cell == "n/a" else float(cell) for cell in table[name]]
            table[name] = np.array(cells, dtype=np.float64)
    return table


def evaluate_table(
    table: pd.DataFrame | Path,
    *,
    seed: int = 0,
    resamples: int = 2000,
    permutations: int = 2000,
    unit: str = "",
) -> dict[str, Any]:
    """Evaluate all held-out predictions.

    Parameters
    ----------
    table : DataFrame or Path
        From `read_predictions`, or the file.
    seed : int
        Of bootstrap and permutations.
    resamples, permutations : int
    unit : str
        Of a number that is predicted, for the sentences.

    Returns
    -------
    content : dict
        All of group_metrics.json but the facts of training and the warnings.

    Examples
    --------
    >>> people = [f"sub-{i:02d}" for i in range(20)]
    >>> labels = ["AD", "PD"] * 10
    >>> chances = [0.9 if label == "AD" else 0.2 for label in labels]
    >>> table = pd.DataFrame({
    ...     "task": "AD-v-PD", "kind": "network", "model": "ckn2", "scheme": "folds",
    ...     "fold": [i // 4 + 1 for i in range(20)], "scan": people, "participant_id": people,
    ...     "site": "A", "label": labels, "prob_AD": chances,
    ...     "prob_PD": [1 - chance for chance in chances]})
    >>> content = evaluate_table(table, resamples=20, permutations=20)
    >>> content["tasks"][0]["models"][0]["schemes"]["folds"]["pooled"]["accuracy"]["value"]
    1.0
    """
    rows = read_predictions(table) if isinstance(table, Path) else table
    settings = _Settings(seed, resamples, permutations, unit)
    evaluated = [
        _evaluate_task(str(name), rows[rows["task"] == name], settings)
        for name in dict.fromkeys(rows["task"])
    ]
    contests = correct_for_tasks([contest for _, contest in evaluated])
    tasks = [
        task | {"headline": external_headline(task) or headline(contest)}
        for (task, _), contest in zip(evaluated, contests, strict=True)
    ]
    used = set(rows["model"])
    number = bool(_number_columns(rows))
    return {
        "format": FORMAT,
        "confidence": CONFIDENCE,
        "seed": seed,
        "resamples": resamples,
        "permutations": permutations,
        "methods": methods_for(REGRESSION if number else CLASSIFICATION),
        "site_association": _association(rows),
        "baselines": [
            {
                "model": name,
                "title": baseline.title,
                "confound": baseline.confound,
                "about": baseline.about_number if number else baseline.about,
            }
            for name, baseline in BASELINES.items()
            if name in used
        ],
        "tasks": tasks,
        "ablation": ablation_table(tasks),
    }


class _Settings:
    """Seed and counts, handed down."""

    def __init__(self, seed: int, resamples: int, permutations: int, unit: str) -> None:
        self.seed, self.resamples, self.permutations = seed, resamples, permutations
        self.unit = unit

    def measure(self, held_out: Predicted) -> dict[str, Any]:
        yardstick = yardstick_of(held_out)
        draws = yardstick.draw(held_out, count=self.resamples, seed=self.seed)
        return yardstick.measure(held_out, draws)


def _number_columns(rows: pd.DataFrame) -> list[str]:
    """Columns with predicted numbers of a task, or of a table."""
    columns = [name for name in rows.columns if name.startswith(NUMBER)]
    return [name for name in columns if bool(rows[name].notna().any())]


def _association(rows: pd.DataFrame) -> float | None:
    """Association of site and label over all participants of the table, each counted once.

    Cramér's V; for a number, the correlation ratio.
    """
    if _number_columns(rows):
        each = rows.drop_duplicates("scan")
        return correlation_ratio(each["site"].tolist(), each["label"].astype(float).tolist())
    people = rows.drop_duplicates(["participant_id", "site", "label"])
    return cramers_v(cross_table(people["site"].tolist(), people["label"].tolist()))


def _evaluate_task(
    task: str, rows: pd.DataFrame, settings: _Settings
) -> tuple[dict[str, Any], Contest]:
    numbers = _number_columns(rows)
    columns = [name for name in rows.columns if name.startswith(CHANCE)]
    labels = tuple(
        name.removeprefix(CHANCE) for name in columns if bool(rows[name].notna().any())
    ) or tuple(name.removeprefix(NUMBER) for name in numbers)
    yardstick: Yardstick = OF_NUMBERS if numbers else OF_CLASSES
    parts = _split_models(rows, labels)
    models: list[dict[str, Any]] = []
    for (kind, model), schemes in parts.items():
        title = _network_title(model) if kind == "network" else _baseline_title(model)
        models.append(
            {
                "kind": kind,
                "model": model,
                "title": title,
                "schemes": {
                    name: evaluate(held_out, settings, name) for name, held_out in schemes.items()
                },
            }
        )
    everybody = rows.drop_duplicates("scan")
    contest = _contest(task, models, parts, settings)
    content = {
        "task": task,
        "title": " v. ".join(labels),
        "labels": list(labels),
        "kind": yardstick.kind,
        "figure": yardstick.figure,
        "positive": labels[1] if len(labels) == 2 else None,
        "chance": yardstick.chance(labels),
        "n_scans": len(everybody),
        "n_participants": int(everybody["participant_id"].nunique()),
        "cohort": _count(everybody, labels),
        **(_about_number(everybody, settings.unit) if numbers else {}),
        "models": models,
        "comparisons": _compare(parts),
        "network_comparisons": compare_networks(
            contest.networks, count=settings.permutations, seed=settings.seed
        ),
    }
    return content, contest


def _about_number(everybody: pd.DataFrame, unit: str) -> dict[str, Any]:
    values = everybody["label"].astype(float)
    return {"unit": unit, "range": [float(values.min()), float(values.max())]}


def _contest(
    task: str,
    models: list[dict[str, Any]],
    parts: dict[tuple[str, str], dict[str, Predicted]],
    settings: _Settings,
) -> Contest:
    """Let all models compete that were tested on the folds, on the same scans."""
    contenders: list[Contender] = []
    elsewhere: dict[str, Value] = {}
    for entry in models:
        schemes = parts[entry["kind"], entry["model"]]
        if "leave-site-out" in schemes:
            figure = yardstick_of(schemes["leave-site-out"]).figure
            elsewhere[entry["model"]] = entry["schemes"]["leave-site-out"]["pooled"][figure]
        held_out = schemes.get("folds")
        if held_out is None or (
            contenders and not np.array_equal(held_out.scans, contenders[0].held_out.scans)
        ):
            continue
        pooled = entry["schemes"]["folds"]["pooled"]
        contenders.append(
            Contender(
                kind=kind_of(entry["kind"], entry["model"]),
                model=entry["model"],
                title=entry["title"],
                held_out=held_out,
                value=pooled[yardstick_of(held_out).figure],
                error=pooled.get("mae", NOTHING),
            )
        )
    return run_contest(
        task,
        contenders,
        elsewhere=elsewhere,
        resamples=settings.resamples,
        permutations=settings.permutations,
        seed=settings.seed,
        unit=settings.unit,
    )


def _network_title(model: str) -> str:
    return networks()[model].title if model in networks() else model


def _baseline_title(model: str) -> str:
    return BASELINES[model].title if model in BASELINES else model


def _split_models(
    rows: pd.DataFrame, labels: tuple[str, ...]
) -> dict[tuple[str, str], dict[str, Predicted]]:
    """Held-out predictions by model and scheme: networks first, in the order of the registry."""

    def order(key: tuple[str, str]) -> tuple[bool, int, str]:
        known = scan_networks() if key[0] == "network" else tuple(BASELINES)
        return key[0] != "network", known.index(key[1]) if key[1] in known else 99, key[1]

    pairs = sorted(set(zip(rows["kind"], rows["model"], strict=True)), key=order)
    parts: dict[tuple[str, str], dict[str, Predicted]] = {}
    for kind, model in pairs:
        of_model = rows[(rows["kind"] == kind) & (rows["model"] == model)]
        parts[kind, model] = {
            scheme: _held_out(of_model[of_model["scheme"] == scheme], labels)
            for scheme in SCHEMES
            if bool((of_model["scheme"] == scheme).any())
        }
    return parts


def _held_out(rows: pd.DataFrame, labels: tuple[str, ...]) -> Predicted:
    ordered = rows.sort_values("scan", kind="stable")
    shared: dict[str, Any] = {
        "labels": labels,
        "scans": np.array(ordered["scan"].tolist(), dtype=str),
        "folds": ordered["fold"].to_numpy(dtype=np.intp),
        "people": np.array(ordered["participant_id"].tolist(), dtype=str),
        "sites": np.array(ordered["site"].tolist(), dtype=str),
    }
    if numbers := _number_columns(ordered):
        return HeldOutNumbers(
            truth=ordered["label"].to_numpy(dtype=np.float64),
            predicted=ordered[numbers[0]].to_numpy(dtype=np.float64),
            **shared,
        )
    return HeldOut(
        truth=np.array([labels.index(label) for label in ordered["label"]], dtype=np.intp),
        probabilities=ordered[[CHANCE + label for label in labels]].to_numpy(dtype=np.float64),
        **shared,
    )


def evaluate(held_out: Predicted, settings: _Settings, scheme: str) -> dict[str, Any]:
    """Evaluate one model under one scheme: pooled, by fold, by site, curves and test."""
    yardstick = yardstick_of(held_out)
    folds: list[dict[str, Any]] = []
    for fold in np.unique(held_out.folds):
        part = held_out.part(held_out.folds == fold)
        site = str(part.sites[0]) if scheme in ("leave-site-out", ADAPTED) else None
        folds.append({"fold": int(fold), "site": site} | settings.measure(part))
    sites: list[dict[str, Any]] = []
    for site in np.unique(held_out.sites):
        part = held_out.part(held_out.sites == site)
        sites.append({"site": str(site)} | settings.measure(part))
    return {
        "pooled": settings.measure(held_out),
        "folds": folds,
        "fold_summary": {
            name: _summary([fold[name]["value"] for fold in folds]) for name in yardstick.summed
        },
        "sites": sites,
        **yardstick.curves(held_out),
        "constant": yardstick.constant(held_out),
        "permutation": permutation_test(
            held_out.truth,
            held_out.predicted,
            list(held_out.people),
            list(held_out.sites),
            classes=held_out.classes,
            count=settings.permutations,
            seed=settings.seed,
            root=1.0 if scheme == EXTERNAL else CROSS_VALIDATED,
        ),
    }


def _summary(values: list[float | None]) -> dict[str, float | int | None]:
    """Mean and standard deviation over the folds that have a value."""
    known = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "sd": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        "folds": len(known),
    }


def _count(rows: pd.DataFrame, labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Participants and scans of every site and label, zeros too; a number is one label."""
    counts = []
    number = bool(_number_columns(rows))
    for site in sorted(set(rows["site"])):
        for label in labels:
            members = rows[(rows["site"] == site) & (number | (rows["label"] == label))]
            people = int(members["participant_id"].nunique())
            counts.append(
                {"site": site, "label": label, "participants": people, "scans": len(members)}
            )
    return counts


def _compare(parts: dict[tuple[str, str], dict[str, Predicted]]) -> list[dict[str, Any]]:
    """How much better every network is than every baseline, on the same people."""
    comparisons = []
    for (kind, network), schemes in parts.items():
        for (other, baseline), rivals in parts.items():
            if (kind, other) != ("network", "baseline"):
                continue
            comparisons += [
                {
                    "scheme": scheme,
                    "network": network,
                    "baseline": baseline,
                    "confound": baseline in BASELINES and BASELINES[baseline].confound,
                    yardstick_of(held_out).difference: compare(held_out, rivals[scheme]),
                }
                for scheme, held_out in schemes.items()
                if scheme in rivals
            ]
    return comparisons
