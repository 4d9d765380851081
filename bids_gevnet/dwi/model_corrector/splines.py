r"""Cubic B-splines on voxel grids, with torch: smooth, sample anywhere, with derivatives.

A volume f on voxels 0 ... n - 1 of each axis is the spline

.. math:: f(u) = \sum_{ijk} c_{ijk}\, \beta(u_1 - i)\, \beta(u_2 - j)\, \beta(u_3 - k)

with the cubic B-spline :math:`\beta` and coefficients c (``coefficients``) that make it pass
through the voxels; beyond the edge it is mirrored at the outermost voxel centres. Everything done
to a volume before it is sampled (Gaussian smoothing, another grid, the step from values to
coefficients) is separable and linear, so it is one small dense matrix per axis: exact, the same on
a GPU, without the recursions of the usual prefilter. Positions are in voxels of the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.compiled import library as kernels
from bids_gevnet.compiled.spline import sample_spline as sample_spline_compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CHUNK = 8192
"""Points at a time on the CPU: their 64 neighbours then stay in the cache."""

_GPU_CHUNK = 2**20
_TRUNCATE = 4.0


def collocation_matrix(count: int) -> NDArray[np.float64]:
    """Return the matrix from coefficients to values at the voxels of one axis.

    Returns
    -------
    matrix : (count, count) array
        Tridiagonal 1/6, 4/6, 1/6, mirrored at both ends.
    """
    matrix = np.zeros((count, count))
    voxels = np.arange(count)
    for offset, weight in ((-1, 1 / 6), (0, 4 / 6), (1, 1 / 6)):
        np.add.at(matrix, (voxels, _mirrored(voxels + offset, count)), weight)
    return matrix


def smoothing_matrix(
    count: int, positions: NDArray[np.float64], sigma: float
) -> NDArray[np.float64]:
    """Return the matrix that smooths an axis and reads it at some positions.

    Parameters
    ----------
    count : int
        Voxels of the axis.
    positions : (m,) array
        Where to read, in voxels.
    sigma : float
        Of the Gaussian, in voxels; below a tenth of a voxel a spline passes through instead.

    Returns
    -------
    matrix : (m, count) array
        Rows sum to 1.
    """
    if sigma < 0.1 or count == 1:
        return spline_matrix(count, positions) @ np.linalg.inv(collocation_matrix(count))
    reach = int(np.ceil(_TRUNCATE * sigma)) + 1
    voxels = np.arange(-reach, count + reach)
    weights = np.exp(-0.5 * ((positions[:, None] - voxels) / sigma) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    folded = np.zeros((len(positions), count))
    # The edge goes on as it is: a mirrored head beyond it would be seen twice.
    np.add.at(folded.T, np.clip(voxels, 0, count - 1), weights.T)
    return folded


def spline_matrix(count: int, positions: NDArray[Any], derivative: int = 0) -> NDArray[np.float64]:
    """Return the matrix from coefficients of one axis to the spline at some positions.

    Parameters
    ----------
    count : int
        Coefficients.
    positions : (m,) array
        In units of the spacing of the coefficients.
    derivative : int
        0 for values, 1 or 2 for derivatives with respect to the position.

    Returns
    -------
    matrix : (m, count) array
    """
    first = np.floor(positions).astype(np.intp) - 1
    matrix = np.zeros((len(positions), count))
    rows = np.arange(len(positions))
    for tap in range(4):
        weight = _bspline(positions - (first + tap), derivative)
        np.add.at(matrix, (rows, _mirrored(first + tap, count)), weight)
    return matrix


def _bspline(distance: NDArray[np.float64], derivative: int) -> NDArray[np.float64]:
    size, sign = np.abs(distance), np.sign(distance)
    if derivative == 0:
        near, far = 2 / 3 - size**2 + size**3 / 2, (2 - size) ** 3 / 6
    elif derivative == 1:
        near, far = sign * (-2 * size + 1.5 * size**2), -sign * (2 - size) ** 2 / 2
    else:
        near, far = 3 * size - 2, 2 - size
    return np.asarray(np.where(size < 1, near, np.where(size < 2, far, 0.0)))


def _mirrored(index: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    if count == 1:
        return np.zeros_like(index)
    period = 2 * (count - 1)
    folded = np.mod(index, period)
    return np.asarray(np.minimum(folded, period - folded))


def apply_along_axes(volume: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply each axis of a volume by its matrix.

    Parameters
    ----------
    volume : (X, Y, Z) tensor
    matrices : three tensors
        (X', X), (Y', Y) and (Z', Z).

    Returns
    -------
    result : (X', Y', Z') tensor
    """
    x, y, z = matrices
    result = (x @ volume.reshape(volume.shape[0], -1)).reshape(-1, *volume.shape[1:])
    return torch.matmul(y, result) @ z.T


