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
    tensor_ending,
)
from bids_gevnet.dwi.tensor import HIGHEST_B
from bids_gevnet.facts import AcquisitionFacts, CorrectionFacts, ScanFacts
from bids_gevnet.report.correction_methods import METHODS, describe_susceptibility
from bids_gevnet.report.figures.motion import LARGE_DISPLACEMENT_MM, MotionSummary
from bids_gevnet.report.scan_files import ScanFiles

LEVELS = ("error", "warning", "note")

WORSE = 1.1
"""Misfit after eddy over misfit before: interpolation alone lowers it, so a rise is no chance."""

LEAST_COVERAGE = 0.9
"""Share of the template's brain that a scan of the whole brain has in its field of view."""

HIGHEST_SNR, HIGHEST_FA, HIGHEST_MISFIT = 200.0, 0.8, 0.5
"""What no brain has: b0s with a signal to noise of 200, white matter with a mean FA of 0.8, or a
tensor that misses the signal by half of b0. Damaged data were seen to reach 391, 0.8 and 0.7; real
scans at hand have a mean FA of 0.52 to 0.54 and a misfit of 0.02 to 0.03."""

FEWEST_DIRECTIONS = 12
"""A tensor takes six; with hardly more, nothing is left to average noise or to show errors."""

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
        _source(facts),
        _conform(facts),
        _cleaning(facts),
        _correction(facts),
        _runs(facts),
        _motion(motion),
        _registration(facts),
        _tensor(facts),
        _plausibility(facts),
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
        *(place(tensor_ending("fa")) for place in (scan.native, scan.standard)),
    ]
    if scan.facts.prediction is not None:
        expected.append(scan.native(prediction_ending(scan.facts.prediction.network)))
    for path in expected:
        if not path.exists():
            yield Alert("error", f"The derivative {path.name} is missing.")


def _acquisition(facts: ScanFacts) -> Iterator[Alert]:
    has_field = any(run.susceptibility == "corrected" for run in facts.correction)
    for run in facts.acquisition:
        where = f" ({run.name or 'a run'})" if len(facts.acquisition) > 1 else ""
        if run.phase_encoding_is_guess:
            text = run.phase_encoding_source or "assumed, because the sidecar has none"
            yield Alert("warning", f"Phase encoding{where}: {text}.", "acquisition")
        yield from _readout(run, where, has_field=has_field)
        yield from (Alert("note", f"Input{where}: {note}.", "acquisition") for note in run.notes)


def _source(facts: ScanFacts) -> Iterator[Alert]:
    """Say where a scan comes from that was not corrected here."""
    if facts.source.pipeline:
        yield Alert(
            "note",
            f"The scan was preprocessed by {facts.source}; it was not corrected again. Taken from "
            f"it: {', '.join(facts.source.taken)}.",
            "acquisition",
        )


def _readout(run: AcquisitionFacts, where: str, *, has_field: bool) -> Iterator[Alert]:
    if run.readout_is_dummy:
        text = run.readout_source or "a dummy, because the sidecar has none"
        if has_field:
            yield Alert("warning", f"Readout time{where}: {text}.", "acquisition")
        else:
            text += "; without a susceptibility field nothing depends on it"
            yield Alert("note", f"Readout time{where}: {text}.", "acquisition")
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


def _cleaning(facts: ScanFacts) -> Iterator[Alert]:
    for run in facts.cleaning:
        if run.noise is not None and run.noise.anatomy:
            yield Alert(
                "warning",
                "Denoising: what was removed follows the edges of tissue (correlation "
                f"{run.noise.edge_correlation:.2f}, of noise {run.noise.noise_correlation:.2f}), "
                "so anatomy may be among it. Look at the residual, or use --denoise none.",
                "acquisition",
            )
        if run.unringing and run.partial_fourier is not None and run.partial_fourier < 1:
            yield Alert(
                "note",
                f"Gibbs ringing: {run.partial_fourier:.0%} of k-space was acquired, for which the "
                "removal of ringing was not made; some ringing stays.",
                "acquisition",
            )
        if run.denoising_reason:
            yield Alert("note", f"Not denoised: {run.denoising_reason}.", "acquisition")


def _correction(facts: ScanFacts) -> Iterator[Alert]:
    for number, run in enumerate(facts.correction):
        if run.note:
            yield Alert("warning", f"Correction: {run.note}.", "motion")
        named = number < len(facts.acquisition) and facts.acquisition[number].name
        several = len(facts.correction) > 1
        yield from _eddy_result(run, f"run {named or number + 1}" if several else "the run")
        yield from _encoding_trials(run)
        if run.method is None:
            continue
        words = METHODS[run.method]
        if words.limits:
            yield Alert(words.level, words.limits, "motion")
        elif run.susceptibility not in {None, "corrected"}:
            text = f"Susceptibility distortions were {describe_susceptibility(run)}."
            yield Alert("note", text, "motion")


def _runs(facts: ScanFacts) -> Iterator[Alert]:
    for run in facts.join.left_out:
        yield Alert(
            "warning",
            f"Runs: {run.name or 'a run'} was left out: {run.reason or 'it does not fit'}.",
            "acquisition",
        )


