"""Find on disk what a report is made of, and survive whatever is missing or broken."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt
import pandas as pd

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.bids.gradient_files import read_bval, read_bvec
from bids_gevnet.bids.reading import read_json
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.report.facts import clean_facts

FACTS = "_desc-report_facts.json"
_BROKEN = (OSError, EOFError, ValueError, BidsGevnetError, nib.filebasedimages.ImageFileError)
"""What reading a truncated, absent or garbled file raises."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A 3D image: values and voxel-to-world affine in mm."""

    data: npt.NDArray[Any]
    affine: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gradients:
    """b-values (n,) and unit directions in world RAS (n, 3)."""

    bvals: npt.NDArray[np.float64]
    bvecs_ras: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScanEvidence:
    """All that is on disk of one scan.

    Parameters
    ----------
    folder : Path
        The dwi folder.
    name : str
        What all its files begin with.
    facts : mapping
        Cleaned notes of the stages; empty where there are none.
    """

    folder: Path
    name: str
    facts: Mapping[str, Any]

    def part(self, key: str) -> Mapping[str, Any]:
        """Facts of one stage, empty if the stage left none."""
        part: Mapping[str, Any] = self.facts.get(key, {})
        return part

    def parts(self, key: str) -> list[Mapping[str, Any]]:
        """Facts of one stage run by run."""
        parts: list[Mapping[str, Any]] = self.facts.get(key, [])
        return parts

    def native(self, ending: str) -> Path:
        """Path of a file in the scan's own space."""
        return self.folder / f"{self.name}_{ending}"

    def standard(self, ending: str) -> Path:
        """Path of a file in template space."""
        return self.folder / f"{self.name}_{self.space}_{ending}"

    @cached_property
    def space(self) -> str:
        """Entities `space-X_res-Y`: of several, those written last."""
        pattern = re.compile(r"_(space-[A-Za-z0-9]+_res-[A-Za-z0-9]+)_")
        found = [
            (path.stat().st_mtime, match.group(1))
            for path in self.folder.glob(f"{escape(self.name)}_space-*_desc-*.nii.gz")
            if (match := pattern.search(path.name))
        ]
        return max(found)[1] if found else "space-none_res-none"

    @property
    def template(self) -> str:
        """Label of the template's space."""
        return self.space.split("_")[0].removeprefix("space-")

    @property
    def resolution_mm(self) -> float | None:
        """Voxel size in template space, from the name of the files."""
        try:
            return float(self.space.rsplit("res-", 1)[1].replace("p", "."))
        except ValueError:
            return None


def find_scans(output_dir: Path, label: str) -> list[ScanEvidence]:
    """Find the scans of a participant, finished or not, in the order of their names."""
    top = output_dir / f"sub-{label}"
    scans: dict[tuple[Path, str], Mapping[str, Any]] = {}
    for ending in ("_desc-preproc_dwi.nii.gz", FACTS):
        for path in sorted(top.rglob(f"dwi/*{ending}")):
            name = path.name.removesuffix(ending)
            if "_space-" in name:
                continue
            facts = clean_facts(read_json(path)) if ending == FACTS else {}
            scans[path.parent, name] = facts
    return [ScanEvidence(folder, name, scans[folder, name]) for folder, name in sorted(scans)]


def read_settings(output_dir: Path) -> Mapping[str, Any]:
    """Read the preprocessing settings of the last run, or nothing."""
    try:
        text = (output_dir / "logs" / "settings.toml").read_text(encoding="utf-8")
        found = tomllib.loads(text).get("preprocessing", {})
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def read_volume(path: Path) -> Volume | None:
    """Read a 3D image, or nothing."""
    try:
        image = nib.load(path)
        data = np.asarray(image.dataobj, dtype=np.float32)
        affine = np.asarray(image.affine, dtype=np.float64)
        np.linalg.inv(affine)
    except _BROKEN:
        return None
    if data.ndim != 3 or min(data.shape) < 2:
        return None
    return Volume(np.nan_to_num(data, posinf=0.0, neginf=0.0), affine)


