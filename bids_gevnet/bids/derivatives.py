"""Names and sidecars of what the app writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.versions import __version__

BIDS_VERSION = "1.10.0"
DEFAULT_TEMPLATE = "MNI152NLin2009aSym"

# What BIDS has no name for yet, and what is no part of the derivatives. Gradient files of
# derivatives are in the specification but not in the validator's rules. Folders stand without a
# slash: with one the validator leaves out their content and still objects to the folder.
_BIDSIGNORE = """\
*.html
CITATION.md
logs
work
models
group_*
*_desc-preproc_dwi.bval
*_desc-preproc_dwi.bvec
*_xfm.txt
*_dwimap.nii.gz
*_dwimap.json
*_dwiref.nii.gz
*_dwiref.json
*_prediction.tsv
*_desc-healpix_dwi.nii.gz
*_desc-healpix_dwi.json
*_desc-confounds_timeseries.tsv
*_desc-confounds_timeseries.json
*_desc-report_facts.json
"""


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
        """Path of a derivative in the scan's own space, such as `desc-brain_mask.nii.gz`."""
        return self.folder / f"{self.prefix}_{ending}"

    def standard(self, ending: str) -> Path:
        """Path of a derivative in template space, with space and resolution in its name."""
        where = f"space-{self.template}_res-{self.resolution_label}"
        return self.folder / f"{self.prefix}_{where}_{ending}"


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
    write_text(output_dir / ".bidsignore", _BIDSIGNORE)
