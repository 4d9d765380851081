r"""First-order responses of a whole grid as a few dense matrix products.

The responses of `steerable_kernels` are linear in the field: for each input frequency n

    T[p, r, c] = sum_j A_n[p, r, j] z_j[c],        r over (output frequency, kind, ring, Re/Im),

with A_n[p, r, j] = scale E[p, j, ring, f] exp(i n tau[p, j]) (the integral of Eq. (1), with the
transport t_(p <- q) inside), written in real numbers. A point has about 19 neighbours j, and the
neighbourhoods of neighbouring points overlap: the points are cut into compact blocks, the 40 to
100 inputs that a block needs are gathered once (whole rows, a plain copy), and A_n is a small
dense matrix per block. Dense blocks do two to four times the arithmetic of a sparse product and
are several times faster, because they run at the speed of matrix multiplication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bids_gevnet.nn.geometry import GeometryModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.nn.steerable_kernels import Response
    from bids_gevnet.sphere.frames import FloatArray, IntArray
    from bids_gevnet.sphere.quadrature import RingStencil


def compact_blocks(points: FloatArray, n_blocks: int) -> IntArray:
    """Cut points into n_blocks compact sets of nearly equal size, by repeated halving.

    Parameters
    ----------
    points : (n, 3) array
    n_blocks : int
        A power of two.

    Returns
    -------
    (n_blocks, size) int array
        Indices; shorter blocks are filled up by repeating their first point.
    """
    blocks = [np.arange(len(points))]
    while len(blocks) < n_blocks:
        halves = []
        for block in blocks:
            centred = points[block] - points[block].mean(axis=0)
            axis = np.linalg.svd(centred, full_matrices=False)[2][0]  # direction of largest extent
            order = block[np.argsort(centred @ axis, kind="stable")]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        blocks = halves
    size = max(len(block) for block in blocks)
    filled = [np.append(b, np.full(size - len(b), b[0], dtype=int)) for b in blocks]
    return np.stack(filled).astype(np.int64)


def choose_n_blocks(n_points: int, size: int = 11) -> int:
    """Power of two that makes blocks of about `size` points (6 and 24 were slower)."""
    return int(2 ** max(0, round(np.log2(n_points / size))))


@dataclass(frozen=True)
class BlockLayout:
    """Which points a block computes and which it gathers.

    Parameters
    ----------
    targets : (n_blocks, size) int array
    sources : (n_blocks, width) int array
        Filled up with 0, whose weights are zero.
    place : (n_target,) int array
        Where each target stands in the flattened `targets`.
    """

    targets: IntArray
    sources: IntArray
    place: IntArray

    @classmethod
    def build(cls, points: FloatArray, stencil: RingStencil, n_blocks: int) -> BlockLayout:
        """Gather list of each block from the sparsity of the stencil."""
        targets = compact_blocks(points, n_blocks)
        place = np.empty(stencil.shape[0], dtype=np.int64)
        place[targets[:, ::-1].ravel()] = (
            np.arange(targets.size).reshape(targets.shape)[:, ::-1].ravel()
        )
        starts = np.searchsorted(stencil.rows, np.arange(stencil.shape[0] + 1))
        needed = [
            np.unique(np.concatenate([stencil.cols[starts[p] : starts[p + 1]] for p in block]))
            for block in targets
        ]
        width = max(len(cols) for cols in needed)
        sources = np.stack([np.append(c, np.zeros(width - len(c), dtype=int)) for c in needed])
        return cls(targets, sources.astype(np.int64), place)

    def dense(self, stencil: RingStencil, values: FloatArray) -> FloatArray:
        """Arrange values (k, a, b) of the stencil's entries as (n_blocks, size*a, width*b)."""
        n_blocks, size = self.targets.shape
        width = self.sources.shape[1]
        a, b = values.shape[1:]
        out = np.zeros((n_blocks, size, a, width, b))
        starts = np.searchsorted(stencil.rows, np.arange(stencil.shape[0] + 1))
        for k in range(n_blocks):
            column = np.full(stencil.shape[1], -1)
            # Reversed so that a real source wins over the filling zeros.
            column[self.sources[k][::-1]] = np.arange(width)[::-1]
            for s, p in enumerate(self.targets[k]):
                if self.place[p] != k * size + s:
                    continue  # filling: zero rows add nothing to any gradient
                entries = slice(starts[p], starts[p + 1])
                cols = column[stencil.cols[entries]]
                out[k, s][:, cols] = values[entries].transpose(1, 0, 2)
        return out.reshape(n_blocks, size * a, width * b)


