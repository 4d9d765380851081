"""Regions of the template that saliency is summed over: a coarse atlas of our own, or a user's.

Our own needs no file: the grey and white matter maps that come with nilearn (ICBM 152, in MNI
space), cut by planes. The planes follow the central sulcus, the Sylvian fissure and the
parieto-occipital sulcus of the template as far as planes can, so names are those of lobes, and
borders are good to about a centimetre. It says where to look, not which gyrus it is; for that,
``--atlas FILE`` takes any label image in the space of the template, with the names of its labels
in a TSV beside it (columns ``index`` and ``name``, as BIDS has them).
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]
    Ints = NDArray[np.intp]

OWN_ATLAS = "lobes by planes in MNI space"
MAX_REGIONS = 2000
_MAX_TABLE = 2**22
_LOBES = ("frontal", "parietal", "temporal", "occipital")
_PROBABLE = 0.4  # of a tissue, in the template's maps
_FEWEST_VOXELS = 3


@dataclass(frozen=True)
class Regions:
    """Labels on a grid.

    Attributes
    ----------
    name : str
        Of the atlas.
    labels : (X, Y, Z) array of int
        0 outside of all regions, else 1 + the place in `names`.
    names : tuple of str
    """

    name: str
    labels: Ints
    names: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes with labels and names."""
        text = "\n".join(self.names).encode()
        return hashlib.sha256(text + self.labels.astype(np.int32).tobytes()).hexdigest()

    def sums(self, maps: Floats) -> NDArray[np.float64]:
        """Sum maps over every region: (..., X, Y, Z) to (..., n_regions)."""
        flat = maps.reshape(-1, self.labels.size)
        place = self.labels.ravel()
        length = len(self.names) + 1
        sums = [np.bincount(place, weights=each, minlength=length)[1:] for each in flat]
        return np.array(sums, np.float64).reshape(*maps.shape[:-3], len(self.names))


def template_regions(shape: Sequence[int], affine: Floats) -> Regions:
    """Cut the template's tissues into lobes, on any grid in its space.

    Parameters
    ----------
    shape : sequence of int
    affine : (4, 4) array
        Voxel to MNI mm.

    Returns
    -------
    regions : Regions
        Those with a voxel or more on the grid.
    """
    from nilearn.datasets import (
        load_mni152_brain_mask,
        load_mni152_gm_template,
        load_mni152_wm_template,
    )

    points = _points(shape, affine)
    grey, white, brain = (
        _sample(image, points)
        for image in (
            load_mni152_gm_template(resolution=2),
            load_mni152_wm_template(resolution=2),
            load_mni152_brain_mask(resolution=2),
        )
    )
    side = np.where(points[..., 0] < 0, "Left", "Right")
    lobe = name_lobes(points)
    tissue = np.where(white >= np.maximum(grey, _PROBABLE), "white matter", "grey matter")
    name = np.char.add(np.char.add(side, " "), lobe).astype(object) + " " + tissue.astype(object)
    midline = np.isin(lobe, ("brainstem",))
    name[midline] = "Brainstem"
    name[~midline & (np.maximum(grey, white) < _PROBABLE)] = "Ventricles and CSF"
    name[brain < 0.5] = ""
    return _regions(OWN_ATLAS, name)


def name_lobes(points: Floats) -> NDArray[np.str_]:
    """Name the lobe of MNI coordinates: (..., 3) in mm to (...) names."""
    x, y, z = np.abs(points[..., 0]), points[..., 1], points[..., 2]
    occipital = y < -62 - 0.5 * (z - 10)
    sylvian = -12 + 0.5 * (20 - y)  # height of the fissure: -12 mm in front, 18 mm behind
    temporal = (x > 22) & (z < np.minimum(sylvian, 18)) & (y < 20)
    frontal = y > -10 - 0.4 * (z - 20)
    central = (x < 34) & (y > -36) & (y < 22) & (z > -14) & (z < 18)
    names = np.select(
        [
            (x < 16) & (y > -46) & (y < -8) & (z < -14),
            (y < -36) & (z < -14 - 0.25 * (-36 - y)),
            occipital,
            central,
            temporal,
            frontal,
        ],
        ["brainstem", "cerebellar", "occipital", "central", "temporal", "frontal"],
        default="parietal",
    )
    return np.asarray(names, np.str_)


