"""Who a finished model may meet: scans that fit it, of people it was not trained on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bids_gevnet.dwi.shells import name_shells, same_shells
from bids_gevnet.errors import InputError, name_people
from bids_gevnet.learn.cohort.left_out import LeftOut
from bids_gevnet.learn.cohort.members import check_target
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.models.files import load_model, read_card
from bids_gevnet.learn.models.prediction import check_planned_grid, seen_in_training

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.cohort.scan_rows import ScanRow
    from bids_gevnet.learn.models.files import ModelCard

SEEN = "in the training data of the model"


def check_fit(cohort: Cohort, card: ModelCard) -> None:
    """Refuse scans on another grid or of other shells than a model takes."""
    check_planned_grid(card, shape=cohort.shape, affine=cohort.affine, nside=cohort.nside)
    known = bool(card.b_values) and bool(cohort.b_values)
    if card.shells != cohort.shells or (known and not same_shells(cohort.b_values, card.b_values)):
        raise InputError(
            expected=f"scans with the shells of the model, {name_shells(card.b_values)}",
            found=name_shells(cohort.b_values) or "one shell",
            remedy="run the participant level with --shell for these, in an OUTPUT_DIR of its "
            "own, or give another model",
        )


def leave_out(cohort: Cohort, reason: Callable[[ScanRow], str | None]) -> Cohort:
    """Move scans for which there is a reason to those left out.

    Parameters
    ----------
    cohort : Cohort
    reason : callable
        Why a scan is left out, or None.
    """
    reasons = {row.scan: text for row in cohort.rows if (text := reason(row)) is not None}
    moved = [
        LeftOut(participant=row.participant, scan=row.scan, reason=reasons[row.scan])
        for row in cohort.rows
        if row.scan in reasons
    ]
    return dataclasses.replace(
        cohort,
        rows=tuple(row for row in cohort.rows if row.scan not in reasons),
        left_out=tuple(sorted((*cohort.left_out, *moved), key=lambda entry: entry.scan)),
    )


def leave_out_seen(cohort: Cohort, card: ModelCard) -> Cohort:
    """Leave out whoever has the name of somebody in a model's training data."""
    return leave_out(
        cohort,
        lambda row: SEEN if seen_in_training(card, row.participant, cohort.dataset) else None,
    )


def choose_newcomers(cohort: Cohort, model_dir: Path, *, folds: int) -> Cohort:
    """Leave out whom a model to start from was trained on: in a fold's test they would leak.

    Parameters
    ----------
    cohort : Cohort
    model_dir : Path
    folds : int
        Every class still needs this many people.
    """
    card = load_model(model_dir).card
    check_fit(cohort, card)
    chosen = leave_out_seen(cohort, card)
    if not chosen.rows:
        raise InputError(
            expected="people who were not in the training data of --init-model",
            found=f"nobody among {len(cohort.rows)} scans of {cohort.dataset}",
            remedy="give a model that was trained on another dataset",
        )
    check_target(chosen, folds)
    return chosen


def refuse_trained_on(rows: Sequence[ScanRow], folders: Sequence[Path], model_dir: Path) -> None:
    """Refuse scans that are, by content, in the training data of a model to start from.

    Parameters
    ----------
    rows : sequence of ScanRow
    folders : sequence of Path
        Where in the store each scan is.
    model_dir : Path
    """
    known = set(read_card(model_dir).fingerprints)
    people = [
        row.participant
        for row, folder in zip(rows, folders, strict=True)
        if StoredScan(folder).fingerprint in known
    ]
    if people:
        raise InputError(
            expected="scans that were not in the training data of --init-model",
            found=f"those of {name_people(f'sub-{person}' for person in people)}",
            remedy=f"give --exclude-participant-label {' '.join(dict.fromkeys(people))}: their "
            "folds would be tested on what the model has learned",
        )
