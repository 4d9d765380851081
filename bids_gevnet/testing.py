"""Equivariance checks for your own layers, as assertions.

    assert_gauge_equivariant(make, in_type, out_type, grid)
    assert_rotation_equivariant(make, in_type, out_type, grid, rotation)

`make(grid)` builds the layer on a grid; it is called once on the given grid and once in another
gauge, and the second layer gets the first one's state. Two kinds of equivariance, never one
tolerance for both: a change of frame at every point must be exact, to rounding, for convolutions
and pooling; a rotation of the signal is exact only for the rotations that map the grid to itself
and approximate for all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.spatial import cKDTree

from bids_gevnet.sphere.quadrature import stencil_between

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from bids_gevnet.nn.fields import FieldType
    from bids_gevnet.sphere.frames import FloatArray, IntArray
    from bids_gevnet.sphere.grid import Grid, SphereGrid


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference divided by the largest expected value."""
    scale = float(expected.abs().max())
    return float((actual - expected).abs().max()) / max(scale, 1e-300)


def gauge_error(
    make: Callable[[Grid], nn.Module],
    in_type: FieldType,
    out_type: FieldType,
    grid: Grid,
    *,
    out_grid: Grid | None = None,
    batch: int = 3,
    seed: int = 0,
) -> float:
    """Relative violation of gauge equivariance for a random frame at every point, in float64.

    Parameters
    ----------
    make : callable
        Builds the layer, (points, in_type.dim, batch) to (points, out_type.dim, batch), on a
        grid. A layer between two grids is built on the input's.
    in_type, out_type : FieldType
    grid : Grid
    out_grid : Grid or None
        Where the output lives, in a fixed gauge; None if it is the input's grid.
    batch, seed : int

    Returns
    -------
    float
        Largest abs(layer'(g x) - g layer(x)) over the largest abs(layer(x)).
    """
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi, np.pi, grid.n_points)
    layer, turned = _twins(make, grid, grid.rotate_frames(angles))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(grid.n_points, in_type.dim, batch, dtype=torch.float64, generator=generator)
    t = torch.from_numpy(angles)
    with torch.no_grad():
        expected = layer(x)
        actual = turned(in_type.gauge_transform(x, t))
    if out_grid is None:
        expected = out_type.gauge_transform(expected, t)
    return relative_error(actual, expected)


def assert_gauge_equivariant(
    make: Callable[[Grid], nn.Module],
    in_type: FieldType,
    out_type: FieldType,
    grid: Grid,
    *,
    out_grid: Grid | None = None,
    tolerance: float = 1e-12,
    seed: int = 0,
) -> None:
    """Fail unless a random change of frame at every point only changes the coordinates.

    Parameters are those of `gauge_error`; tolerance is relative. 1e-12 suits convolutions and
    pooling; a sampled nonlinearity needs about 4 / N^2.

    Examples
    --------
    >>> from bids_gevnet.nn import FieldType, GEVConv
    >>> from bids_gevnet.sphere import healpix
    >>> scalars, vectors = FieldType.scalars(1), FieldType.regular(2, 1)
    >>> def make(grid):
    ...     return GEVConv(grid, scalars, vectors)
    >>> assert_gauge_equivariant(make, scalars, vectors, healpix(1))
    """
    error = gauge_error(make, in_type, out_type, grid, out_grid=out_grid, seed=seed)
    if not error <= tolerance:
        raise AssertionError(f"not gauge equivariant: relative error {error:.3g} > {tolerance:g}")


def grid_symmetry(grid: Grid, rotation: FloatArray) -> IntArray | None:
    """Permutation of the points by a rotation that maps the grid to itself, else None.

    Returns
    -------
    (n,) int array or None
        image[j] is the index of rotation @ points[j].
    """
    distance, image = cKDTree(grid.points).query(grid.points @ rotation.T)
    if distance.max() > 1e-9 or len(np.unique(image)) != grid.n_points:
        return None
    permutation: IntArray = image.astype(np.int64)
    return permutation


