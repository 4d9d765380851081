"""Plan an external validation: ``group --model``, which scores a dataset and trains nothing."""

import json
import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bids_gevnet.bids.participants import DEFAULT_TARGETS, read_participants, trim_cell
from bids_gevnet.cli.environment import prepare_environment
from bids_gevnet.cli.group import read_labelled, refuse_damaged
from bids_gevnet.cli.parser import Request
from bids_gevnet.errors import InputError, printable
from bids_gevnet.learn.cohort.left_out import name_left_out

if TYPE_CHECKING:
    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.models.files import ModelCard
    from bids_gevnet.settings import TaskKind
    from bids_gevnet.workflows.external import ValidationContext

log = logging.getLogger("bids_gevnet")


def plan_validation(request: Request) -> "ValidationContext":
    """Choose who is scored; what cannot be done is said before anything runs."""
    cohort, _ = read_validation(request)
    for line in name_left_out(cohort.left_out):
        log.warning("left out: %s", printable(line))
    prepare_environment(request.work, request.settings.execution)
    from bids_gevnet.learn.train.torchrun import Devices
    from bids_gevnet.workflows.external import ValidationContext

    settings = request.settings
    if settings.learning.model is None:
        raise ValueError("no model to validate")
    return ValidationContext(
        output=request.output,
        work=request.work,
        settings=settings,
        cohort=cohort,
        model=settings.learning.model,
        devices=Devices.choose(settings.learning, settings.execution),
    )


def with_target_of_model(request: Request) -> Request:
    """Take the column of what --model predicts as the target, unless another is given."""
    learning = request.settings.learning
    if learning.model is None or learning.target is not None:
        return request
    from bids_gevnet.learn.models.files import read_card

    card = read_card(learning.model)
    target = card.labels[0] if card.is_regression else _column_of(card.labels, request.bids_dir)
    if target is None:
        return request
    learning = replace(learning, target=target)
    return replace(request, settings=replace(request.settings, learning=learning))


def _column_of(classes: Collection[str], bids_dir: Path) -> str | None:
    """Name the one column that has the classes of a model, where none has the usual name."""
    table = read_participants(bids_dir)
    if not set(DEFAULT_TARGETS).isdisjoint(table.columns):
        return None
    columns = [
        name
        for name in table.columns
        if set(classes) <= {trim_cell(cell) for cell in table[name].dropna()}
    ]
    return str(columns[0]) if len(columns) == 1 else None


def read_validation(request: Request) -> "tuple[Cohort, ModelCard]":
    """Read the model and those it would be validated on; write nothing."""
    if request.settings.learning.model is None:
        raise ValueError("no model to validate")
    _refuse_training_study(request)
    from bids_gevnet.learn.evaluate.external import choose_scored
    from bids_gevnet.learn.models.files import CHANGED_TEXT, has_changed_text, load_model

    _, card, gains = load_model(request.settings.learning.model)
    if request.settings.learning.adapt:
        from bids_gevnet.learn.models.adaptation import require_reference

        require_reference(gains)
    if has_changed_text(request.settings.learning.model):
        log.warning("%s", CHANGED_TEXT)
    asked = request.settings.learning.task
    if asked not in ("auto", card.kind):
        raise InputError(
            expected=f"--task {card.kind}, which is what the model of --model does",
            found=f"--task {asked}",
            remedy="leave --task out: the model says what it predicts",
        )
    cohort = read_labelled(request, folds=1, task=cast("TaskKind", card.kind))
    cohort = choose_scored(cohort, card)
    refuse_damaged(request, cohort)
    return cohort, card


def _refuse_training_study(request: Request) -> None:
    """Keep the results of a study that trained its own models from being overwritten."""
    path = request.output.metrics_file
    try:
        trained = "external" not in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        trained = path.is_file()
    if trained or request.output.models.is_dir():
        raise InputError(
            expected="an OUTPUT_DIR without a study that trained its own models",
            found=f"one in {request.output_dir}, which a validation would overwrite",
            remedy="move its group_* files and its folder models elsewhere, or give another "
            "OUTPUT_DIR with derivatives of the participant level",
        )
