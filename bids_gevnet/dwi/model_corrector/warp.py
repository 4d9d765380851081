r"""Where a volume saw each point of the head: rigid motion, eddy currents, susceptibility.

World is that of a conformed series: mm along the voxel axes from the centre of the volume. A head
point at x in the reference lies at :math:`x' = M_k x` when volume k is taken (``motion``, rigid)
and is seen at

.. math:: x'' = x' + \bigl(d_k(x') + s(x)\bigr)\, p, \qquad
          d_k(x') = \sum_j e_{kj}\, \varphi_j(x' / r)

with p the unit vector of the positive phase-encoding voxel axis (``axis``), r = 50 mm
(``RADIUS_MM``), and :math:`\varphi` = 1, x, y, z, x², y², z², xy, xz, yz: so each eddy parameter
:math:`e_{kj}` (``eddy``) is a displacement in mm, about as large as at the edge of the brain. The
eddy field stands with the scanner; the susceptibility displacement s (``field``, mm along +p for
this run's polarity) moves with the head. This is the forward model of FSL's eddy (Andersson and
Sotiropoulos 2016), and of :mod:`bids_gevnet.phantom`.

Correcting reads the raw volume at x'' once and multiplies by the Jacobian
:math:`1 + \partial (d_k + s) / \partial p`: signal that was squeezed together is bright.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.dwi.model_corrector.splines import (
    CHUNK,
    Sampler,
    apply_along_axes,
    sample_linear,
    sample_spline,
    spline_matrix,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RADIUS_MM = 50.0
N_TERMS = 10
LINEAR = slice(1, 4)
QUADRATIC = slice(4, 10)
_MIXED = ((0, 1), (0, 2), (1, 2))
INVERSION_TOLERANCE_MM = 0.1
"""`push` is right to this in voxels of 4 mm, as it reads the field by linear interpolation: the
error falls with the square of the voxel."""

_CONVERGED_MM = 0.05

_INVERSION_STEPS = 8
"""At most: Newton's method takes three for a field that displaces by 9 mm."""

_STEEPEST = 0.8
"""Where a field folds space there is no inverse: its slope is taken for less than it is."""


@dataclass(frozen=True)
class Warp:
    """Motion and distortions of the volumes of one run.

    Attributes
    ----------
    motion : (n, 4, 4) array
        Reference to where the head was in each volume, world mm.
    eddy : (n, 10) array
        Eddy parameters, mm.
    axis : int
        Phase-encoding voxel axis.
    field : (X, Y, Z) array or None
        Susceptibility displacement in mm along the positive axis, in the reference position.
    link : (4, 4) array
        Reference of this run to that of the scan it belongs to, world mm.
    """

    motion: NDArray[np.float64]
    eddy: NDArray[np.float64]
    axis: int
    field: NDArray[np.float32] | None = None
    link: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.eye(4))

    @property
    def transforms(self) -> NDArray[np.float64]:
        """Volume to reference, (n, 4, 4), as :mod:`bids_gevnet.dwi.motion` counts."""
        return np.asarray(np.linalg.inv(self.motion))

    def select(self, volumes: Sequence[int] | NDArray[np.intp]) -> Warp:
        """Return the warp of some volumes."""
        return replace(self, motion=self.motion[volumes], eddy=self.eddy[volumes])


def still_warp(count: int, axis: int, field: NDArray[np.float32] | None = None) -> Warp:
    """Return the warp of a series in which nothing moves and no gradient leaves a trace."""
    return Warp(np.tile(np.eye(4), (count, 1, 1)), np.zeros((count, N_TERMS)), axis, field)


def eddy_basis(points: torch.Tensor) -> torch.Tensor:
    """Return the ten terms at points in mm.

    Parameters
    ----------
    points : (v, 3) tensor

    Returns
    -------
    basis : (v, 10) tensor
    """
    x, y, z = (points / RADIUS_MM).unbind(dim=1)
    return torch.stack(
        [torch.ones_like(x), x, y, z, x * x, y * y, z * z, x * y, x * z, y * z], dim=1
    )


