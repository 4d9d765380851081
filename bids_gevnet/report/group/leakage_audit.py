"""Was anything learned from the people it was tested on? Checked on the files, not asserted.

Model cards say who a model was trained on and hash the content of their scans; held_out.json says
who it was tested on; the harmonisation of every fold is a file of its own; the temperature that
turns scores into probabilities can be computed again from the scores of the other folds, and the
mean and standard deviation that turn scores into numbers from the training participants. Every
check compares files that different steps wrote, and can fail.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bids_gevnet.bids.reading import read_json
from bids_gevnet.learn.evaluate.leakage_refit import REFIT
from bids_gevnet.learn.models.calibration import fit_temperature, softmax
from bids_gevnet.report.group.harmonisation import why_unchanged
from bids_gevnet.report.group.study_files import FoldModel, Predictions, StudyFiles

PASSED, FAILED, OPEN = "passed", "failed", "open"
_SAME_PROBABILITY = 1e-4
_SAME_GAIN = 1e-5


@dataclass(frozen=True)
class Check:
    """One question, its answer and what the answer rests on."""

    question: str
    status: str
    detail: str


@dataclass(frozen=True)
class FoldRow:
    """Who a fold was trained and tested on."""

    name: str
    training: tuple[str, ...]
    testing: tuple[str, ...]
    both: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """The checks of one task and network."""

    task: str
    network: str
    checks: list[Check]
    folds: list[FoldRow]

    @property
    def failed(self) -> list[Check]:
        """Checks that failed."""
        return [check for check in self.checks if check.status == FAILED]


def audit_group(study: StudyFiles) -> list[Audit]:
    """Check every task and network that has models."""
    people = {scan.scan: scan.participant.removeprefix("sub-") for scan in study.scans}
    predictions = {(p.task, p.network): p for p in study.predictions}
    audits = [_audit_external(study)] if study.external else []
    for key in dict.fromkeys((model.task, model.network) for model in study.models):
        folds = study.folds_of(*key)
        if folds:
            case = _Case(folds, study.final_of(*key), predictions.get(key), people)
            case.values = {s.scan: s.value for s in study.scans if s.value is not None}
            audits.append(Audit(*key, case.checks(), case.fold_rows()))
    return audits


def _audit_external(study: StudyFiles) -> Audit:
    """Compare the table of predictions with the card of the model that was validated."""
    facts = study.external
    question = "Nobody who was tested is in the training data of the model"
    card = read_json(Path(str(facts.get("model", ""))) / "model.json")
    trained = card.get("participants")
    people = sorted({name for table in study.predictions for name in table.participants})
    if not isinstance(trained, list) or card.get("digest") != facts.get("digest"):
        check = Check(question, OPEN, "The model is not where it was, or is another one.")
    elif card.get("dataset") not in ("", facts.get("dataset")):
        check = Check(question, PASSED, "It was trained on another dataset, and on other scans.")
    else:
        both = {name for name in people if name.removeprefix("sub-") in trained}
        check = Check(
            question,
            FAILED if both else PASSED,
            f"In both: {_some(both)}." if both else f"By name, of {len(people)} participants.",
        )
    task = study.tasks[0] if study.tasks else ""
    return Audit(task, str(facts.get("network", "")), [check], [])


class _Case:
    """Models and predictions of one task and network, with the checks on them."""

    def __init__(
        self,
        folds: Sequence[FoldModel],
        final: FoldModel | None,
        predictions: Predictions | None,
        people: Mapping[str, str],
    ) -> None:
        self.folds, self.final, self.predictions = list(folds), final, predictions
        self.people = people
        self.values: Mapping[str, float] = {}

    def checks(self) -> list[Check]:
        """Answer all questions."""
        questions: tuple[tuple[str, Callable[[], tuple[str, str]]], ...] = (
            ("Nobody is in training and test of a fold", self._disjoint),
            ("Everybody is tested exactly once", self._once),
            ("The table of predictions has the folds of the models", self._table),
            ("No test scan has the same content as a training scan", self._content),
            ("Harmonisation was fitted anew in every fold", self._harmonisation),
            ("A refit on the training scans alone gives the same harmonisation", self._refit),
            ("Every fold has a network of its own", self._weights),
            ("Numbers of a fold are in units of its training participants", self._scale)
            if self.values
            else ("Calibration of a fold comes from the other folds", self._calibration),
        )
        return [Check(question, *answer()) for question, answer in questions]

    def _training(self, model: FoldModel) -> set[str]:
        return set(model.names("participants"))

    def _testing(self, model: FoldModel) -> set[str]:
        return {self.people.get(scan, scan) for scan in model.held_out}

    def fold_rows(self) -> list[FoldRow]:
        """List who was where."""
        rows = []
        for model in self.folds:
            training, testing = self._training(model), self._testing(model)
            rows.append(
                FoldRow(
                    f"Fold {model.fold}",
                    tuple(sorted(training)),
                    tuple(sorted(testing)),
                    tuple(sorted(training & testing)),
                )
            )
        return rows

    def _disjoint(self) -> tuple[str, str]:
        rows = self.fold_rows()
        unknown = [row.name for row in rows if not row.training or not row.testing]
        if unknown:
            return OPEN, f"Nothing is known of {', '.join(unknown)}."
        both = [f"{row.name}: {', '.join(row.both)}" for row in rows if row.both]
        if both:
            return FAILED, "In both: " + "; ".join(both) + "."
        sizes = ", ".join(f"{len(row.training)}/{len(row.testing)}" for row in rows)
        return PASSED, f"Participants in training/test of each fold: {sizes}; none in both."

    def _once(self) -> tuple[str, str]:
        counted = Counter(scan for model in self.folds for scan in model.held_out)
        trained = self._training(self.final) if self.final else set()
        tested = {self.people.get(scan, scan) for scan in counted}
        twice = sorted(scan for scan, n in counted.items() if n > 1)
        if twice:
            return FAILED, f"Tested more than once: {_some(twice)}."
        if not trained:
            return OPEN, f"{len(counted)} scans, each once; the final model is missing."
        if trained != tested:
            return FAILED, f"Not tested, or not in the final model: {_some(trained ^ tested)}."
        return PASSED, f"{len(counted)} scans of {len(tested)} participants, each in one fold."

    def _table(self) -> tuple[str, str]:
        if self.predictions is None:
            return OPEN, "There is no table of predictions."
        by_table = dict(zip(self.predictions.scans, self.predictions.folds.tolist(), strict=True))
        by_model = {scan: model.fold for model in self.folds for scan in model.held_out}
        other = sorted(s for s in by_table | by_model if by_table.get(s) != by_model.get(s))
        if other:
            return FAILED, f"They differ for {_some(other)}."
        return PASSED, f"The same fold for all {len(by_table)} scans."

    def _content(self) -> tuple[str, str]:
        everything = _fingerprints(self.final)
        if not everything or not all(_fingerprints(model) for model in self.folds):
            return OPEN, "Hashes of the scans are missing."
        doubled = len(everything) - len(set(everything))
        if doubled:
            return FAILED, f"{doubled} scans of the cohort are copies of others."
        for model in self.folds:
            rest = len(set(everything) - set(_fingerprints(model)))
            if rest != len(model.held_out):
                return FAILED, (
                    f"Fold {model.fold} was tested on {len(model.held_out)} scans, but only "
                    f"{rest} are not in its training."
                )
        return PASSED, f"By SHA-256 of the samples of {len(everything)} scans, all different."

    def _harmonisation(self) -> tuple[str, str]:
        used = [model.card.get("harmonised") is True for model in self.folds]
        if not any(used):
            return PASSED, "There was none."
        hashes = [_hash(m.folder / "harmonisation.npz") for m in (*self.folds, self.final) if m]
        if not all(used) or None in hashes:
            return OPEN, "The harmonisation of a fold is missing."
        for model in self.folds:
            gains = model.gains
            foreign = set(gains.sites if gains else ()) - set(model.names("sites"))
            if foreign:
                return FAILED, f"Fold {model.fold} knows sites it was not trained on."
        if len(set(hashes)) < len(hashes) and not self._unchanged():
            return FAILED, "Two folds, or a fold and the final model, have the same gains."
        return PASSED, (
            f"{len(hashes)} files of gains, none like another, each with the sites of its "
            "training participants only."
            if len(set(hashes)) == len(hashes)
            else f"No fold changes any signal: {why_unchanged(self.folds)}."
        )

    def _unchanged(self) -> bool:
        return all(
            model.gains is not None and bool((model.gains.gains == 1).all())
            for model in self.folds
        )

    def _refit(self) -> tuple[str, str]:
        facts = read_json(self.folds[0].folder.parent / REFIT)
        fold, difference = facts.get("fold"), facts.get("largest_difference")
        if not isinstance(difference, int | float):
            reason = facts.get("reason")
            return OPEN, f"Not done: {reason}" if reason else "Not done."
        refitted = next((model for model in self.folds if model.fold == fold), None)
        if refitted is None or facts.get("digest") != refitted.card.get("digest"):
            return OPEN, "It was done for other models than these."
        text = f"Fold {fold}, {facts.get('scans')} scans: largest difference of a gain "
        text += f"{difference:.1g}."
        return (PASSED if difference <= _SAME_GAIN else FAILED), text

    def _weights(self) -> tuple[str, str]:
        hashes = [_hash(m.folder / "model.safetensors") for m in (*self.folds, self.final) if m]
        if None in hashes:
            return OPEN, "The weights of a fold are missing."
        if len(set(hashes)) < len(hashes):
            return FAILED, "Two folds, or a fold and the final model, have the same weights."
        return PASSED, (
            f"{len(hashes)} files of weights and normalisation statistics, all different."
        )

    def _scale(self) -> tuple[str, str]:
        """Compute mean and standard deviation again, and with them the predicted numbers."""
        table = self.predictions
        if table is None or not table.is_regression:
            return OPEN, "There is no table of predictions."
        predicted = dict(zip(table.scans, table.predicted.tolist(), strict=True))
        largest = 0.0
        for model in self.folds:
            trained = self._training(model)
            values = [v for scan, v in self.values.items() if self.people.get(scan) in trained]
            if not values or any(scan not in predicted for scan in model.held_out):
                return OPEN, f"Numbers of fold {model.fold} are missing."
            mean, spread = float(np.mean(values)), float(np.std(values)) or 1.0
            apart = [abs(mean + spread * scores[0] - predicted[scan]) / spread
                     for scan, scores in model.held_out.items()]  # fmt: skip
            largest = max(largest, *apart)
        if largest > _SAME_PROBABILITY:
            return FAILED, f"They differ by up to {largest:.2g} standard deviations."
        return PASSED, (
            "Mean and standard deviation of the training participants give the table's numbers "
            f"(largest difference {largest:.1g} standard deviations)."
        )

    def _calibration(self) -> tuple[str, str]:
        table = self.predictions
        scores = {scan: values for model in self.folds for scan, values in model.held_out.items()}
        if table is None or any(scan not in scores for scan in table.scans):
            return OPEN, "Scores or probabilities are missing."
        if {len(scores[scan]) for scan in table.scans} != {len(table.labels)}:
            return OPEN, "Scores and probabilities are of different classes."
        raw = np.array([scores[scan] for scan in table.scans])
        expected = np.empty_like(table.outputs)
        for fold in np.unique(table.folds):
            tested = table.folds == fold
            temperature = fit_temperature(raw[~tested], table.truth[~tested])
            expected[tested] = softmax(raw[tested], temperature)
        apart = float(np.abs(expected - table.outputs).max())
        if apart > _SAME_PROBABILITY:
            return (
                FAILED,
                f"Probabilities differ by up to {apart:.2g} from a calibration by others.",
            )
        return PASSED, (
            "Temperatures fitted again to the scores of the other folds give the table's "
            f"probabilities (largest difference {apart:.1g})."
        )


def _fingerprints(model: FoldModel | None) -> list[str]:
    return model.names("fingerprints") if model else []


def _hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _some(names: Sequence[str] | set[str]) -> str:
    listed = sorted(names)
    more = len(listed) - 5
    return ", ".join(listed[:5]) + (f" and {more} more" if more > 0 else "")
