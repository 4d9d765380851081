"""The grid of a scan, and that of a cohort: all scans have to share one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bids_gevnet.bids.derivatives import sidecar
from bids_gevnet.bids.samples import sample_volumes
from bids_gevnet.dwi.shells import SHELL_TOLERANCE, shared_shells
from bids_gevnet.errors import InputError, name_people

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bids_gevnet.learn.cohort.scan_rows import ScanRow


class Grid(NamedTuple):
    """Where a scan's samples are; grids of several scans can be compared."""

    shape: tuple[int, int, int]
    affine: tuple[float, ...]
    """Row by row, to the thousandth of a millimetre."""
    nside: int
    b_values: tuple[float, ...] = ()
    """Of the shells, in the order of the samples; empty where one shell's is not known."""


def read_grid(row: ScanRow) -> Grid:
    """Read the grid of a scan's samples; a mask or sidecar that does not fit is refused."""
    import nibabel as nib

    try:
        image, mask = nib.load(row.image), nib.load(row.mask)
        about = json.loads(sidecar(row.image).read_text(encoding="utf-8"))
        nside, b_values = int(about["Nside"]), _b_values(about.get("BValue"))
        samples = len(sample_volumes(row.image, image.shape[-1]))
    except (OSError, ValueError, KeyError, TypeError, nib.filebasedimages.ImageFileError) as error:
        raise InputError(
            expected=f"readable samples, mask and sidecar of {row.scan}",
            found=str(error) or type(error).__name__,
            remedy="run the participant level for this participant again",
        ) from None
    shape, points = tuple(image.shape), max(1, len(b_values)) * 6 * nside**2
    if len(shape) != 4 or samples != points or tuple(mask.shape) != shape[:3]:
        raise InputError(
            expected=f"{points} samples per voxel and a mask on the same grid",
            found=f"{samples} samples in {shape} and mask {tuple(mask.shape)} for {row.scan}",
            remedy="run the participant level for this participant again",
        )
    affine = tuple(np.round(image.affine, 3).ravel().tolist())
    return Grid(shape[:3], affine, nside, b_values)


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
        by_grid.setdefault(grid._replace(b_values=()), []).append(scan)
    (shape, affine, nside, _), *others = sorted(by_grid, key=lambda grid: -len(by_grid[grid]))
    if others:
        odd = [scan for grid in others for scan in by_grid[grid]]
        raise InputError(
            expected=f"all scans on one grid of {'x'.join(map(str, shape))} voxels",
            found=f"another grid for {name_people(odd)}",
            remedy="run the participant level for them again with the resolution of the others, "
            "or leave them out with --exclude-participant-label",
        )
    return shape, np.array(affine).reshape(4, 4), nside


def common_shells(grids: Mapping[str, Grid]) -> tuple[tuple[float, ...], str | None]:
    """Return the b-values of the shells that all scans share; a missing shell is refused.

    One shell each may differ in its b-value, as in clinical scans that are pooled: then there is
    no common b-value, and a sentence says so.

    Parameters
    ----------
    grids : mapping of scan to Grid

    Returns
    -------
    b_values : tuple of float
    warning : str or None
    """
    b_values = {scan: grid.b_values for scan, grid in grids.items()}
    if max(map(len, b_values.values())) > 1:
        return shared_shells(b_values), None
    known = [b for values in b_values.values() for b in values]
    if len(known) < len(grids):
        return (), None
    if max(known) - min(known) <= SHELL_TOLERANCE:
        return shared_shells(b_values), None
    return (), (
        f"The shells on the sphere differ in their b-values, from {min(known):.0f} to "
        f"{max(known):.0f} s/mm²: a network may tell scans apart by that alone."
    )


def _b_values(content: object) -> tuple[float, ...]:
    """b-values of a sidecar: a number, or a list with one for each shell."""
    if content is None:
        return ()
    values: list[Any] = content if isinstance(content, list) else [content]
    return tuple(float(b) for b in values)
