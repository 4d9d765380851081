r"""One Gauss-Newton step for the motion and the eddy field of every volume of a shell.

With :math:`\hat y_k` the prediction of volume k from the others
(`volume_prediction`) and
:math:`y_k(x) = (1 + \partial d_k / \partial p)\, f_k(x'')` the raw volume read through the
present estimate (`warp`), the step minimises

.. math:: \sum_x w(x) \bigl(y_k(x) + A_k(x)\, \delta - \hat y_k(x)\bigr)^2.

:math:`\delta` = translation (mm), rotation (rad times 50 mm, about the centre of the volume), eddy
terms (mm) but for the constant one, which no image can tell from a translation
(`eddy_over_gradients`). Rows of :math:`A_k` are derivatives of the image times those
of x''. Image derivatives are taken from the prediction, which is far less noisy than the volume.
How bright a volume is says nothing: a factor is fitted along and thrown away, and the change of
the Jacobian is not in :math:`A_k`, or errors of the prediction that vary slowly over the brain
would pass for quadratic eddy terms (0.5 mm of them on a phantom).

Weights w are Huber's over the variance of each voxel's residual over the volumes: voxels whose
directional contrast is predicted badly count less than those without any. Residuals of neighbours
are alike, so the covariance of :math:`\delta` is estimated from sums over cubes of 20 mm (a
sandwich estimator), not from single voxels.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.dwi.model_corrector.splines import Sampler, inside_grid, sample_spline
from bids_gevnet.dwi.model_corrector.warp import RADIUS_MM, eddy_basis, pull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.dwi.model_corrector.warp import FieldAtPoints

N_RIGID = 6
_HUBER = 2.0
_FWHM = 2.355
_FEWEST_VALID = 0.2
"""A volume that shows less of the brain, or of its signal, than this fraction has no position."""

_BLOCK_MM = 20.0
"""Errors of the prediction follow tracts and gyri: about this far they are alike."""

_LONGEST_STEP = 10.0
"""In mm: derivatives of an image do not reach further."""


@dataclass(frozen=True)
class Level:
    """How finely to look: grid, smoothing, steps.

    Attributes
    ----------
    voxel_mm : float
        Spacing of the grid; axes with larger voxels keep theirs.
    fwhm_mm : float
        Width of a point after smoothing, that of the voxel included.
    iterations : int
    quadratic : bool
        Whether quadratic eddy terms are estimated beside the linear ones.
    caution : float
        Noise of the prediction, as a multiple of the one that predicts best. Misplacements that
        vary smoothly over directions are themselves predicted, so they go away slowly unless the
        prediction is cautious; but a cautious prediction lacks contrast, which then passes for
        misplacement. Hence much caution first and none in the end; FSL's eddy uses 10 throughout.
    """

    voxel_mm: float
    fwhm_mm: float
    iterations: int
    quadratic: bool = False
    caution: float = 10.0

    @property
    def terms(self) -> slice:
        """Eddy terms that are estimated."""
        return slice(1, 10 if self.quadratic else 4)


@dataclass(frozen=True)
class Step:
    """What a volume asks for.

    Attributes
    ----------
    delta : (p,) array
        Change of translation, rotation (times 50 mm) and eddy terms.
    precision : (p, p) array
        Inverse covariance of `delta`.
    """

    delta: NDArray[np.float64]
    precision: NDArray[np.float64]

    @property
    def variance(self) -> NDArray[np.float64]:
        """Of each entry of `delta`, (p,)."""
        return np.asarray(np.diag(np.linalg.inv(self.precision)))

    @property
    def rigid_variance(self) -> NDArray[np.float64]:
        """Of translation and rotation once the eddy terms are known, (6,)."""
        return np.asarray(np.diag(np.linalg.inv(self.precision[:N_RIGID, :N_RIGID])))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let torch use one thread per task: sums are then taken in one order, however many run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers:
    """Run one function on many volumes: threads on the CPU, one after the other on a GPU.

    Parameters
    ----------
    n_threads : int
    device : torch.device
    """

    def __init__(self, n_threads: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._count = max(1, n_threads) if self.device.type == "cpu" else 1

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """Return the results in the order of the items."""
        if self._count == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(function, items))


class Lattice:
    """A grid over the volume on which volumes are compared, and the part of it that is brain.

    Parameters
    ----------
    shape : (int, int, int)
        Of the series.
    sizes_mm : (3,) array
        Of its voxels.
    level : Level
    device : torch.device
    """

    def __init__(
        self,
        shape: Sequence[int],
        sizes_mm: NDArray[np.float64],
        level: Level,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spacing = np.maximum(sizes_mm, level.voxel_mm)
        extent = np.asarray(shape[:3]) * sizes_mm
        self.shape = tuple(int(n) for n in np.maximum(np.rint(extent / self.spacing), 1))
        self.positions = [
            (np.arange(m) - (m - 1) / 2) * h / s + (n - 1) / 2
            for m, h, s, n in zip(self.shape, self.spacing, sizes_mm, shape[:3], strict=True)
        ]
        """Voxels of the grid along each axis, in voxels of the series."""
        sigma = np.sqrt(np.maximum(level.fwhm_mm**2 - sizes_mm**2, 0)) / _FWHM / sizes_mm
        self.sampler = Sampler(shape[:3], self.positions, sigma.tolist(), device)
        self.device = torch.device(device)
        self._scale = torch.as_tensor(1 / self.spacing, dtype=torch.float32, device=device)
        self._middle = torch.as_tensor(
            [(m - 1) / 2 for m in self.shape], dtype=torch.float32, device=device
        )

    def points(self, index: NDArray[np.intp] | None = None) -> torch.Tensor:
        """Return positions in mm of flat voxel indices (default: all), (v, 3)."""
        flat = np.arange(np.prod(self.shape)) if index is None else index
        voxels = np.stack(np.unravel_index(flat, self.shape), axis=1)
        return self.from_voxels(torch.as_tensor(voxels, dtype=torch.float32, device=self.device))

    def from_voxels(self, voxels: torch.Tensor) -> torch.Tensor:
        """Return points in mm of grid positions, (v, 3)."""
        return (voxels - self._middle) / self._scale

    def to_voxels(self, points: torch.Tensor) -> torch.Tensor:
        """Return grid positions of points in mm, (v, 3)."""
        return points * self._scale + self._middle


class Brain:
    """Brain voxels of a lattice with their six neighbours, which derivatives need.

    Parameters
    ----------
    lattice : Lattice
    mask : (X, Y, Z) array of bool
        On the lattice.
    """

    def __init__(self, lattice: Lattice, mask: NDArray[np.bool_]) -> None:
        inner = mask.copy()
        for axis in range(3):
            edge = [slice(None)] * 3
            for end in (0, -1):
                edge[axis] = end  # type: ignore[call-overload]
                inner[tuple(edge)] = False
        self.voxels = np.flatnonzero(inner)
        strides = np.array([mask.shape[1] * mask.shape[2], mask.shape[2], 1])
        sides = np.stack([self.voxels[:, None] + s * strides for s in (-1, 1)])  # (2, v, 3)
        near = np.unique(np.concatenate([self.voxels, sides.ravel()]))
        self.points = lattice.points(near)
        device = lattice.device
        self.near = torch.as_tensor(near, device=device)
        self.core = torch.as_tensor(np.searchsorted(near, self.voxels), device=device)
        self.sides = torch.as_tensor(np.searchsorted(near, sides), device=device)
        place = np.stack(np.unravel_index(self.voxels, mask.shape), axis=1) * lattice.spacing
        cube = np.floor(place / _BLOCK_MM).astype(np.intp)
        self.block = torch.as_tensor(
            np.unique(cube, axis=0, return_inverse=True)[1].ravel(), device=device
        )
        """Of each brain voxel, the cube it lies in."""
        self._step = torch.as_tensor(2 * lattice.spacing, dtype=torch.float32, device=device)

    def to_volume(self, values: torch.Tensor, lattice: Lattice) -> torch.Tensor:
        """Return values at `points` as a volume, 0 elsewhere."""
        volume = values.new_zeros(int(np.prod(lattice.shape)))
        volume[self.near] = values
        return volume.reshape(lattice.shape)

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """Return the spatial derivative per mm at the brain voxels, (v, 3)."""
        low, high = values[self.sides]
        gradient: torch.Tensor = (high - low) / self._step
        return gradient


def read_through(
    coefficients: torch.Tensor,
    lattice: Lattice,
    points: torch.Tensor,
    motion: NDArray[np.float64],
    eddy: NDArray[np.float64],
    axis: int,
    field: FieldAtPoints | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a raw volume through an estimate, with the Jacobian.

    Returns
    -------
    values : (v,) tensor
    valid : (v,) tensor of bool
        False beyond the field of view.
    """
    _, seen, jacobian = pull(points, _tensor(motion, points), _tensor(eddy, points), axis, field)
    voxels = lattice.to_voxels(seen)
    values = sample_spline(coefficients, voxels) * jacobian
    return values, inside_grid(voxels, lattice.shape)