class Sampler:
    """Turn volumes of one shape into splines on a grid, perhaps a coarser and smoother one.

    Parameters
    ----------
    shape : (int, int, int)
        Of the volumes.
    positions : three arrays, optional
        Voxels of the new grid along each axis, in voxels of the old one (default: the same).
    sigma : (float, float, float)
        Gaussian smoothing in voxels of the old grid.
    device : torch.device
    """

    def __init__(
        self,
        shape: Sequence[int],
        positions: Sequence[NDArray[np.float64]] | None = None,
        sigma: Sequence[float] = (0.0, 0.0, 0.0),
        device: torch.device | str = "cpu",
    ) -> None:
        where = positions if positions is not None else [np.arange(n, dtype=float) for n in shape]
        values = [smoothing_matrix(n, p, s) for n, p, s in zip(shape, where, sigma, strict=True)]
        self.device = torch.device(device)
        self.shape = tuple(len(p) for p in where)
        self._values = [self._tensor(m) for m in values]
        self._coefficients = [
            self._tensor(np.linalg.solve(collocation_matrix(len(m)), m)) for m in values
        ]

    def _tensor(self, matrix: NDArray[Any]) -> torch.Tensor:
        return torch.as_tensor(matrix, dtype=torch.float32, device=self.device)

    def values(self, volume: torch.Tensor) -> torch.Tensor:
        """Return the smoothed volume on the grid."""
        return apply_along_axes(volume, self._values)

    def coefficients(self, volume: torch.Tensor) -> torch.Tensor:
        """Return the coefficients of the smoothed volume on the grid."""
        return apply_along_axes(volume, self._coefficients)


def sample_spline(coefficients: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Read a spline at any points.

    Parameters
    ----------
    coefficients : (X, Y, Z) tensor
    positions : (v, 3) tensor
        In voxels.

    Returns
    -------
    values : (v,) tensor
        0 more than half a voxel beyond the outermost voxel centres.
    """
    if kernels.serves(coefficients, positions):
        return sample_spline_compiled(coefficients, positions)
    size = CHUNK if positions.device.type == "cpu" else _GPU_CHUNK
    parts = [_sample(coefficients, part) for part in torch.split(positions, size)]
    return torch.cat(parts) if parts else positions.new_zeros(0)


def sample_linear(volumes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Read volumes by linear interpolation.

    Parameters
    ----------
    volumes : (c, X, Y, Z) tensor
    positions : (v, 3) tensor
        In voxels.

    Returns
    -------
    values : (c, v) tensor
        0 a voxel beyond the edge.
    """
    last = torch.as_tensor([max(n - 1, 1) for n in volumes.shape[1:]], device=volumes.device)
    # grid_sample wants -1 ... 1, and the last axis first.
    grid = (2 * positions / last - 1).flip(1)[None, :, None, None, :]
    values = torch.nn.functional.grid_sample(volumes[None], grid, align_corners=True)
    return values.reshape(len(volumes), -1)


def inside_grid(positions: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Tell which points lie within half a voxel of a grid, (v,) of bool."""
    last = torch.as_tensor([n - 0.5 for n in shape], device=positions.device)
    return ((positions >= -0.5) & (positions <= last)).all(dim=1)


def _sample(coefficients: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    floor = torch.floor(positions)
    offset = positions - floor  # (v, 3)
    first = floor.long() - 1
    strides = coefficients.stride()
    taps = torch.arange(4, device=positions.device)
    index = []
    for axis, count in enumerate(coefficients.shape):
        along = first[:, axis, None] + taps  # (v, 4)
        period = max(2 * (count - 1), 1)
        along = torch.remainder(along, period)
        index.append(torch.minimum(along, period - along).clamp_(max=count - 1) * strides[axis])
    plane = index[0][:, :, None] + index[1][:, None, :]  # (v, 4, 4)
    neighbours = torch.take(coefficients, plane[..., None] + index[2][:, None, None, :])
    weights = _weights(offset)  # (v, 3, 4)
    along_z = torch.matmul(neighbours, weights[:, 2, None, :, None])[..., 0]  # (v, 4, 4)
    along_y = torch.matmul(along_z, weights[:, 1, :, None])[..., 0]  # (v, 4)
    values = (along_y * weights[:, 0]).sum(dim=1)
    return torch.where(inside_grid(positions, coefficients.shape), values, 0.0)


def _weights(offset: torch.Tensor) -> torch.Tensor:
    """Weights of the four neighbours at 0 to 1 from the second, (..., 4)."""
    rest = 1 - offset
    cubes = offset**3 / 6
    third = 2 / 3 - rest**2 * (1 + offset) / 2
    second = 2 / 3 - offset**2 * (1 + rest) / 2
    return torch.stack([rest**3 / 6, second, third, cubes], dim=-1)
