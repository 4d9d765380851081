"""Name every file the app writes about a scan.

A derivative's name is the scan's own entities, space and resolution where it is in template
space, and one of the endings below. No other module spells these endings.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_TEMPLATE = "MNI152NLin2009aSym"

SERIES = "desc-preproc_dwi.nii.gz"
"""Corrected diffusion series."""

MEAN_B0 = "dwiref.nii.gz"
"""Mean b0 of the corrected series."""

UNCORRECTED = "desc-uncorrected_dwiref.nii.gz"
"""Mean b0 and mean diffusion-weighted volume before correction, in this order."""

BRAIN_MASK = "desc-brain_mask.nii.gz"
"""Brain mask."""

CONFOUNDS = "desc-confounds_timeseries.tsv"
"""Motion, eddy currents and outlier slices, one row per volume."""

NOISE_MAP = "desc-noise_dwimap.nii.gz"
"""Standard deviation of the noise as denoising estimated it, in the units of the series."""

RESIDUAL_MAP = "desc-residual_dwimap.nii.gz"
"""What denoising removed: root mean square over the volumes."""

BIAS_FIELD = "desc-bias_dwimap.nii.gz"
"""Bias field that the corrected series was divided by; its median in the brain is 1."""

SAMPLES = "desc-healpix_dwi.nii.gz"
"""A b0 that is 1, then S/b0 at the distinct HEALPix points; in template space only."""

FACTS = "desc-report_facts.json"
"""What happened to a scan (`bids_gevnet.facts.ScanFacts`); written last."""


def rish_ending(degree: int) -> str:
    """Name the map of the signal's energy in one spherical-harmonic degree.

    >>> rish_ending(2)
    'model-sh_param-rish2_dwimap.nii.gz'
    """
    return f"model-sh_param-rish{degree}_dwimap.nii.gz"


def tensor_ending(param: str) -> str:
    """Name a map of the diffusion tensor: fa, md, ad, rd, or dec for the colours of its direction.

    >>> tensor_ending("fa")
    'model-tensor_param-fa_dwimap.nii.gz'
    """
    return f"model-tensor_param-{param}_dwimap.nii.gz"


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
