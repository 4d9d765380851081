"""Read and write what nodes hand on to each other: diffusion series and facts.

An image (uncompressed NIfTI, so that it can be mapped into memory), a table of gradients
(b in s/mm², unit vector in world RAS) and, where a correction has estimated them, a stack of
rigid transforms that is applied together with the next resampling.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.images import load_image
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.facts.json_form import Facts

AnyFacts = TypeVar("AnyFacts", bound=Facts)
FloatArray = npt.NDArray[np.float64]

_HEADER = "b\tx\ty\tz\n"


@dataclass(frozen=True, slots=True)
class Series:
    """A diffusion series.

    Attributes
    ----------
    data : (X, Y, Z, n) array
    affine : (4, 4) array
        Voxel to world RAS, mm.
    bvals : (n,) array
    bvecs_ras : (n, 3) array
    """

    data: npt.NDArray[Any]
    affine: FloatArray
    bvals: FloatArray
    bvecs_ras: FloatArray


def read_image(path: str | Path) -> tuple[npt.NDArray[Any], FloatArray]:
    """Read an image, mapped into memory where the file allows it; float64 becomes float32."""
    data, affine = load_image(Path(path))
    if data.dtype == np.float64 or not data.dtype.isnative:
        data = data.astype(np.float32)
    return data, affine


def read_mask(path: str | Path) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """Read a mask; of several volumes, a voxel in any of them is in the mask."""
    data, affine = read_image(path)
    mask = np.asarray(data) > 0
    return np.asarray(mask.any(axis=3) if mask.ndim == 4 else mask), affine


def read_gradients(path: str | Path) -> tuple[FloatArray, FloatArray]:
    """Read b-values (n,) and world RAS directions (n, 3)."""
    table = np.loadtxt(path, skiprows=1, ndmin=2)
    return table[:, 0], table[:, 1:]


def write_gradients(path: Path, bvals: FloatArray, bvecs_ras: FloatArray) -> Path:
    """Write b-values and world RAS directions as a table of four columns."""
    rows = (
        "\t".join(f"{value:.17g}" for value in (b, *vector))
        for b, vector in zip(bvals, bvecs_ras, strict=True)
    )
    write_text(path, _HEADER + "\n".join(rows) + "\n")
    return path


def read_series(image: str | Path, gradients: str | Path) -> Series:
    """Read a series from its two files."""
    return Series(*read_image(image), *read_gradients(gradients))


def write_series(folder: Path, series: Series) -> tuple[Path, Path]:
    """Write `dwi.nii` and `gradients.tsv` into a folder and return both paths."""
    image = folder / "dwi.nii"
    write_image(image, series.data, series.affine)
    table = write_gradients(folder / "gradients.tsv", series.bvals, series.bvecs_ras)
    return image, table


def to_rows(matrix: npt.NDArray[Any]) -> tuple[tuple[float, ...], ...]:
    """Give a matrix (rows, columns) as facts hold it."""
    return tuple(tuple(float(value) for value in row) for row in matrix)


def read_facts(path: str | Path, kind: type[AnyFacts]) -> AnyFacts:
    """Read the facts that a node of this run wrote."""
    facts, unread = kind.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    if unread:
        raise ValueError(f"{path} is not what its node wrote: {unread}")
    return facts


def write_facts(folder: Path, facts: Facts) -> str:
    """Write what a node did, for the report; return the path as Nipype takes it."""
    path = folder / "facts.json"
    write_json(path, facts.to_json())
    return str(path)
