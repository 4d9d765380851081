"""Facts about one scan: what each stage did to it, and all of them together.

Every field has a default that means "not known": None, no text or an empty tuple. Where a field
holds a tuple of further facts, its entries are in the order of the scan's runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from bids_gevnet.facts.json_form import Count, Facts, Fraction, Positive, outside_json
from bids_gevnet.facts.run import (
    AcquisitionFacts,
    CleaningFacts,
    ConformFacts,
    CorrectionFacts,
    CorrectionMethod,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRun(Facts):
    """A run that disagrees with the others and was not used.

    Attributes
    ----------
    name : str
        Of the run; no unit.
    reason : str
        What disagrees, as a phrase.
    """

    name: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFacts(Facts):
    """How the runs of a scan were put together.

    Attributes
    ----------
    runs : int or None
        Runs that were used: a count.
    apart_mm : tuple of float
        Displacement of each run from the first, in mm: root mean square over the head; empty
        where eddy took all runs at once.
    angles_deg : tuple of float
        Median angle of each further run's main directions to those of the first, in white
        matter, in degrees; empty where they could not be compared.
    left_out : tuple of LeftOutRun
        Runs that were not used, because they disagree with those that were.
    """

    runs: Count | None = None
    apart_mm: tuple[float, ...] = ()
    angles_deg: tuple[float, ...] = ()
    left_out: tuple[LeftOutRun, ...] = ()

    @property
    def joined(self) -> bool:
        """Whether more than one run was used."""
        return self.runs is not None and self.runs > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskFacts(Facts):
    """How the brain was masked.

    Attributes
    ----------
    method : {"bet", "otsu", "given"} or None
        FSL bet, or thresholds and morphology; or somebody else has made the mask.
    source : str
        File name of a mask that was given; no unit.
    volume_ml : float or None
        Volume of the mask, in ml.
    refined : bool or None
        Whether it was made again with the template's brain, after the registration.
    without_data : int or None
        Voxels of the brain that lay outside the field of view in some volume and were taken off
        the mask in the scan's own space: a count.
    """

    method: Literal["bet", "otsu", "given"] | None = None
    source: str = ""
    volume_ml: float | None = None
    refined: bool | None = None
    without_data: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasFacts(Facts):
    """Whether the bias field was corrected.

    Attributes
    ----------
    corrected : bool or None
        Whether the corrected series was divided by a bias field.
    lowest, highest : float or None
        1st and 99th percentile of the field in the brain, where its median is 1; no unit.
    reason : str
        Why not, where it was not corrected.
    """

    corrected: bool | None = None
    lowest: float | None = None
    highest: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFacts(Facts):
    """How the scan was registered to the template.

    Attributes
    ----------
    source : {"b0", "T1w", "transform"} or None
        Whether the mean b0 was registered to the template directly or through the T1w, or a
        transform of the pipeline that preprocessed the scan was taken.
    template : str
        Label of the template's space; no unit.
    dice : float or None
        Dice overlap of the brains; no unit, 1 is best.
    information : float or None
        Normalised mutual information; no unit, from 1 to 2.
    rival : float or None
        Information at the best place nearby over that at the place found; no unit, above 1 a
        place nearby is better.
    edges : float or None
        Correlation of tissue borders with the template's; no unit, 1 is best.
    retried : bool or None
        Whether a first result was poor and more starts were tried.
    poor : bool or None
        Whether anything of this is outside its limits.
    text : str
        The verdict, as a phrase.
    coverage : float or None
        Share of the template's brain inside the field of view of the scan; no unit, from 0 to 1.
    t1w_dice : float or None
        Dice overlap through a T1w that was not used, because the b0 alone registered better;
        None where there is no T1w or it was used.
    transform : str
        File name of the transform that was taken; no unit.
    nonlinear_mm : float or None
        What the affine leaves out of that transform: root mean square over the brain, in mm.
    transform_dice : float or None
        Dice overlap by a transform that was not used, because it was poor and registering again
        was better; None where it was used or there is none.
    """

    source: Literal["b0", "T1w", "transform"] | None = None
    template: str = ""
    dice: float | None = None
    information: float | None = None
    rival: float | None = None
    edges: float | None = None
    retried: bool | None = None
    poor: bool | None = None
    text: str = ""
    coverage: Fraction | None = None
    t1w_dice: float | None = None
    transform: str = ""
    nonlinear_mm: float | None = None
    transform_dice: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardFacts(Facts):
    """How the scan was resampled to the template.

    Attributes
    ----------
    without_data : int or None
        Voxels of the brain that lay outside the field of view in some volume and were taken off
        the mask in template space: a count.
    lost_volumes : int or None
        Volumes without data in most of the brain, which take nothing off the mask: a count.
    """

    without_data: Count | None = None
    lost_volumes: Count | None = None


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
    """How one shell, or several, were sampled on the sphere.

    Attributes
    ----------
    sampled : tuple of ShellFacts
        The shells on the sphere, in the order of the samples; no unit.
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

    sampled: tuple[ShellFacts, ...] = ()
    shells: tuple[ShellFacts, ...] = ()
    b0_volumes: Count | None = None
    nside: Positive | None = None
    kernel: str = ""
    smoothing: float | None = None
    degrees: tuple[Count, ...] = ()
    voxels: Count | None = None
    residual_rms: float | None = None

    @property
    def b_values(self) -> tuple[float, ...]:
        """Mean b-values of the shells on the sphere, in s/mm²."""
        return tuple(shell.b_value for shell in self.sampled if shell.b_value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts(Facts):
    """What the maps of the diffusion tensor were fitted to, besides the b0s.

    Attributes
    ----------
    b_value : float or None
        Mean b-value of the shell, in s/mm².
    directions : int or None
        Its different directions: a count.
    """

    b_value: float | None = None
    directions: Positive | None = None


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


_WORST: tuple[str | None, ...] = ("wrong", "undecided", "planned", "fits")
"""Outcomes of a gradient check, the one that matters most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSignal(Facts):
    """How far the signal of a shell stands above the noise.

    Attributes
    ----------
    b_value : float or None
        Mean b-value, in s/mm²; 0 for the b0s.
    volumes : int or None
        Volumes of the shell: a count.
    snr : float or None
        Mean signal in the brain over the standard deviation of the noise; no unit.
    """

    b_value: float | None = None
    volumes: Count | None = None
    snr: float | None = None


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
    shell_signals : tuple of ShellSignal
        Signal to noise of the b0s and of each shell.
    noise_from : {"b0", "misfit"} or None
        Where the noise of `shell_signals` comes from: repeated b0s or air, or else the misfit of
        the tensor, which holds more than noise.
    gradient_checks : tuple of GradientCheck
        Whether the gradient table of each run fits; no unit.
    """

    snr_b0: float | None = None
    cnr: float | None = None
    tensor_residual: float | None = None
    neighbour_correlation: float | None = None
    mean_fa_white_matter: float | None = None
    shell_signals: tuple[ShellSignal, ...] = ()
    noise_from: Literal["b0", "misfit"] | None = None
    gradient_checks: tuple[GradientCheck, ...] = ()

    @property
    def snr_by_misfit(self) -> float | None:
        """Signal to noise of the b0s where the misfit of the tensor has to stand for the noise."""
        if self.snr_b0 is not None or self.noise_from != "misfit":
            return None
        return next((shell.snr for shell in self.shell_signals if shell.b_value == 0), None)

    @property
    def gradient_check(self) -> GradientCheck:
        """The check of the run that fares worst: a table that fits excuses no other."""
        known = [check for check in self.gradient_checks if check.outcome is not None]
        return min(known, key=lambda check: _WORST.index(check.outcome), default=GradientCheck())


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFacts(Facts):
    """What a trained model predicted.

    Attributes
    ----------
    task : str
        Name of the classification or regression; no unit.
    network : str
        Name of the network; no unit.
    label : str
        Most probable class; the column that is predicted, for a number.
    probabilities : mapping of str to float
        Calibrated probability of each class, from 0 to 1; None for a number.
    value : float or None
        Predicted number, in `unit`; None for classes.
    unit : str
        Unit of the number, as participants.json of the training data gives it.
    typical_error : float or None
        Mean absolute error of the models of the folds in people they had not seen, in `unit`.
    harmonised : bool or None
        Whether the samples were scaled with the model's gains of the scan's site.
    warnings : tuple of str
        Where the scan lies outside of what the model was trained on, as sentences.
    """

    task: str = ""
    network: str = ""
    label: str = ""
    probabilities: Mapping[str, Fraction] | None = None
    value: float | None = None
    unit: str = ""
    typical_error: float | None = None
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
class SourceFacts(Facts):
    """Which pipeline has preprocessed a scan; nothing for one that started raw.

    Attributes
    ----------
    pipeline : str
        Short name: qsiprep, fsl_eddy, hcp, ukb, bids_gevnet; empty for raw data.
    title : str
        Name for readers.
    version : str
        Of the pipeline; empty where its dataset does not tell.
    image : str
        Path of the series within its dataset; no unit.
    bvec_axes : {"fsl", "voxel"} or None
        Axes of its gradient table.
    taken : tuple of str
        What was taken from the pipeline, as phrases.
    measures : mapping of str to float
        What the pipeline measured, by its own names and in its own units.
    report : str
        File name of the pipeline's own report; no unit.
    """

    pipeline: str = ""
    title: str = ""
    version: str = ""
    image: str = ""
    bvec_axes: Literal["fsl", "voxel"] | None = None
    taken: tuple[str, ...] = ()
    measures: Mapping[str, float] | None = None
    report: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.title or self.pipeline, self.version)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFacts(Facts):
    """All that is known about one scan.

    Attributes
    ----------
    name : str
        What all its file names begin with; no unit.
    acquisition : tuple of AcquisitionFacts
        How each run was acquired.
    source : SourceFacts
        Which pipeline has preprocessed the scan, if one has.
    tools : ToolFacts
        What was chosen before anything ran.
    conform : tuple of ConformFacts
        Each run after conforming.
    cleaning : tuple of CleaningFacts
        How each run was cleaned.
    correction : tuple of CorrectionFacts
        How each run was corrected.
    join : JoinFacts
        How the runs were put together.
    mask : MaskFacts
        How the brain was masked.
    bias : BiasFacts
        Whether the bias field was corrected.
    registration : RegistrationFacts
        How the scan was registered to the template.
    standard : StandardFacts
        How the scan was resampled to the template.
    sphere : SphereFacts
        How the shells were sampled on the sphere.
    tensor : TensorFacts
        What the maps of the tensor were fitted to.
    quality : QualityFacts
        Quality of the corrected scan.
    prediction : PredictionFacts or None
        What a trained model predicted; None without a model.
    unread : tuple of str
        What the file held that could not be read, a sentence each; not part of the file.
    """

    name: str = ""
    acquisition: tuple[AcquisitionFacts, ...] = ()
    source: SourceFacts = SourceFacts()
    tools: ToolFacts = ToolFacts()
    conform: tuple[ConformFacts, ...] = ()
    cleaning: tuple[CleaningFacts, ...] = ()
    correction: tuple[CorrectionFacts, ...] = ()
    join: JoinFacts = JoinFacts()
    mask: MaskFacts = MaskFacts()
    bias: BiasFacts = BiasFacts()
    registration: RegistrationFacts = RegistrationFacts()
    standard: StandardFacts = StandardFacts()
    sphere: SphereFacts = SphereFacts()
    tensor: TensorFacts = TensorFacts()
    quality: QualityFacts = QualityFacts()
    prediction: PredictionFacts | None = None
    unread: tuple[str, ...] = outside_json()

    @classmethod
    def read(cls, raw: object) -> Self:
        """Read what `to_json` wrote; `unread` names what could not be read."""
        facts, unread = cls.from_json(raw)
        return replace(facts, unread=unread)
