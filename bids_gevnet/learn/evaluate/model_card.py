"""MODEL_CARD.md: what a published model is, for people, beside model.json for programs.

Its figures are those of group_metrics.json. They are of the models of the folds, on people these
had not seen: the model of the folder is trained on everybody, so there is nobody left to test it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.bids.writing import write_text
from bids_gevnet.dwi.shells import name_shells
from bids_gevnet.errors import printable
from bids_gevnet.learn.evaluate.wording import with_unit
from bids_gevnet.learn.models.files import MODEL_CARD, read_card, write_card

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bids_gevnet.learn.models.files import ModelCard

_NUMBER_MEASURES = {
    "mae": "Mean absolute error",
    "correlation": "Correlation of true and predicted",
    "r2": "R² (1 is best; below 0 the mean would be closer)",
    "slope": "Slope of predicted on true (below 1: drawn towards the mean)",
}
_MEASURES = {
    "balanced_accuracy": "Balanced accuracy",
    "accuracy": "Accuracy",
    "roc_auc": "ROC AUC",
    "brier": "Brier score (0 is best)",
}
_SCHEMES = {
    "folds": "People left out of training",
    "leave-site-out": "Sites left out of training",
    "leave-site-out-adapted": "The same, harmonised from their unlabelled scans",
}


def write_model_cards(output_dir: Path, metrics: Mapping[str, Any]) -> list[Path]:
    """Write the card of every final model of a study, and its hash to model.json.

    Parameters
    ----------
    output_dir : Path
    metrics : mapping
        Content of group_metrics.json.
    """
    tasks = {task["task"]: task for task in metrics["tasks"]}
    written = []
    for entry in metrics["training"]:
        folder = output_dir / entry["model"]
        card = read_card(folder)
        path = folder / MODEL_CARD
        write_text(path, describe_model(card, tasks[entry["task"]]))
        hashes = card.files | {MODEL_CARD: hash_file(path)}
        write_card(folder, dataclasses.replace(card, files=hashes))
        written.append(path)
    return written


def describe_model(card: ModelCard, task: Mapping[str, Any]) -> str:
    """Write a model card as Markdown.

    Parameters
    ----------
    card : ModelCard
    task : mapping
        The model's task in group_metrics.json.
    """
    sections = (
        (f"# {_escape(task['title'])}: {_escape(card.network)}", _purpose(card)),
        ("## Data", _data(card, task)),
        ("## How well it does", _figures(card, task)),
        ("## Limits", _limits(card)),
        ("## How to use it", _usage(card)),
    )
    return "\n".join(f"{heading}\n\n{chr(10).join(lines)}\n" for heading, lines in sections)


def _purpose(card: ModelCard) -> Iterator[str]:
    labels = ", ".join(map(_escape, card.labels))
    if card.is_regression:
        unit = f", in {_escape(card.unit)}" if card.unit else ""
        yield f"Predicts {labels}{unit}, from a diffusion MRI scan (regression)."
    else:
        yield f"Gives calibrated probabilities of {labels} for a diffusion MRI scan."
    yield ""
    yield "**Research use only; not for diagnosis.**"


def _data(card: ModelCard, task: Mapping[str, Any]) -> Iterator[str]:
    yield f"- Dataset: {_escape(card.dataset) or 'without a name'}"
    yield f"- Participants: {len(card.participants)}, with {len(card.fingerprints)} scans"
    for label in card.labels:
        cells = [cell for cell in task["cohort"] if cell["label"] == label]
        where = ", ".join(f"{_escape(c['site'])}: {c['participants']}" for c in cells)
        count = sum(cell["participants"] for cell in cells)
        span = ""
        if card.is_regression:
            span = with_unit(f", {card.target_low:g} to {card.target_high:g}", _escape(card.unit))
        yield f"- {_escape(label)}: {count} participants{span} ({where})"
    yield (
        "- Sites were harmonised by the model's own gains."
        if card.harmonised
        else "- Sites were not harmonised."
    )
    part = card.options.get("voxels_per_step")
    if isinstance(part, int | float) and part != 1:
        size = f"{100 * part:g} %" if part < 1 else f"{part:g} voxels"
        yield f"- A training step saw about {size} of each brain; predictions use all of it."


def _figures(card: ModelCard, task: Mapping[str, Any]) -> Iterator[str]:
    yield _escape(task["headline"]["sentence"])
    yield ""
    model = next(m for m in task["models"] if (m["kind"], m["model"]) == ("network", card.network))
    schemes = [name for name in _SCHEMES if name in model["schemes"]]
    yield "| Network, with 95 % intervals | " + " | ".join(_SCHEMES[s] for s in schemes) + " |"
    yield "| --- " * (len(schemes) + 1) + "|"
    for key, name in (_NUMBER_MEASURES if card.is_regression else _MEASURES).items():
        cells = [_say(model["schemes"][scheme]["pooled"][key]) for scheme in schemes]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    last = f"Its scores are divided by {card.temperature:.2f} to calibrate them."
    if card.is_regression:
        guess = model["schemes"][schemes[0]]["pooled"]["guessing_mae"] if schemes else math.nan
        last = f"One number for everybody would be off by {guess:.2f} on average."
    yield (
        f"Chance is {task['chance']:.2f}. The figures are of models that were trained without the "
        "people they were tested on; the model in this folder is trained on everybody, in the "
        f"same way. {last}"
    )


def _limits(card: ModelCard) -> Iterator[str]:
    mm = _voxel_mm(card)
    size = " x ".join(map(str, card.shape))
    yield (
        "- For research: predictions are drawn towards the mean, so that their distance from the "
        "true number says nothing about one person's health."
        if card.is_regression
        else "- For research: it says what distinguishes groups, not what one person has."
    )
    yield f"- Grid: {size} voxels of {mm:g} mm in template space, nside {card.nside}."
    if card.b_values:
        yield f"- Shells: {name_shells(card.b_values)}."
    if card.max_motion is not None:
        yield f"- Motion: up to {card.max_motion:.2f} mm of mean framewise displacement."
    sites = ", ".join(map(_escape, card.sites))
    apart = ", and their scans are not harmonised" if card.harmonised else ""
    yield f"- Sites: {sites}. Nothing is known of others{apart}."
    yield (
        "- Beyond the range above nothing was learned: predictions outside of it are marked."
        if card.is_regression
        else "- Labels other than those above do not exist for it: it gives one of them to "
        "everybody."
    )
    for text in card.warnings:
        yield f"- {_escape(text)}"


def _usage(card: ModelCard) -> Iterator[str]:
    grid = f"--output-resolution {_voxel_mm(card):g} --nside {card.nside}"
    yield "Predict new scans:"
    yield ""
    yield f"    bids_gevnet BIDS_DIR OUTPUT_DIR participant --model THIS_FOLDER {grid}"
    yield ""
    yield "Then validate it on them, if they have labels; nothing is trained:"
    yield ""
    target = f" --target {_escape(card.labels[0])}" if card.is_regression else ""
    yield f"    bids_gevnet BIDS_DIR OUTPUT_DIR group --model THIS_FOLDER{target}"
    yield ""
    yield (
        "Scans unlike the training data are predicted with a warning, and whoever was in the "
        f"training data is refused. Written by bids_gevnet {card.app_version}."
    )


def _voxel_mm(card: ModelCard) -> float:
    edge: float = abs(float(np.linalg.det(np.asarray(card.affine)[:3, :3]))) ** (1 / 3)
    return round(edge, 3)


def _escape(text: str) -> str:
    """Keep text from a dataset from becoming Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(printable(text).split()))


def _say(value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return "n/a"
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:.2f}"
    return f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
