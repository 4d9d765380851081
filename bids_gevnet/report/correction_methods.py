"""Describe the correction methods in words: one entry per method, read by all of the report.

The table of what was done, the alerts, the section about the correction and the methods text
take their words from here, so that they cannot contradict each other. Together with
`bids_gevnet.facts` this is all that a new method adds to the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bids_gevnet.facts import CorrectionFacts, CorrectionMethod, Susceptibility


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWords:
    """What the report says about a correction method.

    Attributes
    ----------
    title : str
        For a table.
    sentence : str
        For the methods text; `{share}` says how many runs, where it is not all.
    without_eddy : str
        Instead of the sentence, where the data did not allow to estimate eddy currents.
    susceptibility : str
        For the methods text, where susceptibility was corrected; as above.
    limits : str
        What the method does not correct whatever the data, for the alerts; empty for nothing.
    level : str
        How grave that is.
    rotates_gradients : bool
        Whether it moves volumes, so that gradients turn with them.
    interpolates : bool
        Whether it resamples, so that the template is the second interpolation.
    """

    title: str
    sentence: str
    without_eddy: str = ""
    susceptibility: str = ""
    limits: str = ""
    level: str = "note"
    rotates_gradients: bool = True
    interpolates: bool = False


METHODS: Mapping[CorrectionMethod, MethodWords] = {
    "eddy": MethodWords(
        title="motion, eddy currents and outlier slices with FSL eddy",
        sentence="Head motion and eddy currents were estimated and corrected, and outlier slices "
        "replaced by their prediction, with eddy of FSL [@fsl,eddy,outliers]{share}.",
        susceptibility="The susceptibility-induced field was estimated from b0 images with "
        "opposite phase encoding by topup of FSL [@topup] and corrected in the same "
        "interpolation{share}.",
        interpolates=True,
    ),
    "model": MethodWords(
        title="motion, eddy currents and outlier slices by prediction from the other volumes",
        sentence="Head motion and, on shells with enough volumes, an eddy-current field along "
        "the phase-encoding axis were estimated together, by comparing every volume with its "
        "prediction from the others of its shell{share}, after the idea of eddy "
        "[@eddy,outliers]; outlier slices were replaced by their prediction, and all "
        "displacements were applied in one interpolation with the Jacobian. Neither motion "
        "within a volume nor the change of the susceptibility field with the position of the "
        "head was modelled.",
        without_eddy="Head motion was estimated by comparing every volume with its prediction "
        "from the others of its shell{share}; eddy currents and outlier slices were not looked "
        "for, because no shell has enough volumes.",
        susceptibility="The susceptibility-induced field was estimated from b0 images with "
        "opposite phase encoding, as a cubic B-spline that makes the two images agree, after the "
        "idea of topup [@topup], and corrected in the same interpolation{share}.",
    ),
    "ants": MethodWords(
        title="rigid registration of every volume (ANTs)",
        sentence="Head motion was corrected by rigid registration of every volume with ANTs "
        "[@ants,antsx]{share}: b0 volumes to the first b0, diffusion-weighted volumes to the mean "
        "of their shell, by mutual information. This corrects neither eddy currents nor "
        "susceptibility distortions nor outlier slices.",
        limits="Motion was corrected by rigid registration (ANTs); eddy currents, susceptibility "
        "distortions and outlier slices were not corrected. --correction model, or eddy with FSL "
        "installed, corrects these too.",
    ),
    "none": MethodWords(
        title="none",
        sentence="Neither motion nor distortions were corrected{share}.",
        limits="Neither motion nor distortions were corrected.",
        level="warning",
        rotates_gradients=False,
    ),
    "preprocessed": MethodWords(
        title="corrected before",
        sentence="Motion and distortions had been corrected before{share} and were not corrected "
        "again; gradient directions and framewise displacement were taken as they were found.",
        rotates_gradients=False,
        interpolates=True,
    ),
}

MODEL_NOT_DONE = (
    "motion within a volume, and the change of the susceptibility field with the position of "
    "the head, both of which FSL eddy can correct"
)

FIELD_FROM_T1W = (
    "The susceptibility-induced field was estimated without a field map, by registration of the "
    "first b0 to the intensity-inverted T1-weighted image along the phase-encoding axis with SyN "
    "of ANTs [@ants,antsx,synsdc], and corrected in the same interpolation{share}."
)
"""For the methods text, where the field comes from the T1w."""

WHY_NOT_SUSCEPTIBILITY: Mapping[Susceptibility, str] = {
    "no_opposite_b0": "there is no b0 with the opposite phase encoding",
    "unknown_direction": "the phase-encoding direction, or its sign, is not stated in the "
    "metadata",
    "to_be_tried": "whether the phase encodings are opposite has not been tried yet",
    "same_direction": "the other b0s, whose phase encoding is not fully stated, agree better with "
    "that of the run as equal than as opposite",
    "no_topup": "FSL's topup is not installed",
    "another_grid": "no b0 with the opposite phase encoding is on the voxel grid of the run",
    "no_improvement": "the estimated field did not bring the images it was estimated from closer",
    "not_supported": "this correction cannot",
}
"""Why susceptibility distortions were not corrected."""


def describe_correction(run: CorrectionFacts) -> str:
    """Say in a phrase how a run was corrected; empty where it is not known."""
    if run.method is None:
        return ""
    program = f" ({run.program})" if run.program else ""
    if METHODS[run.method].without_eddy and run.eddy_currents is False:
        return "motion by prediction from the other volumes; no shell is large enough for more"
    return f"{METHODS[run.method].title}{program}"


def describe_susceptibility(run: CorrectionFacts) -> str:
    """Say in a phrase whether susceptibility was corrected; empty where it is not known."""
    if run.susceptibility is None:
        return ""
    if run.susceptibility == "corrected" and run.field_from_t1w:
        return "corrected by registration to the T1-weighted image (SyN), without a field map"
    if run.susceptibility == "corrected":
        return "corrected with topup" if run.method == "eddy" else "corrected"
    return f"not corrected: {WHY_NOT_SUSCEPTIBILITY[run.susceptibility]}"