def read_regions(path: Path, shape: Sequence[int], affine: Floats) -> Regions:
    """Read an atlas and bring it to a grid by nearest neighbours.

    Parameters
    ----------
    path : Path
        Label image in the space of the template; names of its labels in the TSV beside it
        (columns index and name), or their numbers if there is none.
    shape : sequence of int
    affine : (4, 4) array
        Grid to template mm.
    """
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError

    try:
        image = nib.load(path)
        values = np.asarray(image.dataobj)
    except (OSError, ValueError, EOFError, ImageFileError) as error:
        raise InputError(
            expected=f"a label image in {path} for --atlas",
            found=f"something that cannot be read ({error})",
            remedy="give a NIfTI file with a whole number per voxel",
        ) from None
    whole = values.ndim == 3 and np.isfinite(values).all() and (values == np.rint(values)).all()
    if not whole or not (values > 0).any() or values.max() > 2**31:
        raise InputError(
            expected=f"one whole number per voxel in {path} for --atlas, 0 for no region",
            found=f"an image of shape {values.shape}"
            + (" with other values" if values.ndim == 3 else ""),
            remedy="give a discrete atlas, not a probabilistic one",
        )
    labels = nib.Nifti1Image(values.astype(np.int32), image.affine)
    on_grid = np.rint(_sample(labels, _points(shape, affine), order=0)).astype(int)
    known = _read_names(path)
    present = sorted({int(label) for label in np.unique(on_grid) if label > 0})
    if not present or len(present) > MAX_REGIONS:
        raise InputError(
            expected=f"1 to {MAX_REGIONS} regions of {path} on the grid of the scans",
            found=f"{len(present)}",
            remedy="give an --atlas in the space of the template, in mm of the same origin",
        )
    name = np.full(on_grid.shape, "", object)
    for label in present:
        name[on_grid == label] = known.get(label, f"label {label}")
    return _regions(path.name, name)


def names_file(path: Path) -> Path:
    """Where the names of an atlas are, if it has any."""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".nii") + ".tsv")


def _read_names(path: Path) -> dict[int, str]:
    """Names of labels by their number, from the TSV beside an atlas."""
    table = names_file(path)
    if not table.is_file():
        return {}
    try:
        if table.stat().st_size > _MAX_TABLE:
            raise ValueError("too large")  # noqa: TRY301
        with table.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t"))
        return {int(row["index"]): " ".join(row["name"].split())[:100] for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise InputError(
            expected=f"columns index and name in {table}",
            found=f"something else ({error})",
            remedy="write one row per label of the atlas, or remove the file to number them",
        ) from None


def _regions(name: str, of_voxel: NDArray[Any]) -> Regions:
    names, place, counts = np.unique(
        of_voxel.astype(str).ravel(), return_inverse=True, return_counts=True
    )
    kept = [i for i, text in enumerate(names) if text and counts[i] >= _FEWEST_VOXELS]
    number = np.zeros(len(names), np.intp)
    number[kept] = np.arange(1, len(kept) + 1)
    labels = number[place].reshape(of_voxel.shape)
    return Regions(name, labels, tuple(str(names[i]) for i in kept))


def _points(shape: Sequence[int], affine: Floats) -> NDArray[np.float64]:
    """Centres of voxels in mm: (X, Y, Z, 3) array."""
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    return np.asarray(grid @ np.asarray(affine)[:3, :3].T + np.asarray(affine)[:3, 3])


def _sample(image: Any, points: Floats, order: int = 1) -> NDArray[np.float64]:
    """Values of an image at points in mm, 0 outside."""
    from scipy.ndimage import map_coordinates

    inverse = np.linalg.inv(image.affine)
    places = np.moveaxis(points @ inverse[:3, :3].T + inverse[:3, 3], -1, 0)
    data = np.asarray(image.dataobj, float)
    return np.asarray(map_coordinates(data, places, order=order, cval=0.0))
