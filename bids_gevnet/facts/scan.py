"""Facts about one scan: how each run was acquired, and what each stage did to it.

Every field has a default that means "not known": None, no text or an empty tuple. Where a field
holds a tuple of further facts, its entries are in the order of the scan's runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from bids_gevnet.facts.json_form import Count, Facts, Fraction, Positive, Rows, outside_json

CorrectionMethod = Literal["eddy", "model", "ants", "none"]
"""Ways to correct a run: FSL eddy, the model-based corrector, rigid registration, none."""

Susceptibility = Literal[
    "corrected",
    "no_opposite_b0",
    "unknown_direction",
    "no_topup",
    "another_grid",
    "no_improvement",
    "not_supported",
]
"""Whether susceptibility distortions were corrected, and if not, why:
there is no b0 with the opposite phase encoding; the phase-encoding direction is not stated;
FSL has no topup; the opposite b0 is on another voxel grid; the estimated field did not bring
the two b0s closer; the correction method cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannerFacts(Facts):
    """The scanner, as the sidecar names it.

    Attributes
    ----------
    manufacturer : str
        BIDS Manufacturer; no unit.
    model : str
        BIDS ManufacturersModelName; no unit.
    field_strength_t : float or None
        BIDS MagneticFieldStrength, in tesla.
    """

    manufacturer: str = ""
    model: str = ""
    field_strength_t: float | None = None

    def __str__(self) -> str:
        strength = self.field_strength_t
        parts = (self.manufacturer, self.model, "" if strength is None else f"{strength:g} T")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquisitionFacts(Facts):
    """How one run was acquired, and which values its sidecar lacks.

    Attributes
    ----------
    name : str
        What the file names of the run begin with; no unit.
    scanner : ScannerFacts
        The scanner; no unit.
    phase_encoding : str
        Phase-encoding direction in BIDS spelling, along the voxel axes of the raw image.
    phase_encoding_source : str
        Where the direction comes from, as a phrase.
    phase_encoding_is_guess : bool or None
        Whether the direction, or its sign, is not stated in the sidecar.
    readout_s : float or None
        Total readout time, in seconds.
    readout_source : str
        Where the readout time comes from, as a phrase.
    readout_is_dummy : bool or None
        Whether the readout time is not known at all.
    readout_is_fallback : bool or None
        Whether it is an estimate of the converter or was given on the command line.
    fieldmaps : tuple of str
        File names of the field maps meant for the run.
    t1w : str
        File name of the participant's T1-weighted image.
    notes : tuple of str
        What was unusual about the files and could be put right, as phrases.
    """

    name: str = ""
    scanner: ScannerFacts = ScannerFacts()
    phase_encoding: str = ""
    phase_encoding_source: str = ""
    phase_encoding_is_guess: bool | None = None
    readout_s: float | None = None
    readout_source: str = ""
    readout_is_dummy: bool | None = None
    readout_is_fallback: bool | None = None
    fieldmaps: tuple[str, ...] = ()
    t1w: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformFacts(Facts):
    """One run after its axes were put in RAS order.

    Attributes
    ----------
    shape : tuple of int
        Voxels along each axis of the raw image, and its number of volumes.
    voxel_mm : tuple of float
        Voxel size, in mm.
    not_finite : int or None
        Values of the raw image that were NaN or infinite and became 0: a count.
    bvals : tuple of float
        b-value of each volume, in s/mm².
    bvecs_ras : tuple of tuple of float
        Gradient direction of each volume as in the dataset: unit vectors in world RAS.
    """

    shape: tuple[Positive, ...] = ()
    voxel_mm: tuple[float, ...] = ()
    not_finite: Count | None = None
    bvals: tuple[float, ...] = ()
    bvecs_ras: Rows = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierSlice(Facts):
    """A slice with lost signal that was replaced by its prediction.

    Attributes
    ----------
    volume : int or None
        Number of the volume, counted from 0.
    slice : int or None
        Number of the slice along the slice axis, counted from 0.
    z_score : float or None
        Distance from the prediction, in standard deviations.
    """

    volume: Count | None = None
    slice: Count | None = None
    z_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SusceptibilityField(Facts):
    """The susceptibility field that the model-based corrector estimated.

    Attributes
    ----------
    largest_mm : float or None
        99.9th percentile of the displacement's size, in mm.
    correlation_before, correlation_after : float or None
        Correlation of the two opposite b0s without and with the field; no unit.
    planes_mm : tuple of rows
        Displacement along the phase-encoding axis in the sagittal, coronal and axial plane
        through its largest value in the head, in mm.
    head : tuple of rows
        The same planes: 1 in the head, 0 outside.
    """

    largest_mm: float | None = None
    correlation_before: float | None = None
    correlation_after: float | None = None
    planes_mm: tuple[Rows, ...] = ()
    head: tuple[Rows, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionFacts(Facts):
    """How motion and distortions of one run were corrected.

    Attributes
    ----------
    method : {"eddy", "model", "ants", "none"} or None
        What ran, which may differ from what was chosen where the data did not allow it.
    program : str
        Name of the external program, where one ran.
    note : str
        What went otherwise than it should, as a phrase.
    largest_displacement_mm : float or None
        Largest displacement of a volume from the reference, in mm: root mean square over the
        head.
    eddy_currents : bool or None
        Whether eddy currents were estimated on at least one shell.
    largest_eddy_mm : float or None
        Largest displacement by eddy currents of a volume, in mm: root mean square over a ball
        of 50 mm radius.
    eddy_terms_mm : tuple of tuple of float
        Ten coefficients per volume of the displacement by eddy currents, in mm at 50 mm from
        the centre: constant, x, y, z, x², y², z², xy, xz, yz.
    phase_encoding_axis : {"i", "j", "k"} or None
        Voxel axis of the conformed image along which distortions displace.
    outlier_slices : int or None
        Slices replaced by their prediction: a count; None where none were looked for.
    outliers : tuple of OutlierSlice
        The first of them; no unit.
    susceptibility : str or None
        Whether susceptibility distortions were corrected, and if not, why.
    field : SusceptibilityField or None
        The field, where the model-based corrector estimated one.
    """

    method: CorrectionMethod | None = None
    program: str = ""
    note: str = ""
    largest_displacement_mm: float | None = None
    eddy_currents: bool | None = None
    largest_eddy_mm: float | None = None
    eddy_terms_mm: Rows = ()
    phase_encoding_axis: Literal["i", "j", "k"] | None = None
    outlier_slices: Count | None = None
    outliers: tuple[OutlierSlice, ...] = ()
    susceptibility: Susceptibility | None = None
    field: SusceptibilityField | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFacts(Facts):
    """How the runs of a scan were put together.

    Attributes
    ----------
    runs : int or None
        Runs of the scan: a count.
    apart_mm : tuple of float
        Displacement of each run from the first, in mm: root mean square over the head.
    """

    runs: Count | None = None
    apart_mm: tuple[float, ...] = ()

    @property
    def joined(self) -> bool:
        """Whether there was more than one run."""
        return self.runs is not None and self.runs > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskFacts(Facts):
    """How the brain was masked.

    Attributes
    ----------
    method : {"bet", "otsu"} or None
        FSL bet, or thresholds and morphology.
    volume_ml : float or None
        Volume of the mask, in ml.
    """

    method: Literal["bet", "otsu"] | None = None
    volume_ml: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFacts(Facts):
    """How the scan was registered to the template.

    Attributes
    ----------
    source : {"b0", "T1w"} or None
        Whether the mean b0 was registered to the template directly or through the T1w.
    template : str
        Label of the template's space; no unit.
    dice : float or None
        Dice overlap of the brains; no unit, 1 is best.
    information : float or None
        Normalised mutual information; no unit, from 1 to 2.
    poor : bool or None
        Whether overlap or mutual information is below its limit.
    text : str
        The verdict, as a phrase.
    """

    source: Literal["b0", "T1w"] | None = None
    template: str = ""
    dice: float | None = None
    information: float | None = None
    poor: bool | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFacts(Facts):
    """A shell of the scan.

    Attributes
    ----------
    b_value : float or None
        Mean b-value, in s/mm².
    directions : int or None
        Different directions: a count.
    """

    b_value: float | None = None
    directions: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SphereFacts(Facts):
    """How one shell was sampled on the sphere.

    Attributes
    ----------
    b_value : float or None
        Mean b-value of the shell, in s/mm².
    directions : int or None
        Its different directions: a count.
    shells : tuple of ShellFacts
        All shells of the scan; no unit.
    b0_volumes : int or None
        b0 volumes: a count.
    nside : int or None
        Resolution of the HEALPix grid, which has 12 nside² points.
    kernel : str
        Radial basis function of the interpolation; no unit.
    smoothing : float or None
        Its smoothing parameter; no unit.
    degrees : tuple of int
        Spherical-harmonic degrees whose energy was mapped.
    voxels : int or None
        Voxels of the brain mask in template space: a count.
    residual_rms : float or None
        Root mean square difference of samples and measurements, as a fraction of b0.
    """

    b_value: float | None = None
    directions: Positive | None = None
    shells: tuple[ShellFacts, ...] = ()
    b0_volumes: Count | None = None
    nside: Positive | None = None
    kernel: str = ""
    smoothing: float | None = None
    degrees: tuple[Count, ...] = ()
    voxels: Count | None = None
    residual_rms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck(Facts):
    """Whether the gradient table fits the coherence of white matter.

    Attributes
    ----------
    outcome : {"fits", "wrong", "undecided", "planned"} or None
        Undecided where no voxel could be used; planned before anything ran.
    text : str
        The verdict, as a phrase.
    score, best_score : float or None
        Coherence with the table as it is and with the best of 24 arrangements of its axes; no
        unit.
    voxels : int or None
        Voxels that were used: a count.
    """

    outcome: Literal["fits", "wrong", "undecided", "planned"] | None = None
    text: str = ""
    score: float | None = None
    best_score: float | None = None
    voxels: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFacts(Facts):
    """Quality of the corrected scan in its own space.

    Attributes
    ----------
    snr_b0 : float or None
        Mean b0 in the brain over the standard deviation of the noise; no unit.
    cnr : float or None
        Standard deviation over directions over the misfit of the tensor, median in white
        matter; no unit.
    tensor_residual : float or None
        Misfit of the tensor, median in white matter, as a fraction of b0.
    neighbour_correlation : float or None
        Mean correlation of volumes with nearest directions; no unit.
    mean_fa_white_matter : float or None
        Mean fractional anisotropy of white matter; no unit, from 0 to 1.
    gradient_check : GradientCheck
        Whether the gradient table fits; no unit.
    """

    snr_b0: float | None = None
    cnr: float | None = None
    tensor_residual: float | None = None
    neighbour_correlation: float | None = None
    mean_fa_white_matter: float | None = None
    gradient_check: GradientCheck = GradientCheck()


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFacts(Facts):
    """What a trained model predicted.

    Attributes
    ----------
    task : str
        Name of the classification; no unit.
    network : str
        Name of the network; no unit.
    label : str
        Most probable class.
    probabilities : mapping of str to float
        Calibrated probability of each class, from 0 to 1.
    harmonised : bool or None
        Whether the samples were scaled with the model's gains of the scan's site.
    warnings : tuple of str
        Where the scan lies outside of what the model was trained on, as sentences.
    """

    task: str = ""
    network: str = ""
    label: str = ""
    probabilities: Mapping[str, Fraction] | None = None
    harmonised: bool | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFacts(Facts):
    """What was chosen before anything ran, by the settings and by what is installed.

    Attributes
    ----------
    correction : {"eddy", "model", "ants", "none"} or None
        Method of correction; the data of a run may rule it out.
    masking : {"bet", "otsu"} or None
        Method of masking.
    topup : bool or None
        Whether FSL's topup is there for eddy.
    """

    correction: CorrectionMethod | None = None
    masking: Literal["bet", "otsu"] | None = None
    topup: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFacts(Facts):
    """All that is known about one scan.

    Attributes
    ----------
    name : str
        What all its file names begin with; no unit.
    acquisition : tuple of AcquisitionFacts
        How each run was acquired.
    tools : ToolFacts
        What was chosen before anything ran.
    conform : tuple of ConformFacts
        Each run after conforming.
    correction : tuple of CorrectionFacts
        How each run was corrected.
    join : JoinFacts
        How the runs were put together.
    mask : MaskFacts
        How the brain was masked.
    registration : RegistrationFacts
        How the scan was registered to the template.
    sphere : SphereFacts
        How one shell was sampled on the sphere.
    quality : QualityFacts
        Quality of the corrected scan.
    prediction : PredictionFacts or None
        What a trained model predicted; None without a model.
    unread : tuple of str
        What the file held that could not be read, a sentence each; not part of the file.
    """

    name: str = ""
    acquisition: tuple[AcquisitionFacts, ...] = ()
    tools: ToolFacts = ToolFacts()
    conform: tuple[ConformFacts, ...] = ()
    correction: tuple[CorrectionFacts, ...] = ()
    join: JoinFacts = JoinFacts()
    mask: MaskFacts = MaskFacts()
    registration: RegistrationFacts = RegistrationFacts()
    sphere: SphereFacts = SphereFacts()
    quality: QualityFacts = QualityFacts()
    prediction: PredictionFacts | None = None
    unread: tuple[str, ...] = outside_json()

    @classmethod
    def read(cls, raw: object) -> Self:
        """Read what `to_json` wrote; `unread` names what could not be read."""
        facts, unread = cls.from_json(raw)
        return replace(facts, unread=unread)
