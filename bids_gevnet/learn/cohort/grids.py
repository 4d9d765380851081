"""The grid of a scan, and that of a cohort: all scans have to share one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.tables import name_people

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bids_gevnet.learn.cohort.scan_rows import ScanRow


class Grid(NamedTuple):
    """Where a scan's samples are; grids of several scans can be compared."""

    shape: tuple[int, int, int]
    affine: tuple[float, ...]
    """Row by row, to the thousandth of a millimetre."""
    nside: int


def read_grid(row: ScanRow) -> Grid:
    """Read the grid of a scan's samples; a mask or sidecar that does not fit is refused."""
    import nibabel as nib

    try:
        image, mask = nib.load(row.image), nib.load(row.mask)
        sidecar = row.image.with_name(row.image.name.removesuffix(".nii.gz") + ".json")
        nside = int(json.loads(sidecar.read_text(encoding="utf-8"))["Nside"])
    except (OSError, ValueError, KeyError, TypeError, nib.filebasedimages.ImageFileError) as error:
        raise InputError(
            expected=f"readable samples, mask and sidecar of {row.scan}",
            found=str(error) or type(error).__name__,
            remedy="run the participant level for this participant again",
        ) from None
    shape = tuple(image.shape)
    if len(shape) != 4 or shape[3] != 6 * nside**2 or tuple(mask.shape) != shape[:3]:
        raise InputError(
            expected=f"{6 * nside**2} samples per voxel and a mask on the same grid",
            found=f"samples {shape} and mask {tuple(mask.shape)} for {row.scan}",
            remedy="run the participant level for this participant again",
        )
    affine = tuple(np.round(image.affine, 3).ravel().tolist())
    return Grid(shape[:3], affine, nside)


def common_grid(
    grids: Mapping[str, Grid],
) -> tuple[tuple[int, int, int], np.ndarray[Any, np.dtype[np.float64]], int]:
    """Return shape, affine and nside that all scans share; others are named.

    Parameters
    ----------
    grids : mapping of scan to Grid
    """
    by_grid: dict[Grid, list[str]] = {}
    for scan, grid in grids.items():
        by_grid.setdefault(grid, []).append(scan)
    (shape, affine, nside), *others = sorted(by_grid, key=lambda grid: -len(by_grid[grid]))
    if others:
        odd = [scan for grid in others for scan in by_grid[grid]]
        raise InputError(
            expected=f"all scans on one grid of {'x'.join(map(str, shape))} voxels",
            found=f"another grid for {name_people(odd)}",
            remedy="run the participant level for them again with the resolution of the others, "
            "or leave them out with --exclude-participant-label",
        )
    return shape, np.array(affine).reshape(4, 4), nside
