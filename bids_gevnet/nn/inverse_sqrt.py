"""Inverse square root of a symmetric matrix, with gradients of any order at any spectrum.

    S = (K + eps^2 I)^(-1/2) = V diag(1 / r_i) V^T,    r_i = sqrt(lambda_i + eps^2),

for K = V diag(lambda) V^T positive semidefinite. `eps` is the smallest value a square root r_i can
take; a floor inside the root, unlike sqrt(lambda) + eps, keeps S differentiable where an
eigenvalue vanishes.

The derivative of an eigenvalue function f in direction H is V (f[lambda_i, lambda_j] * V^T H V)
V^T with the divided differences f[a, b] = (f(a) - f(b)) / (a - b) (Daleckii and Krein). For
f = 1/r they are, in closed form,

    f[lambda_i, lambda_j] = -1 / (r_i r_j (r_i + r_j)),

finite for equal and for vanishing eigenvalues, where the derivative of the eigenvectors is not.
In matrix form: the gradient X of K from the gradient G of S solves the Sylvester equation
R X + X R = -S G S with R = S^(-1). The solution of that equation has a gradient of the same form,
so the code below can be differentiated again and again.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


class _Sylvester(torch.autograd.Function):
    """X such that R X + X R = Y, for a symmetric positive definite R."""

    @staticmethod
    def forward(ctx: Any, R: Tensor, Y: Tensor) -> Tensor:
        r, V = torch.linalg.eigh(R)
        X: Tensor = V @ (V.mT @ Y @ V / (r[..., :, None] + r[..., None, :])) @ V.mT
        ctx.save_for_backward(R, X)
        return X

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        R, X = ctx.saved_tensors
        grad_Y = _Sylvester.apply(R, grads[0])  # type: ignore[no-untyped-call]
        grad_R = -(grad_Y @ X.mT + X.mT @ grad_Y)
        return (grad_R + grad_R.mT) / 2, grad_Y


class _InverseSqrt(torch.autograd.Function):
    """A^(-1/2) of a symmetric positive definite A."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        eigenvalues, V = torch.linalg.eigh(A)
        S: Tensor = (V * eigenvalues.rsqrt()[..., None, :]) @ V.mT
        ctx.save_for_backward(A, S)
        return S

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        A, S = ctx.saved_tensors
        G = (grads[0] + grads[0].mT) / 2
        R = A @ S  # commute, so symmetric up to rounding
        return cast(
            "Tensor",
            _Sylvester.apply((R + R.mT) / 2, -S @ G @ S),  # type: ignore[no-untyped-call]
        )


def inverse_sqrt(K: Tensor, eps: float) -> Tensor:
    """(K + eps^2 I)^(-1/2), differentiable to any order.

    Parameters
    ----------
    K : (..., n, n) tensor
        Symmetric positive semidefinite; its eigenvalues may repeat or vanish.
    eps : float
        The smallest square root of an eigenvalue; positive unless K is well conditioned.

    Returns
    -------
    S : (..., n, n) tensor
        In the dtype of K; computed in float64, where rounding stays far below eps^2.
    """
    wide = K.double()
    identity = torch.eye(K.shape[-1], dtype=wide.dtype, device=K.device)
    A = (wide + wide.mT) / 2 + eps**2 * identity
    return cast("Tensor", _InverseSqrt.apply(A).to(K.dtype))  # type: ignore[no-untyped-call]
