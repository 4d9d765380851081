"""Three-dimensional convolution a few rows at a time, for what the compiled kernels do not take.

On a CPU the library writes out the patch of every voxel before it multiplies, 27 numbers a voxel
and channel: 61 MB for one volume of the paper's size and 4 times that for 4 channels. A few rows
at a time their patches fit in the processor's cache, the time is the same, and the memory does
not grow with the volume.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_PATCHES = 20_000  # voxels times channels at a time: 2 MB of patches of 27 numbers


def convolve(x: Tensor, filters: Tensor, most: int = _PATCHES) -> Tensor:
    """Correlate volumes with filters, zeros outside.

    Parameters
    ----------
    x : (n, n_in, x, y, z) tensor
    filters : (n_out, n_in, size, size, size) tensor
        Of odd size.
    most : int
        Voxels times channels at a time.

    Returns
    -------
    y : (n, n_out, x, y, z) tensor
    """
    depth = max(1, most // max(1, x.shape[0] * x.shape[1] * x.shape[3] * x.shape[4]))
    if depth >= x.shape[2] or x.device.type != "cpu":
        return F.conv3d(x, filters, padding=filters.shape[2] // 2)
    return cast("Tensor", _ByRows.apply(x, filters, depth))  # type: ignore[no-untyped-call]


def _rows(x: Tensor, start: int, depth: int, half: int) -> tuple[Tensor, slice, slice]:
    """Rows that some outputs see, zeros around the volume; where they are in it and in x."""
    n = x.shape[2]
    end = min(start + depth, n)
    low, high = max(0, start - half), min(n, end + half)
    before, after = low - (start - half), end + half - high
    padded = F.pad(x[:, :, low:high], (0, 0, 0, 0, before, after))
    return padded, slice(before, before + high - low), slice(low, high)


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, filters: Tensor, depth: int) -> Tensor:
        ctx.save_for_backward(x, filters)
        ctx.depth = depth
        half = filters.shape[2] // 2
        y = x.new_empty(0)
        for start in range(0, x.shape[2], depth):
            part = F.conv3d(_rows(x, start, depth, half)[0], filters, padding=(0, half, half))
            if start == 0:  # whose type is known only now: autocast decides it
                y = part.new_empty(len(x), len(filters), *x.shape[2:])
            y[:, :, start : start + depth] = part
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, filters = ctx.saved_tensors
        half = filters.shape[2] // 2
        # Under autocast the products are of lower precision than x and the filters.
        weights = filters.to(grad.dtype)
        needs_x = ctx.needs_input_grad[0]
        grad_x = torch.zeros_like(x) if needs_x else None
        grad_filters = torch.zeros_like(filters)
        for start in range(0, x.shape[2], ctx.depth):
            seen, inside, rows = _rows(x, start, ctx.depth, half)
            part_x, part_filters, _ = torch.ops.aten.convolution_backward(
                grad[:, :, start : start + ctx.depth],
                seen.to(grad.dtype),
                weights,
                None,
                [1, 1, 1],
                [0, half, half],
                [1, 1, 1],
                False,
                [0, 0, 0],
                1,
                [needs_x, True, False],
            )
            grad_filters += part_filters
            if grad_x is not None:
                grad_x[:, :, rows] += part_x[:, :, inside]
        return grad_x, grad_filters, None
