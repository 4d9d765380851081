"""What the held-out predictions of a task rest on: models/<task>[/<network>]/saliency.json."""

from collections.abc import Mapping
from dataclasses import dataclass

from bids_gevnet.facts.json_form import Count, Facts, Fraction

SALIENCY_FORMAT = "bids_gevnet saliency 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedScan(Facts):
    """A held-out scan that was explained.

    Attributes
    ----------
    scan : str
        Its name.
    fold : int
        The fold whose network explains it, and was trained without it.
    label : str
        Its true class or number.
    """

    scan: str = ""
    fold: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSaliency(Facts):
    """What one region of the atlas adds; also a row of saliency_regions.tsv.

    Attributes
    ----------
    region : str
        Name in the atlas.
    voxels : int
        Voxels of the region in the brain of the scans.
    significant_voxels : int
        Those whose contributions tell the classes apart, corrected over all voxels.
    share : float
        Part of the difference in score between the true class and the others that the region
        adds; parts of all regions and of what is outside of them add up to 1, and some may be
        below 0.
    z : float
        The region's summed contributions in standard deviations of permuted labels.
    p : float
        Of z, one-sided, corrected for the number of regions.
    """

    region: str = ""
    voxels: Count | None = None
    significant_voxels: Count | None = None
    share: float | None = None
    z: float | None = None
    p: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AngleSaliency(Facts):
    """What directions at some angle to the local fibre add.

    Attributes
    ----------
    low, high : float
        Ends of the bin, in degrees; 0 is along the fibre.
    density : float
        Difference in score per direction and voxel, where 1 is the mean over all angles.
    z : float
        Summed contributions in standard deviations of permuted labels.
    p : float
        Of z, one-sided, corrected for the number of bins.
    """

    low: float | None = None
    high: float | None = None
    density: float | None = None
    z: float | None = None
    p: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaliencyFacts(Facts):
    """Contributions of voxels, regions and angles to held-out scores, and their test.

    Attributes
    ----------
    format : str
        Name and version of this form.
    task : str
        Folder of the task.
    network : str
        The network that is explained.
    labels : tuple of str
        Classes in the order of the network's outputs.
    models : mapping
        Digest of the model of each fold.
    held_out_scans : int
        How many there were.
    max_scans : int
        How many are explained at most.
    seed : int
        Of the permutations.
    scans : tuple
        Those that are explained.
    people : int
        Whose scans they are.
    smoothing_mm : float
        Full width at half maximum of the smoothing of contributions.
    permutations : int
        How often labels were exchanged.
    reason : str
        Why nothing could be tested; not there if it could.
    significant_voxels : int
        Voxels whose contributions tell the classes apart at 5 %, corrected over all voxels.
    brain_voxels : int
        Voxels that were tested.
    largest_z : float
        Of all voxels.
    needed_z : float
        From which a voxel is significant.
    p : float
        Of the largest z, corrected over all voxels.
    peak_mm : tuple of float
        Where the largest z is, in mm of the template.
    explained_share : float
        Sum of the contributions over the difference in score between a scan and the mean
        training scan; 1 where contributions account for all of it.
    fold_agreement : float
        Mean correlation over voxels of the maps of z of two folds.
    untrained_agreement : float
        Correlation of the map of z with that of the same networks before training.
    sensitivity_fold_agreement : float
        Mean correlation of the mean gradients of two folds, without regard to labels.
    sensitivity_untrained_agreement : float
        Correlation of the mean gradients with those of the same networks before training.
    b_values : tuple of float
        Of the shells.
    shell_shares : tuple of float
        Mean share of each shell in the squared gradients.
    atlas : str
        Which regions.
    atlas_digest : str
        Hash of their labels and names on the grid of the scans.
    regions : tuple
        In the order of z.
    angles : tuple
        By angle to the local fibre, where the mean scan is anisotropic.
    """

    format: str = SALIENCY_FORMAT
    task: str = ""
    network: str = ""
    labels: tuple[str, ...] = ()
    models: Mapping[str, str] | None = None
    held_out_scans: Count | None = None
    max_scans: Count | None = None
    seed: Count | None = None
    scans: tuple[ExplainedScan, ...] = ()
    people: Count | None = None
    smoothing_mm: float | None = None
    permutations: Count | None = None
    reason: str = ""
    significant_voxels: Count | None = None
    brain_voxels: Count | None = None
    largest_z: float | None = None
    needed_z: float | None = None
    p: Fraction | None = None
    peak_mm: tuple[float, ...] = ()
    explained_share: float | None = None
    fold_agreement: float | None = None
    untrained_agreement: float | None = None
    sensitivity_fold_agreement: float | None = None
    sensitivity_untrained_agreement: float | None = None
    b_values: tuple[float, ...] = ()
    shell_shares: tuple[float, ...] = ()
    atlas: str = ""
    atlas_digest: str = ""
    regions: tuple[RegionSaliency, ...] = ()
    angles: tuple[AngleSaliency, ...] = ()

    @property
    def of_number(self) -> bool:
        """Whether a number was predicted, of which there is one name and no class."""
        return len(self.labels) == 1