def gauss_newton_step(
    observed: torch.Tensor,
    valid: torch.Tensor,
    predicted: torch.Tensor,
    brain: Brain,
    motion: NDArray[np.float64],
    axis: int,
    terms: slice | None,
    *,
    spread: torch.Tensor | None = None,
) -> Step:
    """Return the step that brings one volume nearer to its prediction.

    Parameters
    ----------
    observed, predicted : (near,) tensor
        At the points of `brain`.
    valid : (near,) tensor of bool
    brain : Brain
    motion : (4, 4) array
        Present estimate.
    axis : int
        Of the phase encoding.
    terms : slice or None
        Eddy terms to estimate; None for rigid motion alone.
    spread : (near,) tensor, optional
        Standard deviation of the prediction's error in each voxel; voxels weigh by its inverse
        square.

    Returns
    -------
    step : Step
    """
    count = N_RIGID + (0 if terms is None else terms.stop - terms.start)
    use = valid[brain.core]
    bright = float(observed[brain.core].sum()) / max(float(predicted[brain.core].sum()), 1e-12)
    if float(use.float().mean()) < _FEWEST_VALID or bright < _FEWEST_VALID:
        return Step(np.zeros(count), np.eye(count) * 1e-9)
    rigid = _tensor(motion, predicted)
    points = brain.points[brain.core]
    moved = points @ rigid[:3, :3].T + rigid[:3, 3]
    slope = brain.gradient(predicted) @ rigid[:3, :3].T  # (v, 3), in the axes of the scanner
    columns = [slope, torch.linalg.cross(moved / RADIUS_MM, slope)]
    target = predicted[brain.core]
    if terms is not None:
        columns.append(slope[:, axis, None] * eddy_basis(moved)[:, terms])
    # Last, the brightness, which is not always what the others predict.
    design = torch.cat([*columns, target[:, None]], dim=1).double()
    residual = (target - observed[brain.core]).double()
    trust = torch.ones_like(residual) if spread is None else spread[brain.core].double() ** -2
    scaled = residual.abs() * trust.sqrt()
    usual = 1.4826 * scaled[use].median().clamp(min=1e-12)
    weight = trust * (_HUBER * usual / scaled.clamp(min=1e-12)).clamp(max=1.0) * use
    weighted = design * weight[:, None]
    normal = weighted.T @ design
    ridge = 1e-9 * torch.diagonal(normal).mean().clamp(min=1e-12)
    normal = normal + ridge * torch.eye(len(normal), dtype=torch.float64, device=normal.device)
    inverse = torch.linalg.inv(normal)
    delta = inverse @ (weighted.T @ residual)
    # Errors of the prediction are alike in neighbours, so blocks vote, not voxels.
    scores = weighted * (residual - design @ delta)[:, None]
    blocks = scores.new_zeros(int(brain.block.max()) + 1, design.shape[1])
    blocks.index_add_(0, brain.block, scores)
    # Brightness is of no interest.
    covariance = (inverse @ (blocks.T @ blocks) @ inverse)[:count, :count]
    delta = delta[:count]
    delta = delta * (_LONGEST_STEP / delta.abs().max().clamp(min=_LONGEST_STEP))
    floor = 1e-6 * torch.eye(count, dtype=torch.float64, device=covariance.device)
    return Step(delta.cpu().numpy(), torch.linalg.inv(covariance + floor).cpu().numpy())


def move(motion: NDArray[np.float64], delta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a rigid transform followed by a small one.

    Parameters
    ----------
    motion : (4, 4) array
    delta : (6,) array
        Translation in mm and rotation vector times 50 mm, in the axes of the scanner.

    Returns
    -------
    motion : (4, 4) array
    """
    from scipy.spatial.transform import Rotation

    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_rotvec(delta[3:] / RADIUS_MM).as_matrix()
    turn[:3, 3] = delta[:3]
    return np.asarray(turn @ motion)


def rigid_vector(motion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return translations in mm and rotation vectors times 50 mm, (n, 6): what `move` takes."""
    from scipy.spatial.transform import Rotation

    turns = Rotation.from_matrix(motion[:, :3, :3]).as_rotvec() * RADIUS_MM
    return np.concatenate([motion[:, :3, 3], turns], axis=1)


def _tensor(array: NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(array, dtype=torch.float32, device=like.device)
