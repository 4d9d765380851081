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

from bids_gevnet.dwi.model_corrector.splines import CHUNK, Sampler, sample_spline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RADIUS_MM = 50.0
N_TERMS = 10
LINEAR = slice(1, 4)
QUADRATIC = slice(4, 10)
_INVERSION_STEPS = 12
"""Each step takes the error times the slope of the field, which is below 0.3."""


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


def eddy_slope(points: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the derivative of the ten terms along an axis, per mm.

    Parameters
    ----------
    points : (v, 3) tensor
    axis : int

    Returns
    -------
    slope : (v, 10) tensor
    """
    coordinates = (points / RADIUS_MM).unbind(dim=1)
    zero = torch.zeros_like(coordinates[0])
    columns = [zero] * N_TERMS
    columns[1 + axis] = torch.ones_like(zero)
    columns[4 + axis] = 2 * coordinates[axis]
    for column, (first, second) in zip((7, 8, 9), ((0, 1), (0, 2), (1, 2)), strict=True):
        if axis in {first, second}:
            columns[column] = coordinates[second if axis == first else first]
    return torch.stack(columns, dim=1) / RADIUS_MM


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
        values = torch.as_tensor(field, dtype=torch.float32, device=device)
        self._coefficients = Sampler(field.shape, device=device).coefficients(values)
        self._scale = torch.as_tensor(1 / sizes_mm, dtype=torch.float32, device=device)
        self._limit = torch.as_tensor(
            [n - 1 for n in field.shape], dtype=torch.float32, device=device
        )

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """Return the displacement at points in mm, (v,); beyond the volume that of its edge."""
        voxels = points * self._scale + self._limit / 2
        return sample_spline(self._coefficients, torch.minimum(voxels.clamp(min=0), self._limit))

    def slope(self, points: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        """Return the derivative along a unit vector, per mm, (v,)."""
        step = 0.1 / float(self._scale.max()) * direction
        change = self(points + step) - self(points - step)
        return change / float(2 * step.norm())


def pull(
    points: torch.Tensor,
    motion: torch.Tensor,
    eddy: torch.Tensor,
    axis: int,
    field: Field | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find where points of the reference were seen.

    Parameters
    ----------
    points : (v, 3) tensor
        Reference, mm.
    motion : (4, 4) tensor
    eddy : (10,) tensor
    axis : int
    field : Field, optional

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
    shift = eddy_basis(moved) @ eddy
    jacobian = 1 + eddy_slope(moved, axis) @ eddy
    if field is not None:
        shift = shift + field(points)
        jacobian = jacobian + field.slope(points, motion[axis, :3])
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

    Returns
    -------
    points : (v, 3) tensor
        Reference, mm.
    jacobian : (v,) tensor
        What raw values there were to be multiplied by.
    """
    back = torch.linalg.inv(motion)
    moved = seen.clone()
    points = seen
    for _ in range(_INVERSION_STEPS if field is not None else _INVERSION_STEPS // 3):
        points = moved @ back[:3, :3].T + back[:3, 3]
        shift = eddy_basis(moved) @ eddy
        if field is not None:
            shift = shift + field(points)
        moved[:, axis] = seen[:, axis] - shift
    points = moved @ back[:3, :3].T + back[:3, 3]
    _, _, jacobian = pull(points, motion, eddy, axis, field)
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
    field = None if warp.field is None else Field(warp.field, sizes, device)
    sampler = Sampler(shape, device=device)
    scale, middle = _tensor(1 / sizes, device), _tensor((np.array(shape) - 1) / 2, device)

    def fill(k: int) -> None:
        volume = _tensor(np.ascontiguousarray(data[..., k], dtype=np.float32), device)
        coefficients = sampler.coefficients(volume)
        motion, eddy = _tensor(warp.motion[k], device), _tensor(warp.eddy[k], device)
        parts = []
        for part in torch.split(points, 8 * CHUNK):
            _, seen, jacobian = pull(part, motion, eddy, warp.axis, field)
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
    field = None if warp.field is None else Field(warp.field, sizes_mm)
    seen = [
        pull(where, _tensor(motion), _tensor(eddy), warp.axis, field)[1]
        for motion, eddy in zip(warp.motion, warp.eddy, strict=True)
    ]
    return np.stack([(s - where).double().numpy() for s in seen])


def _tensor(array: NDArray[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    return torch.as_tensor(array, dtype=torch.float32, device=device)