def read_template(scan: ScanEvidence, settings: Mapping[str, Any]) -> tuple[Volume, Volume] | None:
    """Load the template that a scan was registered to, and its brain; nothing if it is gone."""
    if scan.template == DEFAULT_TEMPLATE:
        from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

        images = load_mni152_template(resolution=2), load_mni152_brain_mask(resolution=2)
        first, second = (
            Volume(np.asarray(image.dataobj, np.float32), np.asarray(image.affine, float))
            for image in images
        )
        return first, second
    path = settings.get("template")
    image = read_volume(Path(path)) if isinstance(path, str) else None
    if image is None:
        return None
    return image, Volume((image.data > 0).astype(np.float32), image.affine)


def read_gradients(image: Path) -> Gradients | None:
    """Read the table beside an image, in world RAS, or nothing."""
    stem = image.name.removesuffix(".nii.gz")
    try:
        bvals = read_bval(image.with_name(f"{stem}.bval"))
        bvecs = read_bvec(image.with_name(f"{stem}.bvec"))
        affine = np.asarray(nib.load(image).affine, dtype=np.float64)
        found = Gradients(bvals, bvecs_fsl_to_ras(bvecs, affine))
    except _BROKEN:
        return None
    return found if len(bvals) == len(bvecs) else None


def read_table(path: Path) -> pd.DataFrame | None:
    """Read a TSV file, or nothing."""
    try:
        table = pd.read_csv(path, sep="\t", na_values=["n/a"])
    except _BROKEN:
        return None
    return table if len(table) else None


@dataclass(frozen=True, slots=True)
class SeriesSummary:
    """Mean b0 of a series, and the whole signal of a few voxels (voxels, volumes)."""

    b0: Volume
    signals: npt.NDArray[np.float32]


def summarise_series(
    path: Path, b0_volumes: npt.NDArray[np.intp], voxels: Sequence[tuple[int, int, int]]
) -> SeriesSummary | None:
    """Read a series once, volume by volume, so that gigabytes never lie in memory.

    Parameters
    ----------
    path : Path
    b0_volumes : (k,) array of int
        Volumes to average.
    voxels : sequence of (int, int, int)
        Voxels whose signal to keep.
    """
    wanted = {int(volume) for volume in b0_volumes}
    try:
        # An open file goes on where the last volume ended; nibabel would otherwise
        # decompress from the start for each.
        image = nib.load(path, keep_file_open=True)
        if image.ndim != 4:
            return None
        total = np.zeros(image.shape[:3], np.float64)
        signals = np.zeros((len(voxels), image.shape[3]), np.float32)
        for volume in range(image.shape[3]):
            data = np.asarray(image.dataobj[..., volume], dtype=np.float32)
            signals[:, volume] = [data[voxel] for voxel in voxels]
            if volume in wanted:
                total += data
    except (*_BROKEN, IndexError):
        return None
    mean = np.nan_to_num(total / max(len(wanted), 1), posinf=0.0, neginf=0.0)
    affine = np.asarray(image.affine, dtype=np.float64)
    return SeriesSummary(Volume(mean.astype(np.float32), affine), np.nan_to_num(signals))


def read_crashes(output_dir: Path, label: str) -> list[tuple[str, str]]:
    """Find what went wrong with a participant and has not been made up for by a later run.

    A crash file names the node of its scan; a scan whose facts were written after it is fine.

    Returns
    -------
    crashes : list of (str, str)
        Stage and message.
    """
    finished = {
        _node_name(path.name.removesuffix(FACTS)): path.stat().st_mtime
        for path in (output_dir / f"sub-{label}").rglob(f"dwi/*{FACTS}")
    }
    crashes = set()
    for path in sorted((output_dir / "logs").glob("crash-*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        node = re.search(r"^Node: (\S+)", text, re.MULTILINE)
        parts = node.group(1).split(".") if node else []
        # This report is being built: that an earlier one failed is no news.
        if f"sub_{_node_name(label)}" not in parts or parts[-1] == "report":
            continue
        done = max((finished[part] for part in parts if part in finished), default=0.0)
        if path.stat().st_mtime < done:
            continue
        found = re.findall(r"^\s*[\w.]*?(\w+(?:Error|Exception)): (.+)$", text, re.MULTILINE)
        message = f"{found[-1][0]}: {found[-1][1]}" if found else "no message in the crash file"
        crashes.add((parts[-1], message))
    return sorted(crashes)


def _node_name(name: str) -> str:
    """Spell a name as the workflow's nodes do."""
    return "".join(char if char.isalnum() else "_" for char in name)
