r"""The susceptibility field from b0s with opposite phase encoding.

Off-resonance displaces signal along the phase-encoding axis p, by +u(x) in one image and by -u(x)
in the other, and squeezes it by the same factor. With I the images (``first``, ``second``), T the
rigid motion between them and :math:`u' = \partial u / \partial p`, both corrected images should
agree:

.. math:: E = \sum_x \bigl[(1 + u')\, I_1(x + u p) - (1 - u')\, I_2(T x - u p)\bigr]^2
          + \lambda \int \lVert \nabla^2 u \rVert^2

as in FSL's topup (Andersson, Skare and Ashburner 2003). u is a cubic B-spline with knots every few
mm (``knot_mm``), so its values, slopes and bending energy are products of small matrices, one per
axis; E is minimised by Gauss-Newton, from coarse to fine, each step solved by conjugate gradients
without ever forming the matrix. T is a rigid step per iteration, without the translation along p:
it would move one image against the other just as a constant u does.

u is in mm along the positive voxel axis for the polarity of the first image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import (
    Lattice,
    Level,
    move,
    single_threaded,
)
from bids_gevnet.dwi.model_corrector.splines import (
    apply_along_axes,
    sample_spline,
    smoothing_matrix,
    spline_matrix,
)
from bids_gevnet.dwi.model_corrector.warp import RADIUS_MM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class FieldLevel:
    """How finely to look: lattice and smoothing of the images, knots and stiffness of the field.

    Attributes
    ----------
    voxel_mm, fwhm_mm : float
    knot_mm : float
    stiffness : float
        Weight of the bending energy, relative to the images' own curvature of E.
    iterations : int
    """

    voxel_mm: float
    fwhm_mm: float
    knot_mm: float
    stiffness: float
    iterations: int


LEVELS = (
    FieldLevel(6.0, 16.0, 24.0, 0.003, 6),
    FieldLevel(4.0, 10.0, 16.0, 0.001, 6),
    FieldLevel(4.0, 6.0, 12.0, 0.0003, 5),
    FieldLevel(3.0, 3.0, 8.0, 0.0001, 5),
    FieldLevel(3.0, 3.0, 6.0, 0.00003, 5),
    FieldLevel(3.0, 3.0, 4.5, 0.00003, 5),
)
"""As stiff as is best for diffusion-weighted images, which the field was not fitted to: b0s
agree better the softer the field, mean weighted images do not. The uMR pair alone chooses these
levels (`benchmarks/accuracy.py --only correction --parts stiffness`), so that the Siemens pair can
score them."""

_CG_STEPS = 40
_CG_TOLERANCE = 1e-3
_BEND_MM = 50.0
"""Stiffness is in units of an image whose field bends over this length."""


@dataclass(frozen=True)
class Susceptibility:
    """A displacement field and how well it explains the two images.

    Attributes
    ----------
    field : (X, Y, Z) array
        mm along the positive phase-encoding axis, for the polarity of the first image.
    motion : (4, 4) array
        Reference (the first image) to the second image, world mm.
    correlation_before, correlation_after : float
        Of the two images over the head.
    """

    field: NDArray[np.float32]
    motion: NDArray[np.float64]
    correlation_before: float
    correlation_after: float


class _Basis:
    """B-splines with knots every few mm over a lattice: values, slopes and bending energy."""

    def __init__(
        self, shape: Sequence[int], spacing: NDArray[np.float64], knot_mm: float, axis: int
    ) -> None:
        self.axis = axis
        matrices, slopes = [], []
        self.energy = []
        for n, h in zip(shape, spacing, strict=True):
            count = max(2, int(np.ceil((n - 1) * h / knot_mm))) + 3
            # Knots reach one beyond either end, so that nothing is mirrored.
            step = (count - 3) / max(n - 1, 1)
            positions = 1 + np.arange(n) * step
            derivatives = [spline_matrix(count, positions, d) * (step / h) ** d for d in range(3)]
            matrices.append(_tensor(derivatives[0]))
            slopes.append(_tensor(derivatives[1]))
            self.energy.append([_tensor(m.T @ m) for m in derivatives])
        self.values = matrices
        self.slopes = [slopes[i] if i == axis else m for i, m in enumerate(matrices)]
        self.shape = tuple(m.shape[1] for m in matrices)

    def __call__(self, knots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return u and its slope along the phase-encoding axis on the lattice."""
        return apply_along_axes(knots, self.values), apply_along_axes(knots, self.slopes)

    def adjoint(self, values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        """Return the transpose of `__call__`."""
        return apply_along_axes(values, [m.T for m in self.values]) + apply_along_axes(
            slopes, [m.T for m in self.slopes]
        )

    def bend(self, knots: torch.Tensor) -> torch.Tensor:
        """Return half the derivative of the bending energy, knots in and knots out."""
        total = torch.zeros_like(knots)
        for orders, weight in (
            ((2, 0, 0), 1), ((0, 2, 0), 1), ((0, 0, 2), 1),
            ((1, 1, 0), 2), ((1, 0, 1), 2), ((0, 1, 1), 2),
        ):  # fmt: skip
            chosen = [self.energy[i][order] for i, order in enumerate(orders)]
            total = total + weight * apply_along_axes(knots, chosen)
        return total


def estimate_field(
    first: NDArray[Any],
    second: NDArray[Any],
    sizes_mm: NDArray[np.float64],
    axis: int,
    *,
    readout_ratio: float = 1.0,
    start: NDArray[np.float64] | None = None,
    levels: Sequence[FieldLevel] = LEVELS,
) -> Susceptibility:
    """Estimate the displacement field from two b0s with opposite phase encoding.

    Parameters
    ----------
    first, second : (X, Y, Z) array
        On the same conformed grid.
    sizes_mm : (3,) array
    axis : int
        Phase-encoding voxel axis.
    readout_ratio : float
        Readout time of the second over that of the first.
    start : (4, 4) array, optional
        First guess of the motion from the first image to the second, from their headers.
    levels : sequence of FieldLevel
        From coarse to fine.

    Returns
    -------
    susceptibility : Susceptibility
    """
    with single_threaded():
        pair = _Pair(first, second, sizes_mm, axis, readout_ratio)
        pair.motion = np.eye(4) if start is None else start
        coarsest, *finer = levels
        lattice, u = pair.refine(coarsest, None, None)
        for level in finer:
            lattice, u = pair.refine(level, lattice, u)
        return pair.finish(_to_grid(u, lattice.spacing, pair.shape, sizes_mm))


def correlate_aligned(
    first: NDArray[Any],
    second: NDArray[Any],
    sizes_mm: NDArray[np.float64],
    *,
    start: NDArray[np.float64] | None = None,
    levels: Sequence[FieldLevel] = LEVELS,
) -> float:
    """Return the correlation of two b0s over the head that differ by rigid motion alone.

    Parameters
    ----------
    first, second : (X, Y, Z) array
        On the same conformed grid.
    sizes_mm : (3,) array
    start : (4, 4) array, optional
        First guess of the motion from the first image to the second, from their headers.
    levels : sequence of FieldLevel
        From coarse to fine; knots and stiffness do not matter.
    """
    with single_threaded():
        pair = _Pair(first, second, sizes_mm, 0, 1.0)
        pair.motion = np.eye(4) if start is None else start
        for level in levels:
            pair.align(level)
        return pair.finish(torch.zeros(pair.shape)).correlation_after


class _Pair:
    """Two images of one head, and the motion between them."""

    def __init__(
        self,
        first: NDArray[Any],
        second: NDArray[Any],
        sizes_mm: NDArray[np.float64],
        axis: int,
        ratio: float,
    ) -> None:
        # Runs may be scaled differently: compare them in units of their own bright voxels.
        self.images = [_tensor(i / float(np.mean(i[i > np.mean(i)]))) for i in (first, second)]
        self.shape = self.images[0].shape
        self.sizes, self.axis, self.ratio = sizes_mm, axis, ratio
        self.motion = np.eye(4)

    def refine(
        self, level: FieldLevel, before: Lattice | None, field: torch.Tensor | None
    ) -> tuple[Lattice, torch.Tensor]:
        """Improve the field on one level, starting from that of the level before."""
        images = Level(level.voxel_mm, level.fwhm_mm, level.iterations)
        lattice = Lattice(self.shape, self.sizes, images)
        basis = _Basis(lattice.shape, lattice.spacing, level.knot_mm, self.axis)
        knots = torch.zeros(basis.shape)
        if before is not None and field is not None:
            start = _to_grid(field, before.spacing, lattice.shape, lattice.spacing)
            inverse = [torch.linalg.pinv(m.double()).float() for m in basis.values]
            knots = apply_along_axes(start, inverse)
        coefficients = [lattice.sampler.coefficients(image) for image in self.images]
        for _ in range(level.iterations):
            knots = knots + self._step(lattice, basis, coefficients, knots, level.stiffness)
        return lattice, basis(knots)[0]

    def align(self, level: FieldLevel) -> None:
        """Improve the motion on one level, as if there were no field."""
        lattice = Lattice(
            self.shape, self.sizes, Level(level.voxel_mm, level.fwhm_mm, level.iterations)
        )
        coefficients = [lattice.sampler.coefficients(image) for image in self.images]
        still = torch.zeros(lattice.shape)
        first, _ = self.read(lattice, coefficients[0], still, second=False)
        for _ in range(level.iterations):
            second, seen = self.read(lattice, coefficients[1], still, second=True)
            self._move(lattice, second, seen, first - second, range(6))

    def read(
        self, lattice: Lattice, coefficients: torch.Tensor, u: torch.Tensor, *, second: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read an image where the field says, without the Jacobian; and where that is, in mm."""
        seen = lattice.points()
        if second:
            motion = _tensor(self.motion)
            seen = seen @ motion[:3, :3].T + motion[:3, 3]
        seen[:, self.axis] += (-self.ratio if second else 1.0) * u.ravel()
        values = sample_spline(coefficients, lattice.to_voxels(seen))
        return values.reshape(lattice.shape), seen

    def _step(
        self,
        lattice: Lattice,
        basis: _Basis,
        coefficients: Sequence[torch.Tensor],
        knots: torch.Tensor,
        stiffness: float,
    ) -> torch.Tensor:
        """Return the change of the knots; the motion is changed in place."""
        u, slope = basis(knots)
        first, _ = self.read(lattice, coefficients[0], u, second=False)
        second, seen = self.read(lattice, coefficients[1], u, second=True)
        left, right = (1 + slope) * first, (1 - self.ratio * slope) * second
        residual = left - right
        by_value = _derivative(left, self.axis, lattice) + self.ratio * _derivative(
            right, self.axis, lattice
        )
        by_slope = first + self.ratio * second
        weight = stiffness * float((by_value**2).mean()) * _BEND_MM**4

        def normal(change: torch.Tensor) -> torch.Tensor:
            value, slope = basis(change)
            both = by_value * value + by_slope * slope
            return basis.adjoint(by_value * both, by_slope * both) + weight * basis.bend(change)

        downhill = -basis.adjoint(by_value * residual, by_slope * residual)
        change = _conjugate_gradients(normal, downhill - weight * basis.bend(knots))
        # The motion explains what the new field leaves; from the same residual both would answer
        # for the same thing, and change places with every step.
        value, bend = basis(change)
        free = [i for i in range(6) if i != self.axis]
        self._move(lattice, right, seen, residual + by_value * value + by_slope * bend, free)
        return change

    def _move(
        self,
        lattice: Lattice,
        image: torch.Tensor,
        seen: torch.Tensor,
        residual: torch.Tensor,
        free: Sequence[int],
    ) -> None:
        slope = torch.stack([_derivative(image, i, lattice).ravel() for i in range(3)], dim=1)
        design = torch.cat([slope, torch.linalg.cross(seen / RADIUS_MM, slope)], dim=1).double()
        design = design[:, free]
        square = design.T @ design
        ridge = 1e-6 * torch.diagonal(square).mean() * torch.eye(len(free), dtype=torch.float64)
        found = torch.linalg.solve(square + ridge, design.T @ residual.ravel().double())
        delta = np.zeros(6)
        delta[free] = found.numpy()
        self.motion = move(self.motion, delta)

    def finish(self, field: torch.Tensor) -> Susceptibility:
        """Compare the two images, before and after, at the resolution of the scan."""
        lattice = Lattice(self.shape, self.sizes, Level(0.0, 0.0, 0))
        slope = _derivative(field, self.axis, lattice)
        coefficients = [lattice.sampler.coefficients(image) for image in self.images]
        first, _ = self.read(lattice, coefficients[0], field, second=False)
        second, _ = self.read(lattice, coefficients[1], field, second=True)
        left, right = (1 + slope) * first, (1 - self.ratio * slope) * second
        head = (left + right) > 1.0
        return Susceptibility(
            field.numpy(),
            self.motion,
            _correlation(self.images[0][head], self.images[1][head]),
            _correlation(left[head], right[head]),
        )


def _to_grid(
    values: torch.Tensor,
    spacing: NDArray[np.float64],
    shape: Sequence[int],
    new_spacing: NDArray[np.float64],
) -> torch.Tensor:
    """Read a smooth volume on another grid with the same centre."""
    matrices = []
    for m, h, n, s in zip(values.shape, spacing, shape, new_spacing, strict=True):
        positions = (np.arange(n) - (n - 1) / 2) * s / h + (m - 1) / 2
        matrices.append(_tensor(smoothing_matrix(m, np.clip(positions, 0, m - 1), 0.0)))
    return apply_along_axes(values, matrices)


def _derivative(volume: torch.Tensor, axis: int, lattice: Lattice) -> torch.Tensor:
    (slope,) = torch.gradient(volume, spacing=float(lattice.spacing[axis]), dim=axis)
    return slope


def _correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first, second]).double())[0, 1])


def _conjugate_gradients(
    apply: Callable[[torch.Tensor], torch.Tensor], right: torch.Tensor
) -> torch.Tensor:
    """Solve a symmetric positive system that is only known by what it does to a vector."""
    solution = torch.zeros_like(right)
    rest = right.clone()
    direction = rest
    square = first = torch.sum(rest.double() ** 2)
    for _ in range(_CG_STEPS):
        if square <= _CG_TOLERANCE**2 * first or first == 0:
            break
        image = apply(direction)
        length = float(square / torch.sum(direction.double() * image.double()))
        solution = solution + length * direction
        rest = rest - length * image
        before, square = square, torch.sum(rest.double() ** 2)
        direction = rest + float(square / before) * direction
    return solution


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(array), dtype=torch.float32)
