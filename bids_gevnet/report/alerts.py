"""Collect what a person has to know first about a scan: errors, warnings and fallbacks."""

from collections.abc import Iterator
from dataclasses import dataclass

from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    CONFOUNDS,
    MEAN_B0,
    SAMPLES,
    SERIES,
    prediction_ending,
    rish_ending,
)
from bids_gevnet.facts import AcquisitionFacts, CorrectionFacts, ScanFacts
from bids_gevnet.report.correction_methods import METHODS, describe_susceptibility
from bids_gevnet.report.figures.motion import LARGE_DISPLACEMENT_MM, MotionSummary
from bids_gevnet.report.scan_files import ScanFiles

LEVELS = ("error", "warning", "note")

WORSE = 1.1
"""Misfit after eddy over misfit before: interpolation alone lowers it, so a rise is no chance."""

LEAST_COVERAGE = 0.9
"""Share of the template's brain that a scan of the whole brain has in its field of view."""

MOST_EDDY_MM = 5.0
"""Eddy currents displace by a few mm at most; eddy diverged where it found more."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One message: how grave it is, what it says, which section has more about it."""

    level: str
    text: str
    section: str = ""


def collect_alerts(scan: ScanFiles, motion: MotionSummary | None) -> list[Alert]:
    """Gather the alerts of a scan, the gravest first, each once."""
    facts = scan.facts
    sources = (
        _completeness(scan),
        _acquisition(facts),
        _conform(facts),
        _correction(facts),
        _motion(motion),
        _registration(facts),
        _quality(facts),
        _prediction(facts),
        _unread(facts),
    )
    alerts = dict.fromkeys(alert for source in sources for alert in source)
    return sorted(alerts, key=lambda alert: LEVELS.index(alert.level))


def _completeness(scan: ScanFiles) -> Iterator[Alert]:
    if not scan.is_finished:
        yield Alert(
            "error",
            "The scan is not finished: its facts are missing or cannot be read. Run the same "
            "command again; it resumes where it stopped.",
        )
        return
    expected = [
        *(scan.native(ending) for ending in (SERIES, MEAN_B0, BRAIN_MASK, CONFOUNDS)),
        *(scan.standard(ending) for ending in (SERIES, BRAIN_MASK, SAMPLES, rish_ending(0))),
    ]
    if scan.facts.prediction is not None:
        expected.append(scan.native(prediction_ending(scan.facts.prediction.network)))
    for path in expected:
        if not path.exists():
            yield Alert("error", f"The derivative {path.name} is missing.")


def _acquisition(facts: ScanFacts) -> Iterator[Alert]:
    for run in facts.acquisition:
        where = f" ({run.name or 'a run'})" if len(facts.acquisition) > 1 else ""
        if run.phase_encoding_is_guess:
            text = run.phase_encoding_source or "assumed, because the sidecar has none"
            yield Alert("warning", f"Phase encoding{where}: {text}.", "acquisition")
        yield from _readout(run, where)
        yield from (Alert("note", f"Input{where}: {note}.", "acquisition") for note in run.notes)


def _readout(run: AcquisitionFacts, where: str) -> Iterator[Alert]:
    if run.readout_is_dummy:
        text = run.readout_source or "a dummy, because the sidecar has none"
        yield Alert("warning", f"Readout time{where}: {text}.", "acquisition")
    elif run.readout_is_fallback:
        text = run.readout_source or "not stated in the sidecar"
        yield Alert("note", f"Readout time{where}: {text}.", "acquisition")


def _conform(facts: ScanFacts) -> Iterator[Alert]:
    for run in facts.conform:
        if run.not_finite:
            yield Alert(
                "warning",
                f"{run.not_finite} values of the raw image were not finite numbers and became "
                "zero.",
                "acquisition",
            )


def _correction(facts: ScanFacts) -> Iterator[Alert]:
    for run in facts.correction:
        if run.note:
            yield Alert("warning", f"Correction: {run.note}.", "motion")
        yield from _eddy_result(run)
        if run.method is None:
            continue
        words = METHODS[run.method]
        if words.limits:
            yield Alert(words.level, words.limits, "motion")
        elif run.susceptibility not in {None, "corrected"}:
            text = f"Susceptibility distortions were {describe_susceptibility(run)}."
            yield Alert("note", text, "motion")


