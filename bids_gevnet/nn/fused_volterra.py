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

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_BATCH = 128  # part of the batch worked on at a time; shorter ones starve networks of 3 channels
_CACHE_BYTES = 4_000_000  # of Z
_GPU_BATCH, _GPU_BYTES = 65_536, 500_000_000  # a GPU wants few, large kernels instead


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

    def lists(self) -> tuple[list[int], ...]:
        """All sizes, in the order in which the operators take them."""
        return self.components, self.channels, self.factors, self.rows, self.outs

    def pieces(self, weight: Tensor) -> list[list[tuple[slice, slice, Tensor]]]:
        """For each input frequency, a list of (rows of Z, rows of the output, matrix W_mn)."""
        by_frequency, at = [], 0
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
            by_frequency.append(parts)
        return by_frequency

    def spans(self) -> list[slice]:
        """Where each input frequency lies along dim."""
        spans, at = [], 0
        for components, channels in zip(self.components, self.channels, strict=True):
            spans.append(slice(at, at + components * channels))
            at += components * channels
        return spans

    def group(self, matrices: list[Tensor], size: int, x: Tensor) -> int:
        """How many blocks to work on at a time."""
        longest, available = _limits(x)
        per_point = max(
            matrix.shape[1] // size * (1 + j) * c
            for matrix, j, c in zip(matrices, self.factors, self.channels, strict=True)
        )
        batch = min(x.shape[2], longest)
        return max(1, available // max(1, per_point * size * batch * x.element_size()))


def _parts(batch: int, step: int) -> list[slice]:
    """Cut the batch into parts."""
    return [slice(b, min(b + step, batch)) for b in range(0, batch, step)]


def _limits(x: Tensor) -> tuple[int, int]:
    """Longest part of the batch, and bytes of Z to make at a time."""
    return (_BATCH if x.device.type == "cpu" else _GPU_BATCH), scratch_bytes(x)


def scratch_bytes(x: Tensor) -> int:
    """Bytes of scratch memory to use at a time where x is: a cache, or a part of a GPU."""
    return _CACHE_BYTES if x.device.type == "cpu" else _GPU_BYTES


def _groups(n_blocks: int, group: int) -> list[slice]:
    """Cut the blocks into groups."""
    return [slice(k, min(k + group, n_blocks)) for k in range(0, n_blocks, group)]


class Workspace:
    """Scratch memory that one call uses again and again, so that it stays in the cache.

    Fresh memory for each group of blocks would cost more in page faults than the arithmetic.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Uninitialised tensor of a shape, a view of the buffer of that name."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


def _responses(
    work: Workspace,
    x: Tensor,
    sources: Tensor,
    matrix: Tensor,
    channels: int,
    size: int,
) -> Tensor:
    """T of some blocks: (blocks * size, rows, channels, batch).

    Parameters
    ----------
    work : Workspace
    x : (points, components * channels, batch) tensor
        One frequency.
    sources : (blocks, width) tensor
    matrix : (blocks, size * rows, width * components) tensor
    channels, size : int
    """
    gathered = work.take("gathered", sources.numel(), *x.shape[1:])
    torch.index_select(x, 0, sources.flatten(), out=gathered)
    t = work.take("t", *matrix.shape[:2], channels * x.shape[2])
    torch.bmm(matrix, gathered.view(len(sources), matrix.shape[2], -1), out=t)
    return t.view(len(sources) * size, -1, channels, x.shape[2])


def _products(work: Workspace, t: Tensor, factors: int) -> Tensor:
    """Z of the module's docstring: (points, rows, 1 + factors, channels, batch)."""
    if factors == 0:
        return t[:, :, None]
    z = work.take("z", t.shape[0], t.shape[1], 1 + factors, *t.shape[2:])
    z[:, :, 0] = t
    torch.mul(t[:, :, None], t[:, None, :factors], out=z[:, :, 1:])
    return z


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
    pieces, spans, work = plan.pieces(weight), plan.spans(), Workspace(x)
    group = plan.group(matrices, size, x)
    for part in _parts(batch, _limits(x)[0]):
        x_parts = [x[:, span, part].contiguous() for span in spans]
        n_here = part.stop - part.start
        for blocks in _groups(len(targets), group):
            n_points = (blocks.stop - blocks.start) * size
            # One buffer per output frequency: bmm is fast only into contiguous memory.
            totals = [work.take(f"total{m}", n_points, o, n_here) for m, o in enumerate(outs) if o]
            for k, matrix in enumerate(matrices):
                t = _responses(
                    work, x_parts[k], sources[blocks], matrix[blocks], channels[k], size
                )
                z = _products(work, t, factors[k])
                for (z_rows, _, w), total in zip(pieces[k], totals, strict=True):
                    torch.baddbmm(
                        total,
                        w.expand(n_points, *w.shape),
                        z[:, z_rows].flatten(1, 3),
                        beta=0 if k == 0 else 1,
                        out=total,
                    )
            here = out[blocks.start * size : blocks.stop * size]
            for (_, out_rows, _), total in zip(pieces[0], totals, strict=True):
                here[:, out_rows, part] = total
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
    pieces, grad_pieces = plan.pieces(weight), plan.pieces(grad_weight)
    spans, work = plan.spans(), Workspace(x)
    group = plan.group(matrices, size, x)
    for part in _parts(batch, _limits(x)[0]):
        x_parts = [x[:, span, part].contiguous() for span in spans]
        grad_parts = [torch.zeros_like(x_part) for x_part in x_parts]
        grad_here = grad[:, :, part].contiguous()
        for blocks in _groups(len(targets), group):
            g = grad_here[blocks.start * size : blocks.stop * size]
            for k, matrix in enumerate(matrices):
                a, near = matrix[blocks], sources[blocks]
                t = _responses(work, x_parts[k], near, a, channels[k], size)
                grad_t = _mixing_backward(work, t, g, factors[k], pieces[k], grad_pieces[k])
                back = work.take("gathered", len(a), a.shape[2], grad_t[0, 0].numel())
                torch.bmm(a.transpose(1, 2), grad_t.view(*a.shape[:2], -1), out=back)
                back = back.view(near.numel(), *x_parts[k].shape[1:])
                grad_parts[k].index_add_(0, near.flatten(), back)
        for span, grad_part in zip(spans, grad_parts, strict=True):
            grad_x[:, span, part] = grad_part
    return grad_x, grad_weight


def _mixing_backward(
    work: Workspace,
    t: Tensor,
    grad: Tensor,
    factors: int,
    pieces: list[tuple[slice, slice, Tensor]],
    grad_pieces: list[tuple[slice, slice, Tensor]],
) -> Tensor:
    """Gradient in T; adds those of the weights to grad_pieces.

    Parameters
    ----------
    work : Workspace
    t : (points, rows, channels, batch) tensor
    grad : (points, sum of outs, batch) tensor
    """
    z = _products(work, t, factors)
    grads_z = []
    for m, (piece, grad_piece) in enumerate(zip(pieces, grad_pieces, strict=True)):
        z_rows, out_rows, matrix = piece
        g, z_m = grad[:, out_rows], z[:, z_rows]
        grad_piece[2].add_(torch.bmm(g, z_m.flatten(1, 3).transpose(1, 2)).sum(0))
        # One buffer per output frequency: bmm is fast only into contiguous memory.
        grad_z = work.take(f"grad_z{m}", *z_m.shape)
        transposed = matrix.t().expand(len(g), *matrix.t().shape)
        torch.bmm(transposed, g, out=grad_z.flatten(1, 3))
        grads_z.append((z_rows, grad_z))
    grad_t = work.take("grad_t", *t.shape)
    if sum(rows.stop - rows.start for rows, _ in grads_z) < t.shape[1]:
        grad_t.zero_()  # rows that only serve as factors get nothing from the mixing
        z.zero_()
    for rows, grad_z in grads_z:
        if factors == 0:
            grad_t[:, rows] = grad_z[:, :, 0]
            continue
        # d(T_i T_k) = T_k dT_i + T_i dT_k; Z is no longer needed and lends its memory.
        torch.mul(grad_z[:, :, 1:], t[:, None, :factors], out=z[:, rows, 1:])
        z[:, rows, 0] = grad_z[:, :, 0]
    if factors:
        torch.sum(z, 2, out=grad_t)
        for rows, grad_z in grads_z:
            torch.mul(grad_z[:, :, 1:], t[:, rows, None], out=z[:, rows, 1:])
        grad_t[:, :factors] += z[:, :, 1:].sum(1)
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
