"""A finished model on a labelled dataset it was not trained on; nothing is fitted to labels.

Scans are harmonised with the model's own gains where it knows their site. Elsewhere they are left
as they are, or with ``--adapt`` brought to the training data without looking at labels. Scores
become probabilities with the model's own temperature, or a number by its own mean and standard
deviation. Whoever was in the training data, by name or by the content of the scan, is left out,
and so is whoever has a label that the model does not know.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError, name_people
from bids_gevnet.learn.cohort.copies import refuse_copies
from bids_gevnet.learn.cohort.left_out import name_left_out
from bids_gevnet.learn.cohort.members import Cohort, write_cohort
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.evaluate.external_headline import EXTERNAL
from bids_gevnet.learn.evaluate.predictions_table import TaskResult, write_predictions
from bids_gevnet.learn.models.adaptation import adapt_sites, without_labels
from bids_gevnet.learn.models.calibration import softmax
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.models.newcomers import SEEN, check_fit, leave_out, leave_out_seen
from bids_gevnet.learn.models.prediction import out_of_range
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.device_pieces import fit_one_scan_
from bids_gevnet.learn.train.held_out import evaluate_scans
from bids_gevnet.learn.train.jobs import JobScan
from bids_gevnet.learn.train.loop import autocast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bids_gevnet.layout import OutputLayout
    from bids_gevnet.learn.cohort.scan_rows import ScanRow
    from bids_gevnet.learn.models.adaptation import AdaptedSites
    from bids_gevnet.learn.models.files import Model, ModelCard
    from bids_gevnet.learn.train.distributed import Processes


def choose_scored(cohort: Cohort, card: ModelCard) -> Cohort:
    """Leave out whom a model must not or cannot judge; refuse scans that do not fit it.

    Parameters
    ----------
    cohort : Cohort
    card : ModelCard
    """
    check_fit(cohort, card)
    if card.is_regression:
        chosen = leave_out_seen(cohort, card)
        _require_people(chosen, card)
        return chosen
    unknown = f"not of the model's classes ({', '.join(card.labels)})"

    def reason(row: ScanRow) -> str | None:
        known = row.label in card.labels
        return None if known else f"{cohort.target} {row.label}, {unknown}"

    chosen = leave_out_seen(leave_out(cohort, reason), card)
    _require_labels(chosen, card)
    return chosen


def score_cohort(
    cohort: Cohort,
    folders: Sequence[Path],
    model_dir: Path,
    output: OutputLayout,
    processes: Processes,
    *,
    adapt: bool = False,
) -> dict[str, Any]:
    """Write the tables of cohort and predictions of a finished model.

    Parameters
    ----------
    cohort : Cohort
        From `choose_scored`.
    folders : sequence of Path
        Where in the store each of its scans is.
    model_dir : Path
    output : OutputLayout
    processes : Processes
        This process and its device.
    adapt : bool
        Whether to harmonise sites the model was not trained on, from these scans without their
        labels.

    Returns
    -------
    about : dict
        What the metrics say beside their figures.
    """
    model = load_model(model_dir)
    place = dict(zip((row.scan for row in cohort.rows), folders, strict=True))
    scored = leave_out(
        cohort,
        lambda row: (
            SEEN if StoredScan(place[row.scan]).fingerprint in model.card.fingerprints else None
        ),
    )
    (_require_people if model.card.is_regression else _require_labels)(scored, model.card)
    refuse_copies(scored.rows, [place[row.scan] for row in scored.rows])
    scans = [_scan(row, place[row.scan], model.card) for row in scored.rows]
    adapted = adapt_sites(model.gains, without_labels(scans)) if adapt else None
    reader = ScanReader(scans, model.gains if adapted is None else adapted.gains)
    model.network.to(processes.device)
    fit_one_scan_(model.network, model.card.shape, model.card.nside)
    precision = partial(autocast, "float32", processes.device)
    scores = np.array(evaluate_scans(model.network, reader, processes, precision))
    number = model.card.is_regression
    result = TaskResult(
        task=model.card.task,
        title=" v. ".join(model.card.labels),
        kind="network",
        model=model.card.network,
        scheme=EXTERNAL,
        labels=model.card.labels,
        rows=scored.rows,
        folds=np.ones(len(scored.rows), dtype=np.intp),
        outputs=model.card.number(scores) if number else softmax(scores, model.card.temperature),
        is_regression=number,
    )
    write_cohort(output.cohort_table, scored, {})
    write_predictions(output.predictions_table, [result])
    unusual = _unusual(model.card, reader, scored.rows)
    return _about(scored, model, model_dir, unusual, adapted)


def _scan(row: ScanRow, folder: Path, card: ModelCard) -> JobScan:
    return JobScan(
        folder=str(folder),
        participant=row.participant,
        session=row.session,
        scan=row.scan,
        label=0 if card.is_regression else card.labels.index(row.label),
        value=row.number if card.is_regression else None,
        site=row.site,
        motion=row.motion,
        covariates=dict(row.covariates),
    )


def _unusual(card: ModelCard, reader: ScanReader, rows: Sequence[ScanRow]) -> list[str]:
    """Name scans with more motion, or another signal, than any the model was trained on."""
    return [
        row.scan
        for index, row in enumerate(rows)
        if out_of_range(card, site=None, motion=row.motion, values=reader.read(index)[0])
    ]


def _about(
    cohort: Cohort,
    model: Model,
    model_dir: Path,
    unusual: Sequence[str],
    adapted: AdaptedSites | None,
) -> dict[str, Any]:
    card = model.card
    sites, gains = {row.site for row in cohort.rows}, adapted.gains if adapted else model.gains
    known = {site for site in sites if gains is not None and gains.corrects(site)}
    apart = sorted(sites - known)
    warnings = list(cohort.warnings)
    if adapted is not None:
        warnings += [each.sentence for each in adapted.adaptations]
        warnings += adapted.refusals
    if card.harmonised and apart:
        people = {row.participant for row in cohort.rows if row.site in apart}
        warnings.append(
            f"The model has no harmonisation for {', '.join(apart)}: scans of {len(people)} "
            "people were taken as they are."
        )
    if card.unit and cohort.unit and card.unit != cohort.unit:
        warnings.append(
            f"The model predicts {card.labels[0]} in {card.unit}, and participants.json gives "
            f"{cohort.target} in {cohort.unit}: errors mean nothing unless these are the same."
        )
    if unusual:
        warnings.append(
            "More motion, or another strength of the signal, than in any scan the model was "
            f"trained on: {len(unusual)} ({name_people(unusual)})."
        )
    return {
        "target": cohort.target,
        "unit": cohort.unit or card.unit,
        "remarks": list(cohort.remarks),
        "left_out": [dataclasses.asdict(entry) for entry in cohort.left_out],
        "training": [],
        "leave_site_out": [],
        "warnings": warnings,
        "external": {
            "model": str(model_dir),
            "network": card.network,
            "digest": card.digest,
            "dataset": cohort.dataset,
            "trained_on": card.dataset,
            "training_participants": len(card.participants),
            "sites": list(card.sites),
            "harmonised": card.harmonised,
            "harmonised_sites": sorted(known),
            "adapted": [dataclasses.asdict(a) for a in adapted.adaptations] if adapted else [],
            "temperature": card.temperature,
            "unusual": list(unusual),
        },
    }


def _require_people(cohort: Cohort, card: ModelCard) -> None:
    """Refuse a cohort in which fewer than two numbers are left to compare predictions with."""
    if len({row.number for row in cohort.rows}) > 1:
        return
    lines = name_left_out(cohort.left_out)
    raise InputError(
        expected=f"people whom the model has not seen, with different numbers in {cohort.target}, "
        f"to compare with the predicted {card.labels[0]}",
        found=f"{len({row.participant for row in cohort.rows})} people"
        + (f"; left out are {'; '.join(lines)}" if lines else ""),
        remedy="give the --target with the number that the model predicts, or another dataset; if "
        "this is not the dataset the model was trained on, give it a Name of its own in "
        "dataset_description.json",
    )


def _require_labels(cohort: Cohort, card: ModelCard) -> None:
    counts = Counter({label: len(cohort.people(label)) for label in card.labels})
    if all(counts.values()):
        return
    listed = ", ".join(f"{count} {label}" for label, count in counts.items())
    lines = name_left_out(cohort.left_out)
    raise InputError(
        expected=f"people of every class of the model ({', '.join(card.labels)}) whom it has not "
        "seen",
        found=listed + (f"; left out are {'; '.join(lines)}" if lines else ""),
        remedy="give the --target whose values are the model's classes, or another dataset; if "
        "this is not the dataset the model was trained on, give it a Name of its own in "
        "dataset_description.json",
    )
