"""Read the files of a scan that a report is made of, whatever is missing or broken."""

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

from bids_gevnet.bids.derivatives import (
    DEFAULT_TEMPLATE,
    FACTS,
    SERIES,
    gradient_files,
)
from bids_gevnet.bids.gradient_files import read_bval, read_bvec
from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.templates import brain_mask_beside, shipped_template
from bids_gevnet.crash_files import read_crashes
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.facts import ScanFacts

BROKEN = (OSError, EOFError, ValueError, BidsGevnetError, nib.filebasedimages.ImageFileError)
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
class ScanFiles:
    """The files of one scan.

    Parameters
    ----------
    folder : Path
        The dwi folder.
    name : str
        What all its files begin with.
    facts : ScanFacts
        What happened to the scan; nothing is known of one that is not finished.
    """

    folder: Path
    name: str
    facts: ScanFacts

    @property
    def is_finished(self) -> bool:
        """Whether the facts, which are written last, are there."""
        return self.facts != ScanFacts()

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
        written = [
            (path.stat().st_mtime, match.group(1))
            for path in self.folder.glob(f"{escape(self.name)}_space-*_desc-*.nii.gz")
            if (match := pattern.search(path.name))
        ]
        return max(written)[1] if written else "space-none_res-none"

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


def find_scans(output_dir: Path, label: str) -> list[ScanFiles]:
    """Find the scans of a participant, finished or not, in the order of their names."""
    top = output_dir / f"sub-{label}"
    scans = {
        (path.parent, path.name.removesuffix(f"_{ending}"))
        for ending in (SERIES, FACTS)
        for path in top.rglob(f"dwi/*_{ending}")
        if "_space-" not in path.name
    }
    return [
        ScanFiles(folder, name, read_facts(folder / f"{name}_{FACTS}"))
        for folder, name in sorted(scans)
    ]


def read_facts(path: Path) -> ScanFacts:
    """Read the facts of a scan; what cannot be read is named in their `unread`."""
    return ScanFacts.read(read_json(path))


def read_all_facts(output_dir: Path) -> list[ScanFacts]:
    """Read the facts of all finished scans, in the order of their names."""
    return [read_facts(path) for path in sorted(output_dir.glob(f"sub-*/**/*_{FACTS}"))]


def read_settings(output_dir: Path) -> Mapping[str, Any]:
    """Read the preprocessing settings of the last run, or nothing."""
    try:
        text = (output_dir / "logs" / "settings.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text).get("preprocessing", {})
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, Mapping) else {}


def read_volume(path: Path, number: int | None = None) -> Volume | None:
    """Read a 3D image, or one volume of a 4D image by its number, or nothing."""
    try:
        image = nib.load(path)
        inside = number is not None and image.ndim == 4 and number < image.shape[3]
        data = np.asarray(image.dataobj[..., number] if inside else image.dataobj, np.float32)
        affine = np.asarray(image.affine, dtype=np.float64)
        np.linalg.inv(affine)
    except BROKEN:
        return None
    if data.ndim != 3 or min(data.shape) < 2:
        return None
    return Volume(np.nan_to_num(data, posinf=0.0, neginf=0.0), affine)


def read_volumes(path: Path) -> list[Volume]:
    """Read a 4D image of a few volumes one by one; none if it cannot be read."""
    try:
        image = nib.load(path)
        data = np.nan_to_num(np.asarray(image.dataobj, dtype=np.float32), posinf=0.0, neginf=0.0)
        affine = np.asarray(image.affine, dtype=np.float64)
        np.linalg.inv(affine)
    except BROKEN:
        return []
    if data.ndim != 4 or min(data.shape[:3]) < 2:
        return []
    return [Volume(data[..., number], affine) for number in range(data.shape[3])]


def read_template(scan: ScanFiles, settings: Mapping[str, Any]) -> tuple[Volume, Volume] | None:
    """Load the template that a scan was registered to, and its brain; nothing if it is gone."""
    if scan.template == DEFAULT_TEMPLATE:
        data, brain, affine = shipped_template()
        return Volume(data, affine), Volume(brain.astype(np.float32), affine)
    path = settings.get("template")
    image = read_volume(Path(path)) if isinstance(path, str) else None
    if image is None:
        return None
    beside = brain_mask_beside(Path(str(path)))
    mask = None if beside is None else read_volume(beside)
    return image, mask or Volume((image.data > 0).astype(np.float32), image.affine)


def read_gradients(image: Path) -> Gradients | None:
    """Read the table beside an image, in world RAS, or nothing."""
    bval, bvec = gradient_files(image)
    try:
        bvals, bvecs = read_bval(bval), read_bvec(bvec)
        affine = np.asarray(nib.load(image).affine, dtype=np.float64)
        gradients = Gradients(bvals, bvecs_fsl_to_ras(bvecs, affine))
    except BROKEN:
        return None
    return gradients if len(bvals) == len(bvecs) else None


def read_table(path: Path) -> pd.DataFrame | None:
    """Read a TSV file, or nothing."""
    try:
        table = pd.read_csv(path, sep="\t", na_values=["n/a"])
    except BROKEN:
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
        # An open file resumes where the last volume ended; nibabel would otherwise
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
    except (*BROKEN, IndexError):
        return None
    mean = np.nan_to_num(total / max(len(wanted), 1), posinf=0.0, neginf=0.0)
    affine = np.asarray(image.affine, dtype=np.float64)
    return SeriesSummary(Volume(mean.astype(np.float32), affine), np.nan_to_num(signals))


def read_failed_stages(output_dir: Path, label: str) -> list[tuple[str, str]]:
    """Find the stages of a participant that failed and that no later run has completed.

    A crash file names the node of its scan; a scan whose facts were written later is fine.

    Returns
    -------
    stages : list of (str, str)
        Name of the stage and message.
    """
    finished_s = {
        _node_name(path.name.removesuffix(f"_{FACTS}")): path.stat().st_mtime
        for path in (output_dir / f"sub-{label}").rglob(f"dwi/*_{FACTS}")
    }
    stages = set()
    for crash in read_crashes(output_dir / "logs"):
        # This report is being built: that an earlier one failed is no news.
        if f"sub_{_node_name(label)}" not in crash.node or crash.stage == "report":
            continue
        if crash.time_s >= max((finished_s.get(name, 0.0) for name in crash.node), default=0.0):
            stages.add((crash.stage, crash.message))
    return sorted(stages)


def _node_name(name: str) -> str:
    """Spell a name as the workflow's nodes do."""
    return "".join(char if char.isalnum() else "_" for char in name)
