"""A layer of the kernel network up to its whitening, pool(|x| kappa(Z^T x / |x|)), compiled."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from bids_gevnet.compiled.library import call, integers, pointer, threads


@torch.library.custom_op("bids_gevnet::compiled_encode", mutates_args=())
def compiled_encode(
    x: Tensor,
    filters: Tensor,
    stride: int,
    linear: bool,  # noqa: FBT001
    degree: int,
    offset: float,
) -> Tensor:
    """Encode and pool; see `CKNLayer`.

    Parameters
    ----------
    x : (n, n_in, x, y, z) float32 tensor
    filters : (n_out, n_in, size, size, size) float32 tensor
    stride : int
        s of the pooling.
    linear : bool
        Whether kappa(t) = t.
    degree, offset
        kappa(t) = (offset + t)^degree.

    Returns
    -------
    (n, n_out, ceil(x/s), ceil(y/s), ceil(z/s)) tensor
    """
    x, filters = x.contiguous(), filters.contiguous()
    out = x.new_empty(_out_shape(x, filters, stride))
    call(
        "encode",
        pointer(x),
        pointer(filters),
        _sizes(x, filters, stride, linear=linear, degree=degree),
        ctypes.c_float(offset),
        threads(),
        pointer(out),
    )
    return out


@torch.library.custom_op("bids_gevnet::compiled_encode_backward", mutates_args=())
def compiled_encode_backward(
    grad: Tensor,
    x: Tensor,
    filters: Tensor,
    stride: int,
    linear: bool,  # noqa: FBT001
    degree: int,
    offset: float,
    needs_x: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor]:
    """Gradients of `compiled_encode` in x, empty unless it is needed, and in the filters."""
    grad, x, filters = grad.contiguous(), x.contiguous(), filters.contiguous()
    grad_x = torch.empty(x.shape if needs_x else 0, dtype=x.dtype)
    grad_filters = torch.empty(filters.shape, dtype=filters.dtype)
    call(
        "encode_backward",
        pointer(grad),
        pointer(x),
        pointer(filters),
        _sizes(x, filters, stride, linear=linear, degree=degree),
        ctypes.c_float(offset),
        threads(),
        pointer(grad_x if needs_x else None),
        pointer(grad_filters),
    )
    return grad_x, grad_filters


def _sizes(
    x: Tensor, filters: Tensor, stride: int, *, linear: bool, degree: int
) -> ctypes.Array[ctypes.c_int64]:
    n, n_in, *shape = x.shape
    return integers([n, n_in, len(filters), *shape, filters.shape[2], stride, int(linear), degree])


def _out_shape(x: Tensor, filters: Tensor, stride: int) -> tuple[int, ...]:
    return len(x), len(filters), *(-(-side // stride) for side in x.shape[2:])


@compiled_encode.register_fake
def _(x: Tensor, filters: Tensor, stride: int, *_: Any) -> Tensor:
    return x.new_empty(_out_shape(x, filters, stride))


@compiled_encode_backward.register_fake
def _(grad: Tensor, x: Tensor, filters: Tensor, *options: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return x.new_empty(x.shape if options[-1] else 0), filters.new_empty(filters.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, filters, *options = inputs
    ctx.save_for_backward(x, filters)
    ctx.options = options


def _apply_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    needs_x = ctx.needs_input_grad[0]
    grad_x, grad_filters = torch.ops.bids_gevnet.compiled_encode_backward(
        grad, *ctx.saved_tensors, *ctx.options, needs_x
    )
    return grad_x if needs_x else None, grad_filters, *([None] * len(ctx.options))


compiled_encode.register_autograd(_apply_backward, setup_context=_save)
