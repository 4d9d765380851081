"""The regular nonlinearity with its normalisation, and moments, by compiled kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bids_gevnet.compiled.library import call, integers, pointer, threads

COEFFICIENTS = (1, 3, 5)  # per channel: bandlimits 0, 1 and 2


@torch.library.custom_op("bids_gevnet::compiled_relu", mutates_args=())
def compiled_relu(x: Tensor, affine: Tensor, synthesis: Tensor) -> Tensor:
    """Normalise, sample, ReLU, and back to coefficients; see `RegularNonlinearity`.

    Parameters
    ----------
    x : (points, coefficients, channels, batch) float32 tensor
    affine : (2, channels) float32 tensor
        Scale of all coefficients, shift of the scalar.
    synthesis : (N, coefficients) float32 tensor

    Returns
    -------
    (points, coefficients, channels, batch) tensor
    """
    x, affine, synthesis = x.contiguous(), affine.contiguous(), synthesis.contiguous()
    out = torch.empty_like(x)
    call(
        "regular_relu",
        pointer(x),
        pointer(affine[0]),
        pointer(affine[1]),
        pointer(synthesis),
        integers([*x.shape, len(synthesis)]),
        threads(),
        pointer(out),
    )
    return out


@torch.library.custom_op("bids_gevnet::compiled_relu_backward", mutates_args=())
def compiled_relu_backward(
    grad: Tensor, x: Tensor, affine: Tensor, synthesis: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of `compiled_relu` in x and affine."""
    grad, x = grad.contiguous(), x.contiguous()
    affine, synthesis = affine.contiguous(), synthesis.contiguous()
    grad_x, grad_affine = torch.empty_like(x), torch.empty_like(affine)
    call(
        "regular_relu_backward",
        pointer(grad),
        pointer(x),
        pointer(affine[0]),
        pointer(affine[1]),
        pointer(synthesis),
        integers([*x.shape, len(synthesis)]),
        threads(),
        pointer(grad_x),
        pointer(grad_affine),
    )
    return grad_x, grad_affine


@torch.library.custom_op("bids_gevnet::compiled_moments", mutates_args=())
def compiled_moments(x: Tensor, weights: Tensor) -> Tensor:
    """Mean and variance over the first and the last axis.

    Parameters
    ----------
    x : (n, rows, m) float32 tensor
        Not empty.
    weights : (n,) float32 tensor
        What each entry of the first axis counts; none at all if all count the same.

    Returns
    -------
    moments : (2, rows) float64 tensor
    """
    x, weights = x.contiguous(), weights.contiguous()
    moments = x.new_empty(2, x.shape[1], dtype=torch.float64)
    call(
        "row_moments",
        pointer(x),
        pointer(weights if len(weights) else None),
        integers(x.shape),
        threads(),
        pointer(moments),
    )
    return moments


def _contiguous_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@compiled_relu.register_fake
def _(x: Tensor, affine: Tensor, synthesis: Tensor) -> Tensor:  # noqa: ARG001
    return _contiguous_like(x)


@compiled_relu_backward.register_fake
def _(
    grad: Tensor,  # noqa: ARG001
    x: Tensor,
    affine: Tensor,
    synthesis: Tensor,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    return _contiguous_like(x), _contiguous_like(affine)


@compiled_moments.register_fake
def _(x: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG001
    return x.new_empty(2, x.shape[1], dtype=torch.float64)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    grad_x, grad_affine = torch.ops.bids_gevnet.compiled_relu_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_affine, None


def _save_moments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _moments_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    x, weights, moments = ctx.saved_tensors
    total = x.shape[2] * (weights.double().sum() if len(weights) else len(x))
    # d mean = w dx / total, d var = 2 w (x - mean) dx / total
    slope = 2 * grad[1] / total
    level = grad[0] / total - slope * moments[0]
    back = torch.addcmul(level.to(x.dtype)[:, None], x, slope.to(x.dtype)[:, None])
    return (back * weights[:, None, None] if len(weights) else back), None


compiled_relu.register_autograd(_relu_backward, setup_context=_save)
compiled_moments.register_autograd(_moments_backward, setup_context=_save_moments)
