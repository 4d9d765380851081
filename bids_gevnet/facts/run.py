"""Facts about one run of a scan: how it was acquired, conformed and corrected.

Every field has a default that means "not known": None, no text or an empty tuple.
"""

from dataclasses import dataclass
from typing import Literal

from bids_gevnet.facts.json_form import Count, Facts, Positive, Rows

CorrectionMethod = Literal["eddy", "model", "ants", "none", "preprocessed"]
"""Ways to correct a run: FSL eddy, the model-based corrector, rigid registration, none; or another
pipeline has corrected it before."""

Susceptibility = Literal[
    "corrected",
    "no_opposite_b0",
    "unknown_direction",
    "to_be_tried",
    "same_direction",
    "no_topup",
    "another_grid",
    "no_improvement",
    "not_supported",
]
"""Whether susceptibility distortions were corrected, and if not, why:
there is no b0 with the opposite phase encoding; the phase-encoding direction is not stated, and
there is no b0 to compare with; nothing has run yet, and equal and opposite encoding will be tried;
they were tried, and the b0s agree better as equal; FSL has no topup; the opposite b0 is on another
voxel grid; the estimated field did not bring the two b0s closer; the correction method cannot."""


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


DenoisingMethod = Literal["mppca", "patch2self", "none"]
"""Ways to denoise a run: principal components of patches, prediction from other volumes, none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFacts(Facts):
    """What denoising removed from one run.

    Attributes
    ----------
    sigma : float or None
        Standard deviation of the noise, median in the brain, in the units of the raw image.
    removed : float or None
        Root mean square of what was removed over the mean signal, median in the brain; no unit.
    edge_correlation : float or None
        Rank correlation of what was removed with the edges of tissue; no unit.
    noise_correlation : float or None
        The same for simulated noise: 95th percentile; no unit.
    anatomy : bool or None
        Whether what was removed follows the edges clearly more than noise does.
    """

    sigma: float | None = None
    removed: float | None = None
    edge_correlation: float | None = None
    noise_correlation: float | None = None
    anatomy: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningFacts(Facts):
    """How one run was cleaned before motion and distortions were corrected.

    Attributes
    ----------
    denoising : {"mppca", "patch2self", "none"} or None
        Method of denoising.
    denoising_reason : str
        Why, as a phrase, where the data decided.
    unringing : bool or None
        Whether Gibbs ringing was removed.
    unringing_reason : str
        Why, as a phrase, where the data decided.
    partial_fourier : float or None
        Share of k-space that was acquired, as the sidecar states it; no unit, 1 for all.
    noise : NoiseFacts or None
        What denoising removed; None without denoising.
    """

    denoising: DenoisingMethod | None = None
    denoising_reason: str = ""
    unringing: bool | None = None
    unringing_reason: str = ""
    partial_fourier: float | None = None
    noise: NoiseFacts | None = None

    @property
    def is_denoised(self) -> bool:
        """Whether denoising ran, or will."""
        return self.denoising in {"mppca", "patch2self"}


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
class EncodingTrial(Facts):
    """Two b0s compared as if their phase encodings were equal, and as if they were opposite.

    Attributes
    ----------
    image : str
        File name of the other image; no unit.
    as_equal, as_opposite : float or None
        Correlation of the two under either assumption; no unit.
    opposite : bool or None
        Whether they were taken as opposite.
    """

    image: str = ""
    as_equal: float | None = None
    as_opposite: float | None = None
    opposite: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SusceptibilityField(Facts):
    """The susceptibility field that the model-based corrector or topup estimated.

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
    method : {"eddy", "model", "ants", "none", "preprocessed"} or None
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
    slice_z_scores : tuple of tuple of float
        A row per volume, a number per slice: distance of its signal from the prediction, in
        standard deviations, negative where signal is lost; empty where none were looked for.
    misfit_before, misfit_after : float or None
        Misfit of the tensor in white matter before and after eddy, as a fraction of b0; None
        where it was not compared.
    susceptibility : str or None
        Whether susceptibility distortions were corrected, and if not, why.
    field_from_t1w : bool or None
        Whether the field was estimated from the T1w, not from an opposite b0.
    field : SusceptibilityField or None
        The field, where the model-based corrector or topup estimated one.
    encoding_trials : tuple of EncodingTrial
        How b0s were compared whose phase encodings may be equal or opposite; no unit.
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
    slice_z_scores: Rows = ()
    misfit_before: float | None = None
    misfit_after: float | None = None
    susceptibility: Susceptibility | None = None
    field_from_t1w: bool | None = None
    field: SusceptibilityField | None = None
    encoding_trials: tuple[EncodingTrial, ...] = ()