def rotate_field(x: Tensor, field: FieldType, grid: SphereGrid, rotation: FloatArray) -> Tensor:
    """Rotate a field with its vectors: (R f)(p) = R f(R^-1 p).

    Exact for rotations that map the grid to itself; interpolated barycentrically otherwise.

    Parameters
    ----------
    x : (points, dim, batch) tensor
    field : FieldType
    grid : SphereGrid
    rotation : (3, 3) array

    Returns
    -------
    (points, dim, batch) tensor
    """
    # Values at R^-1 p in frames R^-1 e(p) are the values of the rotated field at p.
    back = _rotated_grid(grid, rotation.T)
    image = grid_symmetry(grid, rotation.T)
    if image is not None:
        rows, cols = np.arange(grid.n_points), image
        weights = np.ones(grid.n_points)
    else:
        stencil = stencil_between(back, grid, (0.0,), 0)
        rows, cols, weights = stencil.rows, stencil.cols, stencil.weights[:, 0, 0].real
    angles = grid.transport_angles(back, rows, cols)
    parts = []
    for n in field.frequencies:
        values = field.part(x, n)
        z = torch.complex(values[:, 0], values[:, -1] if n else torch.zeros_like(values[:, 0]))
        phase = torch.from_numpy(weights * np.exp(1j * n * angles)).to(z.dtype)
        moved = torch.zeros_like(z).index_add_(
            0, torch.from_numpy(rows), phase[:, None, None] * z[torch.from_numpy(cols)]
        )
        parts += [moved.real, moved.imag][: field.components(n)]
    return torch.cat(parts, dim=1)


def rotation_error(
    make: Callable[[Grid], nn.Module],
    in_type: FieldType,
    out_type: FieldType,
    grid: SphereGrid,
    rotation: FloatArray,
    x: Tensor,
) -> float:
    """Relative violation of rotation equivariance: root mean square over that of the output.

    Parameters
    ----------
    make : callable
        Builds the layer on a grid.
    in_type, out_type : FieldType
    grid : SphereGrid
    rotation : (3, 3) array
    x : (points, in_type.dim, batch) tensor
        Signal; a smooth one, unless the rotation maps the grid to itself.
    """
    layer = make(grid).double().eval()
    with torch.no_grad():
        expected = rotate_field(layer(x), out_type, grid, rotation)
        actual = layer(rotate_field(x, in_type, grid, rotation))
    return float((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def assert_rotation_equivariant(
    make: Callable[[Grid], nn.Module],
    in_type: FieldType,
    out_type: FieldType,
    grid: SphereGrid,
    rotation: FloatArray,
    *,
    x: Tensor | None = None,
    tolerance: float = 1e-10,
) -> None:
    """Fail unless rotating the input rotates the output.

    The default tolerance is for rotations that map the grid to itself (`grid_symmetry`); give a
    smooth signal and a tolerance of some per cent for others. See `rotation_error`.

    Examples
    --------
    >>> from bids_gevnet.nn import FieldType, GEConv
    >>> from bids_gevnet.sphere import healpix
    >>> scalars = FieldType.scalars(1)
    >>> def make(grid):
    ...     return GEConv(grid, scalars, scalars)
    >>> quarter_turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    >>> assert_rotation_equivariant(make, scalars, scalars, healpix(1), quarter_turn)
    """
    if x is None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(grid.n_points, in_type.dim, 3, dtype=torch.float64, generator=generator)
    error = rotation_error(make, in_type, out_type, grid, rotation, x)
    if not error <= tolerance:
        raise AssertionError(
            f"not rotation equivariant: relative error {error:.3g} > {tolerance:g}"
        )


def _rotated_grid(grid: SphereGrid, rotation: FloatArray) -> SphereGrid:
    """Points and frames rotated together; areas and triangles stay."""
    points = grid.points @ rotation.T
    return replace(grid, points=points, normals=points, frames=grid.frames @ rotation.T)


def _twins(
    make: Callable[[Grid], nn.Module], grid: Grid, other: Grid
) -> tuple[nn.Module, nn.Module]:
    """Build the layer on two grids, with the same state, in float64 and evaluation mode."""
    first, second = make(grid).double().eval(), make(other).double().eval()
    second.load_state_dict(first.state_dict())
    return first, second
