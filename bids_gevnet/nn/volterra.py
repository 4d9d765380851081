r"""The convolution of Definition 3.3, orders 1 and 2, as one fused PyTorch operator.

For each input frequency n, with T[p, i, c] the responses of `operator` (rows i sorted by output
frequency, the J rows to frequency 0 first; those are the real factors K_0n of Proposition 3.5),

    T[p, i, c] = sum_j A_n[p, i, j] x_j[c],                                          Eq. (1)
    Z[p, i, 0, c] = T[p, i, c],      Z[p, i, 1 + k, c] = T[p, i, c] T[p, k, c],   k < J,
    out_m[p, o] = sum over n, rows i of frequency m, u and c of W_mn[o, i, u, c] Z[p, i, u, c].

Definition 3.3 for k = 2 is a double integral over pairs of neighbours; with the kernels of
Proposition 3.5 it factorises into T_i T_k, exactly, and is linear in the number of neighbours.
The first order has no factors (J = 0), and Z = T.

T is 6 and Z is 26 times larger than the input. Both are made for a few points and a part of the
batch at a time, so that they stay in the processor's cache, and are made again in the backward
pass: the input is all that is kept. Forward and backward are registered as operators:
`torch.compile` takes each as one node, without a graph break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH = 64  # part of the batch worked on at a time; long enough for vector units
_CACHE_BYTES = 4_000_000  # of Z


@dataclass(frozen=True)
class Plan:
    """Sizes of a convolution, in a form that an operator's schema can carry.

    Parameters
    ----------
    components, channels, factors : list of int
        For each input frequency: real numbers per channel (1 or 2), channels, J.
    rows : list of int
        For each input frequency, then each output frequency: rows of T.
    outs : list of int
        For each output frequency: rows of the output, 0 where only the factors need T.
    """

    components: list[int]
    channels: list[int]
    factors: list[int]
    rows: list[int]
    outs: list[int]

    def pieces(self, weight: Tensor) -> list[list[tuple[slice, slice, Tensor]]]:
        """For each input frequency, a list of (rows of Z, rows of the output, matrix W_mn)."""
        found, at = [], 0
        for k, (channels, factors) in enumerate(zip(self.channels, self.factors, strict=True)):
            parts, row, out = [], 0, 0
            for m, o in enumerate(self.outs):
                r = self.rows[k * len(self.outs) + m]
                width = r * (1 + factors) * channels
                if o:
                    matrix = weight[at : at + o * width].view(o, width)
                    parts.append((slice(row, row + r), slice(out, out + o), matrix))
                    at += o * width
                row, out = row + r, out + o
            found.append(parts)
        return found

    def spans(self) -> list[slice]:
        """Where each input frequency stands along dim."""
        found, at = [], 0
        for components, channels in zip(self.components, self.channels, strict=True):
            found.append(slice(at, at + components * channels))
            at += components * channels
        return found

    def group(self, n_rows: list[int], size: int, batch: int, element: int) -> int:
        """How many blocks to work on at a time."""
        per_point = max(
            r * (1 + j) * c for r, j, c in zip(n_rows, self.factors, self.channels, strict=True)
        )
        return max(1, _CACHE_BYTES // (per_point * size * batch * element))


def _walk(batch: int, n_blocks: int, group: int) -> Iterator[tuple[slice, slice]]:
    """Parts of the batch, and within each all groups of blocks."""
    for b in range(0, batch, _BATCH):
        for k in range(0, n_blocks, group):
            yield slice(b, min(b + _BATCH, batch)), slice(k, min(k + group, n_blocks))


def _responses(
    x: Tensor, span: slice, sources: Tensor, matrix: Tensor, channels: int, size: int
) -> Tensor:
    """T of some blocks: (blocks * size, rows, channels, batch).

    Parameters
    ----------
    x : (points, dim, batch) tensor
    sources : (blocks, width) tensor
    matrix : (blocks, size * rows, width * components) tensor
    """
    gathered = x[:, span].index_select(0, sources.flatten())
    t = torch.bmm(matrix, gathered.view(len(sources), matrix.shape[2], -1))
    return t.view(t.shape[0] * size, -1, channels, x.shape[2])


def _products(t: Tensor, factors: int) -> Tensor:
    """Z of the module's docstring: (points, rows, 1 + factors, channels, batch)."""
    if factors == 0:
        return t[:, :, None]
    z = t.new_empty(t.shape[0], t.shape[1], 1 + factors, *t.shape[2:])
    z[:, :, 0] = t
    torch.mul(t[:, :, None], t[:, None, :factors], out=z[:, :, 1:])
    return z


def _times(matrix: Tensor, z: Tensor) -> Tensor:
    """Matrix (a, b) times each point of z (points, b, batch)."""
    return torch.bmm(matrix.expand(len(z), *matrix.shape), z)