def eddy_shift(
    points: torch.Tensor, eddy: torch.Tensor, axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the eddy displacement at points in mm, and its derivative along an axis.

    Parameters
    ----------
    points : (v, 3) tensor
    eddy : (10,) tensor
    axis : int

    Returns
    -------
    shift : (v,) tensor
        mm; `eddy_basis` times `eddy`, as a quadratic form.
    slope : (v,) tensor
        Per mm.
    """
    squares, mixed = torch.diag(eddy[4:7]), torch.zeros(3, 3, dtype=eddy.dtype, device=eddy.device)
    for value, (first, second) in zip(eddy[7:], _MIXED, strict=True):
        mixed[first, second] = mixed[second, first] = value / 2
    scaled = points / RADIUS_MM
    bend = scaled @ (squares + mixed)  # (v, 3)
    shift = eddy[0] + scaled @ eddy[LINEAR] + (bend * scaled).sum(dim=1)
    return shift, (eddy[1 + axis] + 2 * bend[:, axis]) / RADIUS_MM


@dataclass(frozen=True)
class FieldAtPoints:
    """The susceptibility displacement at points that many volumes are read at.

    Attributes
    ----------
    values : (v,) tensor
        mm along the positive phase-encoding axis.
    gradient : (v, 3) tensor
        Its derivative along the axes of the reference, per mm.
    """

    values: torch.Tensor
    gradient: torch.Tensor

    def select(self, points: torch.Tensor) -> FieldAtPoints:
        """Return the field at some of the points."""
        return FieldAtPoints(self.values[points], self.gradient[points])


class Field:
    """The susceptibility displacement as a spline.

    Parameters
    ----------
    field : (X, Y, Z) array
        mm along the positive phase-encoding axis.
    sizes_mm : (3,) array
        Of its voxels; the centre of the volume is the origin of the world.
    device : torch.device
    """

    def __init__(
        self,
        field: NDArray[np.float32],
        sizes_mm: NDArray[np.float64],
        device: torch.device | str = "cpu",
    ) -> None:
        values = torch.as_tensor(np.ascontiguousarray(field), dtype=torch.float32, device=device)
        self._coefficients = Sampler(field.shape, device=device).coefficients(values)
        self._scale = torch.as_tensor(1 / sizes_mm, dtype=torch.float32, device=device)
        self._limit = torch.as_tensor(
            [n - 1 for n in field.shape], dtype=torch.float32, device=device
        )
        self.largest_mm = float(values.abs().max())
        nodes = self.on_grid([np.arange(n, dtype=float) for n in field.shape])
        self._at_voxels = torch.cat([nodes.values[None], nodes.gradient.T]).reshape(
            4, *field.shape
        )

    def _voxels(self, points: torch.Tensor) -> torch.Tensor:
        """Return positions in voxels; beyond the volume those of its edge."""
        voxels = points * self._scale + self._limit / 2
        return torch.minimum(voxels.clamp(min=0), self._limit)

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """Return the displacement at points in mm, (v,)."""
        return sample_spline(self._coefficients, self._voxels(points))

    def linear(self, points: torch.Tensor) -> FieldAtPoints:
        """Return the displacement and its derivatives by linear interpolation between voxels.

        Less exact than `at`, and far faster.
        """
        values, *gradient = sample_linear(self._at_voxels, self._voxels(points))
        return FieldAtPoints(values, torch.stack(gradient, dim=1))

    def at(self, points: torch.Tensor) -> FieldAtPoints:
        """Return the displacement and its derivatives at points in mm."""
        step = 0.1 / float(self._scale.max())
        sides = step * torch.eye(3, dtype=points.dtype, device=points.device)
        slopes = [(self(points + side) - self(points - side)) / (2 * step) for side in sides]
        return FieldAtPoints(self(points), torch.stack(slopes, dim=1))

    def on_grid(self, positions: Sequence[NDArray[np.float64]]) -> FieldAtPoints:
        """Return the same on a grid, which takes no more than a few matrix products.

        Parameters
        ----------
        positions : three arrays
            Voxels of the grid along each axis, in voxels of the field.
        """
        counts = self._coefficients.shape
        value, slope = (
            [
                torch.as_tensor(
                    spline_matrix(n, np.clip(where, 0, n - 1), derivative)
                    * float(scale) ** derivative,
                    dtype=torch.float32,
                    device=self._coefficients.device,
                )
                for n, where, scale in zip(counts, positions, self._scale, strict=True)
            ]
            for derivative in (0, 1)
        )
        slopes = [
            apply_along_axes(
                self._coefficients, [slope[i] if i == axis else value[i] for i in range(3)]
            ).ravel()
            for axis in range(3)
        ]
        values = apply_along_axes(self._coefficients, value).ravel()
        return FieldAtPoints(values, torch.stack(slopes, dim=1))


def pull(
    points: torch.Tensor,
    motion: torch.Tensor,
    eddy: torch.Tensor,
    axis: int,
    field: Field | FieldAtPoints | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find where points of the reference were seen.

    Parameters
    ----------
    points : (v, 3) tensor
        Reference, mm.
    motion : (4, 4) tensor
    eddy : (10,) tensor
    axis : int
    field : Field or FieldAtPoints, optional
        The latter spares its evaluation where many volumes are read at the same points.

    Returns
    -------
    moved : (v, 3) tensor
        Where the head was, mm.
    seen : (v, 3) tensor
        Where it was seen, mm.
    jacobian : (v,) tensor
        What to multiply the raw value by.
    """
    moved = points @ motion[:3, :3].T + motion[:3, 3]
    shift, slope = eddy_shift(moved, eddy, axis)
    jacobian = 1 + slope
    if field is not None:
        here = field.at(points) if isinstance(field, Field) else field
        shift = shift + here.values
        jacobian = jacobian + here.gradient @ motion[axis, :3]
    seen = moved.clone()
    seen[:, axis] += shift
    return moved, seen, jacobian


def push(
    seen: torch.Tensor,
    motion: torch.Tensor,
    eddy: torch.Tensor,
    axis: int,
    field: Field | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find which points of the reference are seen at some points: the inverse of `pull`.

    Newton's method, until no point moves any more; right to `INVERSION_TOLERANCE_MM`.

    Returns
    -------
    points : (v, 3) tensor
        Reference, mm.
    jacobian : (v,) tensor
        What raw values there were to be multiplied by.
    """
    back = torch.linalg.inv(motion)
    moved = seen.clone()
    points = moved @ back[:3, :3].T + back[:3, 3]
    jacobian = torch.ones_like(seen[:, axis])
    for _ in range(_INVERSION_STEPS):
        shift, slope = eddy_shift(moved, eddy, axis)
        if field is not None:
            here = field.linear(points)
            shift, slope = shift + here.values, slope + here.gradient @ motion[axis, :3]
        jacobian = 1 + slope
        change = (seen[:, axis] - shift - moved[:, axis]) / jacobian.clamp(min=1 - _STEEPEST)
        moved[:, axis] += change
        # The reference moves along the axis as the motion has turned it.
        points = points + change[:, None] * back[:3, axis]
        if not len(seen) or float(change.abs().max()) < _CONVERGED_MM:
            break
    return points, jacobian


def resample_warped(
    data: NDArray[Any],
    affine: NDArray[np.float64],
    warp: Warp,
    to_target: NDArray[np.float64],
    target_shape: tuple[int, int, int],
    target_affine: NDArray[np.float64],
    *,
    n_threads: int = 1,
    device: torch.device | str = "cpu",
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Correct a raw series and bring it to a grid, in one interpolation.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        May be a memory map: one volume per thread is in memory at a time.
    affine : (4, 4) array
        Of a conformed series.
    warp : Warp
    to_target : (4, 4) array
        World of the scan to world of the target, mm; after the warp's own link.
    target_shape : (int, int, int)
    target_affine : (4, 4) array
    n_threads : int
        The result does not depend on it.
    device : torch.device
    out : (X', Y', Z', n) array of float32, optional

    Returns
    -------
    corrected : (X', Y', Z', n) array of float32
        Never negative, 0 outside the field of view.
    """
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    shape = data.shape[:3]
    result = np.empty((*target_shape, data.shape[3]), np.float32) if out is None else out
    back = np.linalg.inv(to_target @ warp.link) @ target_affine
    points = _tensor(grid_points(target_shape, back), device)
    field = None if warp.field is None else Field(warp.field, sizes, device).at(points)
    pieces = torch.split(torch.arange(len(points), device=device), 8 * CHUNK)
    sampler = Sampler(shape, device=device)
    scale, middle = _tensor(1 / sizes, device), _tensor((np.array(shape) - 1) / 2, device)

    def fill(k: int) -> None:
        volume = _tensor(np.ascontiguousarray(data[..., k], dtype=np.float32), device)
        coefficients = sampler.coefficients(volume)
        motion, eddy = _tensor(warp.motion[k], device), _tensor(warp.eddy[k], device)
        parts = []
        for piece in pieces:
            here = None if field is None else field.select(piece)
            _, seen, jacobian = pull(points[piece], motion, eddy, warp.axis, here)
            parts.append(sample_spline(coefficients, seen * scale + middle) * jacobian)
        values = torch.cat(parts).clamp(min=0).reshape(target_shape)
        result[..., k] = values.cpu().numpy()

    threads = max(1, n_threads) if torch.device(device).type == "cpu" else 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(data.shape[3])))
    return result


def grid_points(shape: Sequence[int], affine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the world position of every voxel, (voxels, 3) mm."""
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, 3)
    return np.asarray(index @ affine[:3, :3].T + affine[:3, 3])


def displacement(
    warp: Warp, points: NDArray[np.float64], sizes_mm: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how far each volume saw points of the head from where they are in the reference.

    Parameters
    ----------
    warp : Warp
    points : (v, 3) array
    sizes_mm : (3,) array
        Of the voxels of the field.

    Returns
    -------
    displacement_mm : (n, v, 3) array
    """
    where = torch.as_tensor(points, dtype=torch.float32)
    field = None if warp.field is None else Field(warp.field, sizes_mm).at(where)
    seen = [
        pull(where, _tensor(motion), _tensor(eddy), warp.axis, field)[1]
        for motion, eddy in zip(warp.motion, warp.eddy, strict=True)
    ]
    return np.stack([(s - where).double().numpy() for s in seen])


def _tensor(array: NDArray[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    return torch.as_tensor(array, dtype=torch.float32, device=device)
