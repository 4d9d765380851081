"""The convolution of `fused_volterra`, orders 1 and 2, by compiled kernels.

Takes the operator as a list of neighbours instead of dense blocks, and gives the points in their
own order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bids_gevnet.compiled.library import call, integers, number, pointer, pointers, threads


@torch.library.custom_op("bids_gevnet::compiled_volterra", mutates_args=())
def compiled_volterra(
    x: Tensor, weight: Tensor, entries: list[Tensor], index: list[Tensor], sizes: list[int]
) -> Tensor:
    """Convolution of orders 1 (no factors) and 2.

    Parameters
    ----------
    x : (points, dim, batch) float32 tensor
    weight : (n,) float32 tensor
        All W_mn flattened, one after the other, n slowest.
    entries : list of (entries, components, rows) float32 tensors
        A_n of each pair of neighbours.
    index : list of int32 tensors
        Where the neighbours of each point start, (points + 1,); the neighbours, (entries,); the
        order in which to go through the points, near ones together, (points,).
    sizes : list of int
        Numbers of output points, inputs and outputs, then components, channels, factors, rows and
        outs of `fused_volterra.Plan`.

    Returns
    -------
    (points, sum of outs, batch) tensor
    """
    x, weight = x.contiguous(), weight.contiguous()
    out = x.new_empty(_out_shape(x, sizes))
    call(
        "volterra_forward",
        pointer(x),
        pointer(weight),
        integers([len(x), *sizes]),
        pointers(index),
        pointers(entries),
        number(x.shape[2]),
        threads(),
        pointer(out),
    )
    return out


@torch.library.custom_op("bids_gevnet::compiled_volterra_backward", mutates_args=())
def compiled_volterra_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    entries: list[Tensor],
    index: list[Tensor],
    sizes: list[int],
    needs_x: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor]:
    """Gradients of `compiled_volterra` in x, empty unless it is needed, and in weight."""
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    grad_x = torch.empty_like(x) if needs_x else x.new_empty(0)
    grad_weight = torch.empty_like(weight)
    call(
        "volterra_backward",
        pointer(grad),
        pointer(x),
        pointer(weight),
        integers([len(x), *sizes]),
        pointers(index),
        pointers(entries),
        number(x.shape[2]),
        threads(),
        pointer(grad_x if needs_x else None),
        pointer(grad_weight),
    )
    return grad_x, grad_weight


def _out_shape(x: Tensor, sizes: list[int]) -> tuple[int, int, int]:
    n_points, _, n_outs = sizes[:3]
    return n_points, sum(sizes[len(sizes) - n_outs :]), x.shape[2]


@compiled_volterra.register_fake
def _(x: Tensor, weight: Tensor, entries: Any, index: Any, sizes: list[int]) -> Tensor:  # noqa: ARG001
    return x.new_empty(_out_shape(x, sizes))


@compiled_volterra_backward.register_fake
def _(
    grad: Tensor,  # noqa: ARG001
    x: Tensor,
    weight: Tensor,
    entries: Any,  # noqa: ARG001
    index: Any,  # noqa: ARG001
    sizes: Any,  # noqa: ARG001
    needs_x: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor]:
    contiguous = torch.empty_like(x, memory_format=torch.contiguous_format)
    return contiguous if needs_x else x.new_empty(0), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, entries, index, sizes = inputs
    ctx.save_for_backward(x, weight, *entries, *index)
    ctx.n_entries, ctx.sizes = len(entries), sizes


def _apply_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, *rest = ctx.saved_tensors
    entries, index = rest[: ctx.n_entries], rest[ctx.n_entries :]
    needs_x = ctx.needs_input_grad[0]
    grad_x, grad_weight = torch.ops.bids_gevnet.compiled_volterra_backward(
        grad, x, weight, entries, index, ctx.sizes, needs_x
    )
    nothing = [None] * len(entries), [None] * len(index), None
    return grad_x if needs_x else None, grad_weight, *nothing


compiled_volterra.register_autograd(_apply_backward, setup_context=_save)