def _eddy_result(run: CorrectionFacts) -> Iterator[Alert]:
    """Say where eddy has left a run worse than it was."""
    signs = []
    if run.misfit_before and run.misfit_after and run.misfit_after > WORSE * run.misfit_before:
        signs.append(
            f"the tensor misfit rose from {run.misfit_before:.3f} to {run.misfit_after:.3f} of b0"
        )
    if run.method == "eddy" and (run.largest_eddy_mm or 0) > MOST_EDDY_MM:
        signs.append(f"it displaced a volume by {run.largest_eddy_mm:.1f} mm for eddy currents")
    if signs:
        yield Alert(
            "error",
            f"eddy has made the run worse: {' and '.join(signs)}. Use --correction model.",
            "motion",
        )


def _motion(motion: MotionSummary | None) -> Iterator[Alert]:
    if motion is None:
        return
    if motion.large_displacements:
        level = "warning" if motion.largest_mm > 3 * LARGE_DISPLACEMENT_MM else "note"
        count = len(motion.large_displacements)
        yield Alert(
            level,
            f"Framewise displacement is above {LARGE_DISPLACEMENT_MM:g} mm in {count} "
            f"volume{'' if count == 1 else 's'}; the largest is {motion.largest_mm:.2f} mm.",
            "motion",
        )
    if motion.outlier_slices:
        slices, volumes = motion.outlier_slices, len(motion.volumes_with_outliers)
        yield Alert(
            "note",
            f"{slices} outlier slice{' was' if slices == 1 else 's were'} replaced by "
            f"{'its' if slices == 1 else 'their'} prediction, in {volumes} "
            f"volume{'' if volumes == 1 else 's'}.",
            "motion",
        )


def _registration(facts: ScanFacts) -> Iterator[Alert]:
    if facts.registration.poor:
        text = facts.registration.text or "the registration looks poor"
        yield Alert("warning", f"Template: {text}.", "template")
    if facts.registration.t1w_dice is not None:
        yield Alert(
            "warning",
            "Template: the T1-weighted image was not used, because the registration through it "
            f"was poor (Dice {facts.registration.t1w_dice:.2f}): it may show another person or be "
            "damaged. The mean b0 was registered directly instead.",
            "template",
        )
    if facts.registration.coverage is not None and facts.registration.coverage < LEAST_COVERAGE:
        yield Alert(
            "warning",
            f"Field of view: it covers {facts.registration.coverage:.0%} of the template's brain; "
            "the rest is missing from all maps.",
            "template",
        )
    if facts.standard.without_data:
        yield Alert(
            "note",
            "Field of view: brain voxels outside of it in some volume were left out of the mask "
            f"in template space ({facts.standard.without_data} voxels).",
            "template",
        )
    if facts.standard.lost_volumes:
        yield Alert(
            "error",
            f"{facts.standard.lost_volumes} volumes have no data in most of the brain.",
            "template",
        )


def _quality(facts: ScanFacts) -> Iterator[Alert]:
    checks = facts.quality.gradient_checks
    for number, check in enumerate(checks):
        named = number < len(facts.acquisition) and facts.acquisition[number].name
        where = f" of {named or f'run {number + 1}'}" if len(checks) > 1 else ""
        if check.outcome == "wrong":
            text = check.text or "the gradient table does not fit the white matter"
            yield Alert("warning", f"Gradients{where}: {text}.", "gradients")
        elif check.outcome == "undecided":
            text = check.text or "the gradient table could not be checked"
            yield Alert("warning", f"Gradients{where}: {text}.", "gradients")


def _prediction(facts: ScanFacts) -> Iterator[Alert]:
    if facts.prediction is not None:
        for text in facts.prediction.warnings:
            yield Alert("warning", f"Prediction: {text}", "prediction")


def _unread(facts: ScanFacts) -> Iterator[Alert]:
    if facts.unread:
        listed = "; ".join(facts.unread)
        yield Alert("note", f"Facts of this scan that could not be read: {listed}.")