def response_values(
    stencil: RingStencil, n: int, rows: Sequence[Response], scales: Sequence[float]
) -> FloatArray:
    """Real matrices of the responses from rho_n, one per entry of the stencil.

    Returns
    -------
    (k, sum of components, 1 or 2) array
        Re and Im of scale E exp(i n tau) z, or of scale E conj(exp(i n tau) z), as maps of
        (Re z, Im z).
    """
    parts = []
    for response, scale in zip(rows, scales, strict=True):
        sign = -1 if response.conjugate else 1
        value = scale * stencil.frequency(response.frequency)[:, response.ring]
        value = value * np.exp(1j * sign * n * stencil.angles)
        matrix = np.stack(
            [
                np.stack([value.real, -sign * value.imag], axis=-1),
                np.stack([value.imag, sign * value.real], axis=-1),
            ],
            axis=1,
        )
        parts.append(matrix[:, : response.components, : 1 if n == 0 else 2])
    return np.concatenate(parts, axis=1)


class BlockedOperator(GeometryModule):
    """Blocks of dense matrices, one set per input frequency, that act on gathered points.

    The matrices are buffers that move with the module and are not saved in its state dict.

    Parameters
    ----------
    points : (n_target, 3) array
        Positions, used to cut the targets into compact blocks.
    stencil : RingStencil
    values : dict of int to (k, a_n, 1 or 2) array
        For each input frequency n, the real matrix of each entry of the stencil.
    n_blocks : int or None
        A power of two; None chooses.
    """

    sources: Tensor
    targets: Tensor
    place: Tensor

    def __init__(
        self,
        points: FloatArray,
        stencil: RingStencil,
        values: dict[int, FloatArray],
        n_blocks: int | None = None,
    ) -> None:
        super().__init__()
        layout = BlockLayout.build(points, stencil, n_blocks or choose_n_blocks(len(points)))
        self.n_target, self.n_source = stencil.shape
        self.n_blocks, self.size = layout.targets.shape
        self.width = layout.sources.shape[1]
        self.frequencies = tuple(values)
        self.register_buffer("sources", torch.from_numpy(layout.sources), persistent=False)
        self.register_buffer("targets", torch.from_numpy(layout.targets), persistent=False)
        self.register_buffer("place", torch.from_numpy(layout.place), persistent=False)
        for n, value in values.items():
            self.register_exact(f"matrix{n}", layout.dense(stencil, value))
        # The same as lists of neighbours, for the compiled kernels: CPU and float32 only, so that
        # they need not follow the module.
        starts = np.searchsorted(stencil.rows, np.arange(self.n_target + 1))
        self.index = [
            torch.from_numpy(array.astype(np.int32))
            for array in (starts, stencil.cols, np.argsort(layout.place))
        ]
        self._entries = {
            n: torch.from_numpy(np.ascontiguousarray(value.transpose(0, 2, 1), dtype=np.float32))
            for n, value in values.items()
        }

    def matrix(self, n: int, dtype: torch.dtype) -> Tensor:
        """(n_blocks, size * a_n, width * components) matrices."""
        return self.get_buffer(f"matrix{n}").to(dtype)

    def entries(self, n: int) -> Tensor:
        """(entries, components, a_n) float32 matrices of the pairs of neighbours in `index`."""
        return self._entries[n]