def _eddy_result(run: CorrectionFacts, name: str) -> Iterator[Alert]:
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
            f"eddy has made {name} worse: {' and '.join(signs)}. Use --correction model.",
            "motion",
        )


def _encoding_trials(run: CorrectionFacts) -> Iterator[Alert]:
    """Say which way b0s were taken whose phase encodings may be equal or opposite."""
    for trial in run.encoding_trials:
        kept = "opposite" if trial.opposite else "equal"
        yield Alert(
            "note",
            f"Phase encoding: nothing tells whether {trial.image or 'another image'} has the "
            "encoding of the run or the opposite. Both were tried on the b0s, which correlate "
            f"by {_shown(trial.as_equal)} as equal and by {_shown(trial.as_opposite)} as "
            f"opposite, with a susceptibility field; it was taken as {kept}.",
            "motion",
        )


def _shown(correlation: float | None) -> str:
    return "an unknown value" if correlation is None else f"{correlation:.3f}"


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
    elif facts.registration.retried:
        yield Alert(
            "note",
            "Template: the first registration was poor, and more starts found a better one.",
            "template",
        )
    if facts.registration.t1w_dice is not None:
        yield Alert(
            "warning",
            "Template: the T1-weighted image was not used, because the registration through it "
            f"was poor (Dice {facts.registration.t1w_dice:.2f}): it may show another person or be "
            "damaged. The mean b0 was registered directly instead.",
            "template",
        )
    if facts.registration.transform_dice is not None:
        yield Alert(
            "warning",
            "Template: the transform of the pipeline that preprocessed the scan was not used, "
            "because the overlap of brains was poor (Dice "
            f"{facts.registration.transform_dice:.2f}) and registering again was better.",
            "template",
        )
    if facts.registration.coverage is not None and facts.registration.coverage < LEAST_COVERAGE:
        yield Alert(
            "warning",
            f"Field of view: it covers {facts.registration.coverage:.0%} of the template's brain; "
            "the rest is missing from all maps.",
            "template",
        )
    if facts.mask.without_data:
        yield Alert(
            "note",
            "Field of view: brain voxels outside of it in some volume were left out of the mask "
            f"in the scan's own space ({_voxels(facts.mask.without_data)}).",
            "template",
        )
    if facts.standard.without_data:
        yield Alert(
            "note",
            "Field of view: brain voxels outside of it in some volume were left out of the mask "
            f"in template space ({_voxels(facts.standard.without_data)}).",
            "template",
        )
    if facts.standard.lost_volumes:
        yield Alert(
            "error",
            f"{facts.standard.lost_volumes} volumes have no data in most of the brain.",
            "template",
        )


def _voxels(count: int) -> str:
    return f"{count} voxel{'' if count == 1 else 's'}"


def _tensor(facts: ScanFacts) -> Iterator[Alert]:
    directions = facts.tensor.directions
    if directions is not None and directions < FEWEST_DIRECTIONS:
        yield Alert(
            "warning",
            f"Directions: the shell has {directions}. A tensor can be fitted, but noise makes FA "
            "too high, the tensor misfit tells little, and crossing fibres cannot be told apart.",
            "quality",
        )
    b_value = facts.tensor.b_value
    if b_value is not None and b_value > HIGHEST_B:
        yield Alert(
            "note",
            f"Tensor maps: fitted at b = {b_value:.0f} s/mm², because there is no shell up to "
            f"{HIGHEST_B:.0f}; diffusivities come out lower than in most studies.",
            "quality",
        )


def _plausibility(facts: ScanFacts) -> Iterator[Alert]:
    """Say which numbers no brain has."""
    quality = facts.quality
    for value, limit, what in (
        (quality.snr_b0, HIGHEST_SNR, "a signal to noise of {:.0f} in the b0s"),
        (quality.mean_fa_white_matter, HIGHEST_FA, "a mean FA of {:.2f} in white matter"),
        (quality.tensor_residual, HIGHEST_MISFIT, "a tensor misfit of {:.2f} of b0"),
    ):
        if value is not None and value >= limit:
            yield Alert(
                "error",
                f"Quality: {what.format(value)} is not that of a brain (expected less than "
                f"{limit:g}). The data may be damaged, or no diffusion series: look at the "
                "images.",
                "quality",
            )


_LOOK = (
    "Look for yourself: exchanged axes show as wrong colours under Colour FA, flipped signs as "
    "fibres that lean the wrong way under Where fibres cross."
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
            yield Alert("warning", f"Gradients{where}: {text}. {_LOOK}", "gradients")


def _prediction(facts: ScanFacts) -> Iterator[Alert]:
    if facts.prediction is not None:
        for text in facts.prediction.warnings:
            yield Alert("warning", f"Prediction: {text}", "prediction")


def _unread(facts: ScanFacts) -> Iterator[Alert]:
    if facts.unread:
        listed = "; ".join(facts.unread)
        yield Alert("note", f"Facts of this scan that could not be read: {listed}.")
