"""What is known of a preprocessed scan, whichever pipeline made it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

BvecAxes = Literal["fsl", "voxel"]
"""Axes of a bvec file: FSL's (voxel axes, with x negated where the determinant of the affine is
positive), or plain voxel axes, as DIPY reads them."""

_MNI_2009 = tuple(f"MNI152NLin2009{kind}" for kind in ("a", "b", "c"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivativeDataset:
    """A folder of scans that one pipeline has preprocessed.

    Attributes
    ----------
    folder : Path
    pipeline : str
        Short name, as `--derivatives` and BIDS URIs have it.
    title : str
        Name for readers.
    version : str
        Of the pipeline; empty where the dataset does not tell.
    """

    folder: Path
    pipeline: str
    title: str
    version: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.title, self.version)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A preprocessed series that a reader has come across, and has not looked into yet.

    Attributes
    ----------
    entities : mapping
        Of the scan: sub, ses, acq, dir, run, as far as it has them.
    image : Path
        Where the series is, or should be.
    """

    entities: Mapping[str, str]
    image: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessedScan:
    """A preprocessed diffusion series and all that its pipeline left beside it.

    Attributes
    ----------
    dataset : DerivativeDataset
        Where it comes from.
    entities : mapping
        sub, ses, acq, dir, run, as far as it has them.
    image, bval, bvec : Path
        The series, its b-values, its gradient directions after correction.
    bvec_axes : {"fsl", "voxel"}
        Axes of the directions.
    sidecar : Path, optional
        Metadata of the acquisition.
    mask : Path, optional
        Brain, in the world of the series.
    t1w : Path, optional
        T1-weighted image, in the world of the series or near it.
    transform : Path, optional
        ITK transform with which ANTs takes the series to `template`.
    template : str
        Label of the template's space; empty without a transform.
    confounds : Path, optional
        Table with the motion of each volume.
    eddy_base : Path, optional
        What the names of FSL eddy's text files begin with.
    quality : mapping of str to float
        Numbers that the pipeline measured.
    report : Path, optional
        The pipeline's own report of the participant.
    notes : tuple of str
        What is unusual or missing, as phrases.
    """

    dataset: DerivativeDataset
    entities: Mapping[str, str]
    image: Path
    bval: Path
    bvec: Path
    bvec_axes: BvecAxes = "fsl"
    sidecar: Path | None = None
    mask: Path | None = None
    t1w: Path | None = None
    transform: Path | None = None
    template: str = ""
    confounds: Path | None = None
    eddy_base: Path | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def relative_image(self) -> str:
        """Path of the series within its dataset."""
        return str(self.image.relative_to(self.dataset.folder))

    def transform_to(self, template: str) -> Path | None:
        """Return the transform if it leads to a template, or to one with the same millimetres.

        The versions of the ICBM 2009 template are one average brain in one space: sampled finer
        (b, c) and symmetric or not.
        """
        same = self.template == template or (
            self.template.startswith(_MNI_2009) and template.startswith(_MNI_2009)
        )
        return self.transform if same else None


class Reader(Protocol):
    """How the files of one pipeline are found and read."""

    @property
    def name(self) -> str:
        """Name that `--derivatives` knows it by."""

    @property
    def title(self) -> str:
        """Name for readers of a report."""

    def recognises(self, folder: Path) -> bool:
        """Tell from the names of files whether a folder was written by this pipeline."""

    def find(self, folder: Path) -> Mapping[str, Sequence[Finding]]:
        """List the series of each participant, by label."""

    def read(self, dataset: DerivativeDataset, finding: Finding) -> PreprocessedScan:
        """Look for all that belongs to a series; a `ParticipantError` says what is missing."""
