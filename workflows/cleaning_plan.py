"""Plan the cleaning of one run, from its settings, its size and its sidecar; without Nipype."""

from typing import Any

from bids_gevnet.bids.images import check_image
from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.dwi.cleaning import FEWEST_VOLUMES, patch_radius
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import BiasFacts, CleaningFacts, DenoisingMethod
from bids_gevnet.settings import PreprocessingSettings

_AFTER_MPPCA = "after MP-PCA it made FA and the signal worse on phantoms"
"""See benchmarks/results/cleaning.md; --unring on does it all the same."""

_BIAS_CANCELS = "one field divides all volumes, so S/b0 and tensors stay the same"
"""Measured there too; --bias-correct on does it all the same."""


def plan_cleaning(run: DiffusionRun, settings: PreprocessingSettings) -> CleaningFacts:
    """Decide how to clean a run, from its settings, its size and its sidecar.

    Parameters
    ----------
    run : DiffusionRun
    settings : PreprocessingSettings
    """
    if run.preprocessed is not None:  # what its pipeline did is not known; it cannot be done now
        return CleaningFacts()
    unfit = _not_as_acquired(run)
    denoising, denoising_reason = _plan_denoising(run, settings, unfit)
    partial = _number(run.metadata.get("PartialFourier"))
    why_not = unfit
    if not unfit and partial is not None and partial < 1:
        why_not = f"{partial:.0%} of k-space was acquired, and the removal assumes all of it"
    elif not unfit and denoising == "mppca":
        why_not = _AFTER_MPPCA
    by_data = settings.unring == "auto"
    if settings.unring == "none":
        why_not = "--unring none"
    return CleaningFacts(
        denoising=denoising,
        denoising_reason=denoising_reason,
        unringing=settings.unring == "on" or (by_data and not why_not),
        unringing_reason="" if settings.unring == "on" else why_not,
        partial_fourier=partial,
    )


def plan_bias(run: DiffusionRun, settings: PreprocessingSettings) -> BiasFacts:
    """Decide whether a scan is divided by its bias field.

    Parameters
    ----------
    run : DiffusionRun
        The first of the scan.
    settings : PreprocessingSettings
    """
    if run.preprocessed is not None:
        return BiasFacts()
    if settings.bias_correct == "on":
        return BiasFacts(corrected=True)
    asked = settings.bias_correct == "none"
    return BiasFacts(corrected=False, reason="--bias-correct none" if asked else _BIAS_CANCELS)


def _plan_denoising(
    run: DiffusionRun, settings: PreprocessingSettings, unfit: str
) -> tuple[DenoisingMethod, str]:
    *shape, volumes = check_image(run.image)
    side = 2 * patch_radius(volumes) + 1
    too_thin = f"a patch of {side} voxels does not fit into {min(shape)}"
    if settings.denoise == "mppca" and min(shape) < side:
        raise ParticipantError(
            expected=f"at least {side} voxels along every axis for --denoise mppca with {volumes} "
            "volumes",
            found=f"{min(shape)} in {run.image.name}",
            remedy="use --denoise patch2self or none",
        )
    if settings.denoise != "auto":
        return settings.denoise, "--denoise none" if settings.denoise == "none" else ""
    if volumes < FEWEST_VOLUMES:
        return "none", f"{volumes} volumes are too few to tell noise from signal"
    if unfit or min(shape) < side:
        return "none", unfit or too_thin
    return "mppca", ""


def _not_as_acquired(run: DiffusionRun) -> str:
    """Say why neither noise nor edges of a run are as they were acquired; empty where they are."""
    part = run.entities.get("part", "mag")
    if part != "mag":
        return f"the image is not a magnitude (part-{part})"
    acquired, written = (
        _number(run.metadata.get(key)) for key in ("AcquisitionMatrixPE", "ReconMatrixPE")
    )
    if acquired and written and acquired < written:
        return (
            f"the scanner interpolated the image, from {acquired:.0f} to {written:.0f} phase-"
            "encoding lines"
        )
    return ""


def _number(value: Any) -> float | None:
    """Read a number from a sidecar, which may hold anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < float("inf") else None
