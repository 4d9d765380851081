"""What the sidecar of a derivative says: how it was acquired, what was done, what it is made of.

`Sources` are BIDS URIs: `bids:raw:` is the dataset that was processed (`DatasetLinks` of the
dataset description), `bids::` the dataset of derivatives itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.facts import CleaningFacts, CorrectionFacts, ScanFacts

ICBM152_2009 = "https://www.bic.mni.mcgill.ca/ServicesAtlases/ICBM152NLin2009"
"""Where the default template is published."""

ACQUISITION_KEYS = (
    "Manufacturer",
    "ManufacturersModelName",
    "DeviceSerialNumber",
    "StationName",
    "SoftwareVersions",
    "MagneticFieldStrength",
    "ReceiveCoilName",
    "ReceiveCoilActiveElements",
    "InstitutionName",
    "MRAcquisitionType",
    "ScanningSequence",
    "SequenceVariant",
    "SequenceName",
    "PulseSequenceType",
    "EchoTime",
    "RepetitionTime",
    "FlipAngle",
    "SliceThickness",
    "SpacingBetweenSlices",
    "PixelBandwidth",
    "ParallelReductionFactorInPlane",
    "ParallelAcquisitionTechnique",
    "MultibandAccelerationFactor",
    "PartialFourier",
)
"""What stays true of a corrected series. Phase encoding, readout and slice timing are left out:
they describe voxel axes and times that the corrected volumes no longer have."""


def shared_acquisition(sidecars: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Take over the metadata of the acquisition on which all runs of a scan agree.

    >>> shared_acquisition([{"EchoTime": 0.09, "FlipAngle": 90}, {"EchoTime": 0.09}])
    {'EchoTime': 0.09}
    """
    first, *others = sidecars
    return {
        key: first[key]
        for key in ACQUISITION_KEYS
        if key in first and all(other.get(key) == first[key] for other in others)
    }


def derivative_uri(path: Path, output_dir: Path) -> str:
    """Name a file of the derivatives as a BIDS URI.

    >>> derivative_uri(Path("/out/sub-1/dwi/sub-1_dwiref.nii.gz"), Path("/out"))
    'bids::sub-1/dwi/sub-1_dwiref.nii.gz'
    """
    return f"bids::{path.relative_to(output_dir).as_posix()}"


def spatial_reference(label: str, template: Path | None) -> str:
    """Say where the image is that defines a space: the published template, or the user's file."""
    if template is None and label == DEFAULT_TEMPLATE:
        return ICBM152_2009
    return label if template is None else template.absolute().as_uri()


def describe_series(facts: ScanFacts) -> dict[str, Any]:
    """Say what was done to a corrected series in the space of the scan."""
    taken = bool(facts.source.pipeline)  # then what was cleaned is known to its pipeline
    cleaning = {
        "Cleaning": [_describe_cleaning(run) for run in facts.cleaning],
        "BiasFieldCorrected": facts.bias.corrected,
    }
    return {
        "Description": "Corrected diffusion series in the space of the scan, axes in RAS order "
        "along the world's" + ("" if taken else ", origin in the middle of the volume"),
        "SkullStripped": False,
        **({} if taken else cleaning),
        "Correction": [_describe_correction(run) for run in facts.correction],
    }


def _describe_cleaning(run: CleaningFacts) -> dict[str, Any]:
    """Give the methods by which a run was cleaned, as far as that is known."""
    content = {
        "Denoising": run.denoising,
        "GibbsRingingRemoved": run.unringing,
        "NoiseStandardDeviation": None if run.noise is None else run.noise.sigma,
    }
    return {key: value for key, value in content.items() if value is not None}


def _describe_correction(run: CorrectionFacts) -> dict[str, Any]:
    """Give the method of a run's correction and what it found, as far as that is known."""
    field = run.field
    content = {
        "Method": run.method,
        "Program": run.program or None,
        "PhaseEncodingAxis": run.phase_encoding_axis,
        "LargestDisplacement": run.largest_displacement_mm,
        "EddyCurrents": run.eddy_currents,
        "LargestEddyDisplacement": run.largest_eddy_mm,
        "OutlierSlicesReplaced": run.outlier_slices,
        "Susceptibility": run.susceptibility,
        "LargestSusceptibilityDisplacement": None if field is None else field.largest_mm,
        "Note": run.note or None,
    }
    return {key: value for key, value in content.items() if value is not None}
