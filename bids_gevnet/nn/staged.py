"""Networks run piece by piece, with the statistics and the gradients of the whole.

A network is a chain of stages with a batch normalisation between them,

    y_1 = s_1(x),    y_k = s_k(y_{k-1}, a_{k-1}),    a_k = affine(sum over pieces of moments(y_k)),

where stage s_k first applies the scale and shift a_{k-1} (see `norm`). Within a stage the pieces
of a batch know nothing of each other; a_k needs all of them. So the pieces go through stage 1,
then their moments are summed, then they go through stage 2, and so on. Nothing inside a stage is
kept: the backward pass runs a stage again, one piece at a time, and gradients flow through the
statistics as through everything else. The result does not depend on the pieces.

What lies between two passes is a choice (`keep`):

- kept: the pieces' y_k stay in memory, every stage runs once forward and once more backward;
- not kept: each pass starts again from x, so that memory holds x and one piece; the k-th of n
  stages runs n - k + 1 times.

After training the statistics are fixed, and every piece goes through all stages at once.

torch.utils.checkpoint would do the same, but leaves each piece's output where the allocator put
it, between two large temporary maps: at full size the holes came to 3 GB. Here the outputs of all
pieces are written into one tensor that is there before them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Cut = Callable[[Tensor], Sequence[Tensor]]
    Part = Callable[[int, int, Tensor], Tensor]  # of the numbers of a piece and a stage
    _Function = Callable[..., Tensor]  # of the number of a piece, the piece, and all affines


class Normaliser(Protocol):
    """The part of a normalisation layer that looks at the whole batch; see `MomentNorm`."""

    training: bool

    def moments(self, x: Tensor) -> Tensor:
        """Additive moments of a piece."""
        ...

    def batch_affine(self, moments: Tensor) -> Tensor:
        """Scale and shift from the moments of the whole batch."""
        ...

    def running_affine(self) -> Tensor:
        """Scale and shift from the running statistics."""
        ...


class Stage(Protocol):
    """One stage: the piece, and the scale and shift of the normalisation before it (or None)."""

    def __call__(self, x: Tensor, affine: Tensor | None, /) -> Tensor:
        """Run the stage."""
        ...


@dataclass(frozen=True)
class Finish:
    """What to take from the outputs of the last stage, so that the rest is never held.

    Parameters
    ----------
    take : callable
        From the number of a piece and its output to what is wanted of it.
    size : int
        Numbers that are taken from all pieces together.
    """

    take: Callable[[int, Tensor], Tensor]
    size: int


@dataclass(frozen=True)
class Margins:
    """What of each piece is there for the rest of it only.

    Parameters
    ----------
    needed : callable
        The part of a stage's input that is needed, from the number of the piece, that of the
        stage, and the input.
    counted : callable
        The part of a stage's output that counts in the statistics, likewise.
    """

    needed: Part
    counted: Part


@dataclass(frozen=True)
class Staged:
    """A network as a chain of stages.

    Parameters
    ----------
    stages : n stages
        The size of a stage's output is proportional to that of its input.
    norms : n - 1 normalisers
        ``norms[k]`` looks at the output of ``stages[k]``; ``stages[k + 1]`` applies it.
    parameters : sequence of tensors
        Everything that the stages learn; what is not listed gets no gradient.
    """

    stages: Sequence[Stage]
    norms: Sequence[Normaliser]
    parameters: Sequence[Tensor]

    def __post_init__(self) -> None:
        if len(self.norms) != len(self.stages) - 1:
            raise ValueError(f"{len(self.stages)} stages and {len(self.norms)} norms between them")

    def run(
        self,
        x: Tensor,
        cut: Cut,
        *,
        keep: bool,
        finish: Finish | None = None,
        margins: Margins | None = None,
    ) -> Tensor:
        """Run a batch piece by piece.

        Parameters
        ----------
        x : tensor
            The batch.
        cut : callable
            Gives the pieces of the batch: views that cover a tensor of the shape of x, each once.
        keep : bool
            Whether to hold the output of every stage until the backward pass.
        finish : Finish or None
            What to take from the last stage's outputs; everything if None.
        margins : Margins or None
            What to cut off on the way; nothing if None.

        Returns
        -------
        outputs : (n,) tensor
            The last stage's outputs of all pieces, flattened, one after the other.
        """
        affines: list[Tensor] = []
        done = 0  # stages that x has been through
        for number, norm in enumerate(self.norms):
            if not norm.training:
                affines.append(norm.running_affine())
                continue
            if keep:
                chain = self._chain(done, number + 1, margins)
                x, cut = self._collect(x, cut, chain, affines)
                done = number + 1
            chain = self._chain(done, number + 1, margins)

            def moments(
                piece: int,
                x: Tensor,
                *affines: Tensor,
                chain: Any = chain,
                norm: Any = norm,
                number: int = number,
            ) -> Tensor:
                y = chain(piece, x, *affines)
                y = y if margins is None else margins.counted(piece, number, y)
                return cast("Tensor", norm.moments(y))

            affines.append(norm.batch_affine(self._sum(x, cut, moments, affines)))
        chain = self._chain(done, len(self.stages), margins)
        if finish is None:
            return self._collect(x, cut, chain, affines)[0]

        def finished(piece: int, x: Tensor, *affines: Tensor) -> Tensor:
            return finish.take(piece, chain(piece, x, *affines))

        return self._collect(x, cut, finished, affines, finish.size)[0]

    def run_whole(self, x: Tensor) -> Tensor:
        """Run all stages on the undivided batch, with torch's own backward pass."""
        affine: Tensor | None = None
        for stage, norm in zip(self.stages, [*self.norms, None], strict=True):
            x = stage(x, affine)
            if norm is not None:
                training = norm.training
                affine = norm.batch_affine(norm.moments(x)) if training else norm.running_affine()
        return x

    def run_each(self, pieces: Sequence[Tensor], margins: Margins) -> list[Tensor]:
        """Run all stages on pieces of any shapes, held until torch's own backward pass.

        Parameters
        ----------
        pieces : sequence of tensors
        margins : Margins
        """
        affine: Tensor | None = None
        for number, (stage, norm) in enumerate(zip(self.stages, [*self.norms, None], strict=True)):
            needed = [margins.needed(i, number, x) for i, x in enumerate(pieces)]
            pieces = [stage(x, affine) for x in needed]
            if norm is not None and norm.training:
                counted = [margins.counted(i, number, x) for i, x in enumerate(pieces)]
                sums = [norm.moments(x) for x in counted]
                affine = norm.batch_affine(torch.stack(sums).sum(0))
            elif norm is not None:
                affine = norm.running_affine()
        return list(pieces)

    def _chain(self, first: int, last: int, margins: Margins | None) -> _Function:
        """Stages first, ..., last - 1 as one function of a piece and all affines so far."""

        def chain(piece: int, x: Tensor, *affines: Tensor) -> Tensor:
            for number in range(first, last):
                x = x if margins is None else margins.needed(piece, number, x)
                x = self.stages[number](x, affines[number - 1] if number else None)
            return x

        return chain

    def _sum(self, x: Tensor, cut: Cut, function: _Function, affines: list[Tensor]) -> Tensor:
        """Sum of a function over all pieces."""
        call = _Call(function, cut, list(self.parameters), [], add=True)
        return _run(call, x, affines)

    def _collect(
        self,
        x: Tensor,
        cut: Cut,
        function: _Function,
        affines: list[Tensor],
        size: int | None = None,
    ) -> tuple[Tensor, Cut]:
        """Put the outputs of all pieces in one flat tensor; also say how to cut it."""
        shapes: list[torch.Size] = []
        call = _Call(function, cut, list(self.parameters), shapes, add=False, size=size)
        flat = _run(call, x, affines)
        return flat, lambda flat: _cut_flat(flat, shapes)


