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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bids_gevnet.nn.norm import add_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
class Staged:
    """A network as a chain of stages.

    Parameters
    ----------
    stages : n stages
    norms : n - 1 normalisers
        ``norms[k]`` looks at the output of ``stages[k]``; ``stages[k + 1]`` applies it.
    """

    stages: Sequence[Stage]
    norms: Sequence[Normaliser]

    def __post_init__(self) -> None:
        assert len(self.norms) == len(self.stages) - 1

    def run(self, pieces: Sequence[Tensor], *, keep: bool) -> list[Tensor]:
        """Run all pieces of a batch.

        Parameters
        ----------
        pieces : sequence of tensors
            The batch, cut up in any way that the stages can work on.
        keep : bool
            Whether to hold the output of every stage until the backward pass.

        Returns
        -------
        outputs : list of tensors
            The last stage's output of each piece.
        """
        affines: list[Tensor] = []
        done = 0  # stages that `pieces` have been through
        for number, norm in enumerate(self.norms):
            if not norm.training:
                affines.append(norm.running_affine())
                continue
            if keep:
                pieces = self._through(pieces, done, number + 1, affines)
                done = number + 1
                moments = [_recompute(norm.moments, piece) for piece in pieces]
            else:
                moments = [self._moments(piece, number, affines) for piece in pieces]
            affines.append(norm.batch_affine(add_moments(moments)))
        return self._through(pieces, done, len(self.stages), affines)

    def _through(
        self, pieces: Sequence[Tensor], first: int, last: int, affines: list[Tensor]
    ) -> list[Tensor]:
        """Run each piece through stages first, ..., last - 1."""

        def chain(x: Tensor, *affines: Tensor) -> Tensor:
            return self._chain(x, first, last, affines)

        return [_recompute(chain, piece, *affines) for piece in pieces]

    def _moments(self, piece: Tensor, number: int, affines: list[Tensor]) -> Tensor:
        """Moments of one piece after stage ``number``, from the beginning of the network."""

        def chain(x: Tensor, *affines: Tensor) -> Tensor:
            return self.norms[number].moments(self._chain(x, 0, number + 1, affines))

        return _recompute(chain, piece, *affines)

    def _chain(self, x: Tensor, first: int, last: int, affines: Sequence[Tensor]) -> Tensor:
        for number in range(first, last):
            x = self.stages[number](x, affines[number - 1] if number else None)
        return x


def _recompute(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Call a function; keep its arguments only, and call it again in the backward pass."""
    if not torch.is_grad_enabled():
        return function(*args)
    return cast(
        "Tensor", checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    )
