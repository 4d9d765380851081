"""Cubic B-splines read at any points, by a compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bids_gevnet.compiled.library import call, integers, number, pointer, threads

if TYPE_CHECKING:
    from torch import Tensor


def sample_spline(coefficients: Tensor, positions: Tensor) -> Tensor:
    """Read a spline at points; no gradients.

    Parameters
    ----------
    coefficients : (X, Y, Z) float32 tensor
    positions : (v, 3) float32 tensor
        In voxels.

    Returns
    -------
    values : (v,) float32 tensor
        0 more than half a voxel beyond the outermost voxel centres.
    """
    coefficients, positions = coefficients.contiguous(), positions.contiguous()
    values = positions.new_empty(len(positions))
    call(
        "sample_spline",
        pointer(coefficients),
        integers(coefficients.shape),
        pointer(positions),
        number(len(positions)),
        threads(),
        pointer(values),
    )
    return values