@dataclass(frozen=True)
class _Call:
    """A function to run on all pieces; `shapes` is filled with those of its outputs.

    `size` is that of all outputs together, if it is not in proportion to the pieces.
    """

    function: _Function
    cut: Cut
    parameters: list[Tensor]
    shapes: list[torch.Size]
    add: bool
    size: int | None = None


def _run(call: _Call, x: Tensor, affines: list[Tensor]) -> Tensor:
    return cast(
        "Tensor",
        _Piecewise.apply(call, x, *affines, *call.parameters),  # type: ignore[no-untyped-call]
    )


def _cut_flat(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class _Piecewise(torch.autograd.Function):
    """Run a function piece by piece, and again piece by piece in the backward pass."""

    @staticmethod
    def forward(ctx: Any, call: _Call, x: Tensor, *shared: Tensor) -> Tensor:
        affines = shared[: len(shared) - len(call.parameters)]
        ctx.call = call
        ctx.save_for_backward(x, *affines)
        device = x.device.type
        ctx.autocast = {
            "device_type": device,
            "enabled": torch.is_autocast_enabled(device),
            "dtype": torch.get_autocast_dtype(device),
        }
        pieces = call.cut(x)
        total: Tensor | None = None
        filled = 0
        if not call.add and call.size is None and len({p.shape[1:] for p in pieces}) > 1:
            # Of several shapes: sizes are not in proportion, and known when all is done.
            outs = [call.function(number, p, *affines) for number, p in enumerate(pieces)]
            call.shapes.extend(out.shape for out in outs)
            return torch.cat([out.flatten() for out in outs])
        for number, piece in enumerate(pieces):
            out = call.function(number, piece, *affines)
            if call.add:
                total = out if total is None else total + out
                continue
            if total is None:
                n_inputs = sum(p.numel() for p in pieces)
                total = out.new_empty(call.size or n_inputs * out.numel() // piece.numel())
            total[filled : filled + out.numel()] = out.flatten()
            filled += out.numel()
            call.shapes.append(out.shape)
        if total is None or not (call.add or filled == len(total)):
            raise ValueError("stages must map sizes proportionally")
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        x, *affines = ctx.saved_tensors
        shared = [a.detach().requires_grad_() for a in affines] + call.parameters
        wanted = [i for i, s in enumerate(shared) if s.requires_grad]
        sums: list[Tensor | None] = [None] * len(shared)
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[1] else None
        grad_pieces = [None] * len(call.cut(x)) if grad_x is None else call.cut(grad_x)
        pieces = call.cut(x.detach())
        grads_out = [grad] * len(pieces) if call.add else _cut_flat(grad, call.shapes)
        each = zip(pieces, grads_out, grad_pieces, strict=True)
        for number, (piece, grad_out, grad_piece) in enumerate(each):
            leaf = piece.detach().requires_grad_(grad_piece is not None)
            # Casts of parameters cached in the forward pass have no gradient: no cache here.
            with torch.enable_grad(), torch.autocast(**ctx.autocast, cache_enabled=False):
                out = call.function(number, leaf, *shared[: len(affines)])
            inputs = [shared[i] for i in wanted] + ([] if grad_piece is None else [leaf])
            grads = torch.autograd.grad(out, inputs, grad_out, allow_unused=True)
            if grad_piece is not None and grads[-1] is not None:
                grad_piece.copy_(grads[-1])
            for i, g in zip(wanted, grads, strict=False):
                if g is not None:
                    # In float64: with thousands of pieces, rounding would grow with their number.
                    before = sums[i]
                    sums[i] = g.double() if before is None else before + g
        totals = [s if s is None else s.to(p.dtype) for s, p in zip(sums, shared, strict=True)]
        return None, grad_x, *totals