@torch.library.custom_op("bids_gevnet::volterra", mutates_args=())
def volterra(
    x: Tensor,
    weight: Tensor,
    matrices: list[Tensor],
    sources: Tensor,
    targets: Tensor,
    components: list[int],
    channels: list[int],
    factors: list[int],
    rows: list[int],
    outs: list[int],
) -> Tensor:
    """Convolution of orders 1 (no factors) and 2.

    Parameters
    ----------
    x : (points, dim, batch) tensor
    weight : (n,) tensor
        All W_mn flattened, one after the other, n slowest.
    matrices : list of (blocks, size * rows, width * components) tensors
        A_n of the blocks.
    sources : (blocks, width) tensor
        Points that each block gathers.
    targets : (blocks, size) tensor
        Points that each block computes.
    components, channels, factors, rows, outs : list of int
        See `Plan`.

    Returns
    -------
    (blocks * size, sum of outs, batch) tensor
        In the order of the blocks.
    """
    plan = Plan(components, channels, factors, rows, outs)
    size, batch = targets.shape[1], x.shape[2]
    out = x.new_empty(targets.numel(), sum(outs), batch)
    pieces, spans = plan.pieces(weight), plan.spans()
    n_rows = [m.shape[1] // size for m in matrices]
    group = plan.group(n_rows, size, min(batch, _BATCH), x.element_size())
    x_part, at = x, None
    for part, blocks in _walk(batch, len(targets), group):
        if part != at and batch > _BATCH:
            x_part, at = x[:, :, part].contiguous(), part
        total = None
        for k, matrix in enumerate(matrices):
            t = _responses(x_part, spans[k], sources[blocks], matrix[blocks], channels[k], size)
            z = _products(t, factors[k])
            done = [_times(w, z[:, z_rows].flatten(1, 3)) for z_rows, _, w in pieces[k]]
            total = (
                done if total is None else [a.add_(b) for a, b in zip(total, done, strict=True)]
            )
        here = out[blocks.start * size : blocks.stop * size]
        assert total is not None
        for (_, out_rows, _), value in zip(pieces[0], total, strict=True):
            here[:, out_rows, part] = value
    return out


@torch.library.custom_op("bids_gevnet::volterra_backward", mutates_args=())
def volterra_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    matrices: list[Tensor],
    sources: Tensor,
    targets: Tensor,
    components: list[int],
    channels: list[int],
    factors: list[int],
    rows: list[int],
    outs: list[int],
) -> tuple[Tensor, Tensor]:
    """Gradients of `volterra` in x and weight; the products are made again."""
    plan = Plan(components, channels, factors, rows, outs)
    size, batch = targets.shape[1], x.shape[2]
    grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
    pieces, grad_pieces, spans = plan.pieces(weight), plan.pieces(grad_weight), plan.spans()
    n_rows = [m.shape[1] // size for m in matrices]
    group = max(1, plan.group(n_rows, size, min(batch, _BATCH), x.element_size()) // 2)
    x_part, grad_part, at = x, grad, None
    for part, blocks in _walk(batch, len(targets), group):
        if part != at:
            x_part, grad_part = x[:, :, part].contiguous(), grad[:, :, part].contiguous()
            accumulated = torch.zeros_like(x_part)
            at = part
        g_here = grad_part[blocks.start * size : blocks.stop * size]
        for k, matrix in enumerate(matrices):
            t = _responses(x_part, spans[k], sources[blocks], matrix[blocks], channels[k], size)
            grad_t = _mixing_backward(t, g_here, factors[k], pieces[k], grad_pieces[k])
            back = torch.bmm(
                matrix[blocks].transpose(1, 2),
                grad_t.view(-1, matrix.shape[1], grad_t.shape[2] * grad_t.shape[3]),
            )
            back = back.view(-1, components[k] * channels[k], x_part.shape[2])
            accumulated[:, spans[k]].index_add_(0, sources[blocks].flatten(), back)
        if blocks.stop == len(targets):
            grad_x[:, :, part] = accumulated
    return grad_x, grad_weight


def _mixing_backward(
    t: Tensor,
    grad: Tensor,
    factors: int,
    pieces: list[tuple[slice, slice, Tensor]],
    grad_pieces: list[tuple[slice, slice, Tensor]],
) -> Tensor:
    """Gradient in T; adds those of the weights to grad_pieces.

    Parameters
    ----------
    t : (points, rows, channels, batch) tensor
    grad : (points, sum of outs, batch) tensor
    """
    z = _products(t, factors)
    # Rows that only serve as factors get no gradient from the mixing.
    covered = sum(rows.stop - rows.start for rows, _, _ in pieces) == t.shape[1]
    grad_z = torch.empty_like(z) if covered else torch.zeros_like(z)
    for (z_rows, out_rows, matrix), (_, _, grad_matrix) in zip(pieces, grad_pieces, strict=True):
        g = grad[:, out_rows]
        grad_matrix.add_(torch.bmm(g, z[:, z_rows].flatten(1, 3).transpose(1, 2)).sum(0))
        grad_z[:, z_rows] = _times(matrix.t(), g).view(grad_z[:, z_rows].shape)
    if factors == 0:
        return grad_z[:, :, 0]
    # d(T_i T_k) = T_k dT_i + T_i dT_k, row by row: no temporary of the size of Z.
    grad_t = torch.addcmul(grad_z[:, :, 0], grad_z[:, :, 1], t[:, 0, None])
    for k in range(1, factors):
        grad_t.addcmul_(grad_z[:, :, 1 + k], t[:, k, None])
    for i in range(t.shape[1]):
        grad_t[:, :factors].addcmul_(grad_z[:, i, 1:], t[:, i, None])
    return grad_t


@volterra.register_fake
def _(x: Tensor, *args: Any) -> Tensor:
    targets, outs = args[3], args[-1]
    return x.new_empty(targets.shape[0] * targets.shape[1], sum(outs), x.shape[2])


@volterra_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(x), torch.empty_like(weight)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, matrices, sources, targets, *sizes = inputs
    ctx.save_for_backward(x, weight, sources, targets, *matrices)
    ctx.sizes = sizes


def _apply_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, sources, targets, *matrices = ctx.saved_tensors
    grad_x, grad_weight = torch.ops.bids_gevnet.volterra_backward(
        grad, x, weight, matrices, sources, targets, *ctx.sizes
    )
    return grad_x, grad_weight, [None] * len(matrices), None, None, *([None] * len(ctx.sizes))


volterra.register_autograd(_apply_backward, setup_context=_setup_context)
