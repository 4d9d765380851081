"""Read folders whose files are called alike for everybody: HCP, UK Biobank.

One table per pipeline says which name holds what; of several names the first that is there counts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.bids.preprocessed.files import as_label, first_file, require_file
from bids_gevnet.bids.preprocessed.record import DerivativeDataset, Finding, PreprocessedScan

_INCOMPLETE = "complete the download of this participant, or leave it out"
_NONLINEARITY = "grad_dev.nii.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Names of the files of one pipeline, from the folder of a session.

    Attributes
    ----------
    name, title : str
    series : str
        Folder of the diffusion series.
    images, masks : tuple of str
        Names in that folder.
    rotated_bvecs : tuple of str
        Names of directions that were rotated with the head.
    other_bvecs : tuple of str
        Names of directions that may not have been.
    t1w : tuple of str
        Paths from the folder of the session.
    eddy_bases : tuple of str
        What the names of eddy's text files begin with, from the folder of the series.
    session_names : tuple of pattern
        How the folder of a session tells who (`sub`) and when (`ses`).
    """

    name: str
    title: str
    series: str
    images: tuple[str, ...]
    masks: tuple[str, ...]
    rotated_bvecs: tuple[str, ...]
    other_bvecs: tuple[str, ...] = ()
    t1w: tuple[str, ...] = ()
    eddy_bases: tuple[str, ...] = ()
    session_names: tuple[re.Pattern[str], ...] = ()

    def recognises(self, folder: Path) -> bool:
        """Tell by the folder of a series below any of the first folders."""
        return bool(self._sessions(folder))

    def find(self, folder: Path) -> Mapping[str, Sequence[Finding]]:
        """List the series of each participant."""
        findings: dict[str, list[Finding]] = {}
        for session in self._sessions(folder):
            entities = self._entities(session.relative_to(folder).parts)
            series = session / self.series
            image = first_file(series / name for name in self.images) or series / self.images[-1]
            findings.setdefault(entities["sub"], []).append(
                Finding(entities=entities, image=image)
            )
        return findings

    def read(self, dataset: DerivativeDataset, finding: Finding) -> PreprocessedScan:
        """Look for gradients, mask, motion and anatomy of a series."""
        series = finding.image.parent
        session = Path(str(series).removesuffix(self.series))
        image = require_file(
            [series / name for name in self.images], "a diffusion series", _INCOMPLETE
        )
        bval = require_file([series / "bvals"], "b-values", _INCOMPLETE)
        bvec = require_file(
            [series / name for name in (*self.rotated_bvecs, *self.other_bvecs)],
            "gradient directions",
            _INCOMPLETE,
        )
        notes = []
        if bvec.name in self.other_bvecs:
            notes.append(
                f"{bvec.name} holds the scanner's directions, without the rotation of the head"
            )
        if (series / _NONLINEARITY).is_file():
            notes.append(
                f"{_NONLINEARITY} (gradient nonlinearity) is not used: b-values and directions "
                "are taken to be the same everywhere"
            )
        eddy = (series / base for base in self.eddy_bases)
        return PreprocessedScan(
            dataset=dataset,
            entities=finding.entities,
            image=image,
            bval=bval,
            bvec=bvec,
            mask=first_file(series / name for name in self.masks),
            t1w=first_file(session / name for name in self.t1w),
            eddy_base=next((b for b in eddy if Path(f"{b}.eddy_parameters").is_file()), None),
            notes=tuple(notes),
        )

    def _sessions(self, folder: Path) -> list[Path]:
        below = [
            *folder.glob(f"*/{self.series}"),
            *folder.glob(f"*/ses-*/{self.series}"),
        ]
        return sorted(Path(str(path).removesuffix(f"/{self.series}")) for path in below)

    def _entities(self, parts: Sequence[str]) -> dict[str, str]:
        for pattern in self.session_names:
            if match := pattern.fullmatch(parts[0]):
                return {"sub": match["sub"], "ses": match["ses"]}
        session = {"ses": as_label(parts[1].removeprefix("ses-"))} if len(parts) > 1 else {}
        return {"sub": as_label(parts[0])} | session


HCP = Tree(
    name="hcp",
    title="the HCP diffusion pipeline",
    series="T1w/Diffusion",
    images=("data.nii.gz",),
    masks=("nodif_brain_mask.nii.gz",),
    rotated_bvecs=("bvecs",),
    t1w=("T1w/T1w_acpc_dc_restore.nii.gz", "T1w/T1w_acpc_dc_restore_1.25.nii.gz"),
    eddy_bases=("eddylogs/eddy_unwarped_images",),
    # HCP Lifespan: HCA6002236_V1_MR.
    session_names=(re.compile(r"(?P<sub>[A-Za-z0-9]+)_(?P<ses>[A-Za-z0-9]+)_MR"),),
)

UK_BIOBANK = Tree(
    name="ukb",
    title="the UK Biobank pipeline",
    series="dMRI/dMRI",
    images=("data_ud.nii.gz", "data.nii.gz"),
    masks=("nodif_brain_mask_ud.nii.gz", "nodif_brain_mask.nii.gz"),
    rotated_bvecs=("data.eddy_rotated_bvecs",),
    other_bvecs=("bvecs",),
    t1w=("T1/T1.nii.gz",),
    eddy_bases=("data",),
    # As the zip files of field 20250 are called: participant, field, imaging visit, item.
    session_names=(re.compile(r"(?P<sub>\d+)_20250_(?P<ses>\d+)_\d+"),),
)
