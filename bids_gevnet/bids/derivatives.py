"""Name every file the app writes, and describe the dataset of derivatives.

A derivative's name is the scan's own entities, space and resolution where it is in template
space, and one of the endings below. No other module spells these endings.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.versions import __version__

BIDS_VERSION = "1.10.0"
DEFAULT_TEMPLATE = "MNI152NLin2009aSym"

SERIES = "desc-preproc_dwi.nii.gz"
"""Corrected diffusion series."""

MEAN_B0 = "dwiref.nii.gz"
"""Mean b0 of the corrected series."""

BRAIN_MASK = "desc-brain_mask.nii.gz"
"""Brain mask."""

CONFOUNDS = "desc-confounds_timeseries.tsv"
"""Motion, eddy currents and outlier slices, one row per volume."""

SAMPLES = "desc-healpix_dwi.nii.gz"
"""S/b0 at the distinct HEALPix points; in template space only."""

FACTS = "desc-report_facts.json"
"""What happened to a scan (`bids_gevnet.facts.ScanFacts`); written last."""


def rish_ending(degree: int) -> str:
    """Name the map of the signal's energy in one spherical-harmonic degree.

    >>> rish_ending(2)
    'model-sh_param-rish2_dwimap.nii.gz'
    """
    return f"model-sh_param-rish{degree}_dwimap.nii.gz"


def transform_ending(template: str) -> str:
    """Name the transform from a scan to a template.

    >>> transform_ending("MNI152NLin2009aSym")
    'from-dwi_to-MNI152NLin2009aSym_mode-image_xfm.txt'
    """
    return f"from-dwi_to-{template}_mode-image_xfm.txt"


def prediction_ending(network: str) -> str:
    """Name the table of a prediction after its network, in the letters and digits BIDS allows.

    >>> prediction_ending("ckn2+gevnet")
    'model-ckn2gevnet_prediction.tsv'
    """
    label = re.sub(r"[^A-Za-z0-9]", "", network) or "network"
    return f"model-{label}_prediction.tsv"


def sidecar(path: Path) -> Path:
    """Path of the JSON file beside an image or a table."""
    return path.with_name(path.name.split(".", 1)[0] + ".json")


def gradient_files(image: Path) -> tuple[Path, Path]:
    """Paths of the bval and bvec files beside a diffusion series."""
    stem = image.name.split(".", 1)[0]
    return image.with_name(f"{stem}.bval"), image.with_name(f"{stem}.bvec")


def _bidsignore() -> str:
    """List what BIDS has no name for yet, and what is no part of the derivatives.

    Gradient files of derivatives are in the specification but not in the validator's rules.
    Folders stand without a slash: with one the validator leaves out their content and still
    objects to the folder.
    """
    series, samples, mean_b0, rish, confounds = (
        Path(name) for name in (SERIES, SAMPLES, MEAN_B0, "dwimap.nii.gz", CONFOUNDS)
    )
    names = [
        *gradient_files(series),
        "xfm.txt",
        *(file for path in (rish, mean_b0, samples, confounds) for file in (path, sidecar(path))),
        "prediction.tsv",
        FACTS,
    ]
    top = ["*.html", "CITATION.md", "logs", "work", "models", "group_*"]
    return "".join(f"{line}\n" for line in [*top, *(f"*_{name}" for name in names)])


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivativeNames:
    """File names of one scan's derivatives.

    Parameters
    ----------
    output_dir : Path
    entities : mapping
        The scan's own: sub, ses, acq, dir, run, as far as it has them.
    template : str
        Label of the template's space.
    resolution_mm : float
        Voxel size in template space.
    """

    output_dir: Path
    entities: Mapping[str, str]
    template: str = DEFAULT_TEMPLATE
    resolution_mm: float = 2.0

    @property
    def folder(self) -> Path:
        """The scan's dwi folder."""
        parts = [f"{key}-{self.entities[key]}" for key in ("sub", "ses") if key in self.entities]
        return self.output_dir.joinpath(*parts, "dwi")

    @property
    def prefix(self) -> str:
        """What all names of the scan begin with."""
        return "_".join(f"{key}-{value}" for key, value in self.entities.items())

    @property
    def resolution_label(self) -> str:
        """Voxel size as BIDS allows it in a name: 2, or 2p5 for 2.5 mm."""
        return f"{self.resolution_mm:g}".replace(".", "p")

    def native(self, ending: str) -> Path:
        """Path of a derivative in the scan's own space; `ending` is one of this module's."""
        return self.folder / f"{self.prefix}_{ending}"

    def standard(self, ending: str) -> Path:
        """Path of a derivative in template space, with space and resolution in its name."""
        where = f"space-{self.template}_res-{self.resolution_label}"
        return self.folder / f"{self.prefix}_{where}_{ending}"

    def predictions(self) -> list[Path]:
        """Tables of predictions that are on disk, whatever their network."""
        return sorted(self.folder.glob(f"{self.prefix}_model-*_prediction.tsv"))


def write_description(output_dir: Path, bids_dir: Path, *, container: str | None = None) -> None:
    """Write dataset_description.json and .bidsignore at the top of the derivatives.

    Parameters
    ----------
    output_dir, bids_dir : Path
    container : str, optional
        Tag of the image the app runs in.
    """
    generated: dict[str, Any] = {"Name": "bids_gevnet", "Version": __version__}
    if container:
        generated["Container"] = {"Type": "docker", "Tag": container}
    description = {
        "Name": "bids_gevnet: diffusion MRI on the sphere",
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [generated],
        "SourceDatasets": [{"URL": bids_dir.as_uri()}],
        "DatasetLinks": {"raw": bids_dir.as_uri()},
    }
    write_json(output_dir / "dataset_description.json", description)
    write_text(output_dir / ".bidsignore", _bidsignore())
