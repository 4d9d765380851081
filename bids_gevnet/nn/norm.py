"""Batch normalisation whose statistics do not depend on how the batch is cut up.

For the values x_i of one channel, i over samples, voxels, points, chunks and processes,

    n = sum 1,    S = sum x_i,    Q = sum x_i^2,
    mean = S / n,    var = Q / n - mean^2,
    y_i = gamma (x_i - mean) / sqrt(var + eps) + beta.

The triple (n, S, Q) is called `moments` below, a (3, channels) tensor in float64. It is additive:
a batch that never fits in memory is reduced chunk by chunk, one that is spread over processes by
one all-reduce, and the result is that of the undivided batch. Each chunk is centred before its
squares are taken and the three sums are kept in float64, so that `Q / n - mean^2` does not cancel.

Every step is differentiable. The backward pass of a sum over processes is the sum over processes
of the gradients, because each process's loss depends on everyone's statistics; the usual average
of parameter gradients over processes then gives the gradient of the mean loss.

`mean`, `var`, `gamma` and `beta` act only through y = scale x + shift; this pair is called
`affine` below, a (2, channels) tensor.

Where a batch is a random part of what it stands for (`blocks`), its mean and variance are those of
the whole plus a chance error that all its samples share. Inside `renormalising` the running
statistics, with this batch in them, take their place in the result, and those of the batch keep
theirs in the gradient (Ioffe 2017, batch renormalisation): y = gamma (r (x - mean) / sqrt(var +
eps) + d) + beta, with r and d constants that make y what the running statistics would. The running
variance is then that of the mixture of all batches, the spread of their means included.

torch's SyncBatchNorm does the same on GPUs only, and needs the whole local batch at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bids_gevnet.compiled.fibre import compiled_moments
from bids_gevnet.compiled.library import serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class _SumOverProcesses(torch.autograd.Function):
    """Sum over all processes of a group; its adjoint is the same sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=ctx.group)
        return total, None


def sum_over_processes(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum a tensor over the processes of a group, differentiably; one process gives it back.

    Parameters
    ----------
    x : (...) tensor
        The same shape in every process.
    group
        The process group; the default one if None.

    Returns
    -------
    total : (...) tensor
        The same in every process.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return x
    return cast("Tensor", _SumOverProcesses.apply(x, group))  # type: ignore[no-untyped-call]


def channel_moments(x: Tensor, channel_dim: int) -> Tensor:
    """Additive moments (n, S, Q) of each channel.

    Parameters
    ----------
    x : (..., channels, ...) tensor
    channel_dim : int
        Where the channels are.

    Returns
    -------
    moments : (3, channels) float64 tensor
    """
    dims = [d for d in range(x.ndim) if d != channel_dim % x.ndim]
    n_channels = x.shape[channel_dim]
    count = torch.full(
        (n_channels,), x.numel() / max(n_channels, 1), dtype=torch.float64, device=x.device
    )
    if x.numel() == 0:
        zero = x.sum(dims).double()  # keeps the graph, so that all processes stay in step
        return torch.stack((count, zero, zero))
    wide = x.float() if x.dtype in {torch.bfloat16, torch.float16} else x
    if serves(wide) and channel_dim % x.ndim == 1:
        mean, var = compiled_moments(
            wide.reshape(len(x), n_channels, -1), wide.new_empty(0)
        ).unbind(0)
    else:
        var, mean = torch.var_mean(wide, dims, correction=0)
        mean, var = mean.double(), var.double()
    return torch.stack((count, count * mean, count * (var + mean.square())))


class MomentNorm(nn.Module):
    """Batch normalisation in two steps: `moments` of any piece of the batch, then `normalise`.

    ``norm(x)`` does both at once and equals torch's BatchNorm. With several processes the
    statistics are those of the joined batch, over gloo on the CPU as over NCCL on GPUs.

    Parameters
    ----------
    n_channels : int
    channel_dim : int
        Where the channels of the input are; 1 as in torch.
    eps : float
        Added to the variance.
    momentum : float
        Weight of the newest batch in the running statistics.
    synchronise : bool
        Whether to sum the moments over processes, when there are several.
    group
        The process group to sum over; the default one if None.

    Examples
    --------
    >>> norm = MomentNorm(3)
    >>> bool(norm(torch.randn(8, 3, 10)).mean().abs() < 1e-5)
    True
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        n_channels: int,
        *,
        channel_dim: int = 1,
        eps: float = 1e-5,
        momentum: float = 0.1,
        synchronise: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.n_channels = n_channels
        self.channel_dim = channel_dim
        self.eps = eps
        self.momentum = momentum
        self.synchronise = synchronise
        self.group = group
        self.renormalise = False
        self.weight = nn.Parameter(torch.ones(n_channels))
        self.bias = nn.Parameter(torch.zeros(n_channels))
        self.register_buffer("running_mean", torch.zeros(n_channels))
        self.register_buffer("running_var", torch.ones(n_channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def extra_repr(self) -> str:
        """Show the number of channels in the module's printout."""
        return f"{self.n_channels}, channel_dim={self.channel_dim}, eps={self.eps}"

    def moments(self, x: Tensor) -> Tensor:
        """Additive moments of one piece of the batch: (..., channels, ...) to (3, channels)."""
        return channel_moments(x, self.channel_dim)

    def batch_affine(self, moments: Tensor) -> Tensor:
        """Scale and shift from the moments of this process's batch; updates the running ones.

        Parameters
        ----------
        moments : (3, channels) float64 tensor
            Summed over all chunks of this process, not over processes.

        Returns
        -------
        affine : (2, channels) tensor
        """
        total = sum_over_processes(moments, self.group) if self.synchronise else moments
        count, first, second = total.unbind(0)
        mean = first / count
        var = (second / count - mean.square()).clamp_min(0.0)
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp_min(1)
            if self.renormalise:
                apart = (mean - self.running_mean).square()
                unbiased = unbiased + (1 - self.momentum) * apart
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            self.num_batches_tracked.add_(1)
        return self._renormalised(mean, var) if self.renormalise else self._affine(mean, var)

    def running_affine(self) -> Tensor:
        """Scale and shift from the running statistics, as used after training: (2, channels)."""
        return self._affine(self.running_mean.double(), self.running_var.double())

    def _affine(self, mean: Tensor, var: Tensor) -> Tensor:
        scale = self.weight.double() * (var + self.eps).rsqrt()
        shift = self.bias.double() - mean * scale
        return torch.stack((scale, shift)).to(self.weight.dtype)

    def _renormalised(self, mean: Tensor, var: Tensor) -> Tensor:
        """Scale and shift of the running statistics, with the gradient of the batch's."""
        spread = (var + self.eps).rsqrt()
        running = (self.running_var.double() + self.eps).rsqrt()
        r = (running / spread).detach()
        d = ((mean - self.running_mean.double()) * running).detach()
        weight = self.weight.double()
        scale = weight * r * spread
        shift = self.bias.double() + weight * d - mean * scale
        return torch.stack((scale, shift)).to(self.weight.dtype)

    def normalise(self, x: Tensor, affine: Tensor) -> Tensor:
        """Apply scale and shift to each channel: y = scale x + shift, same shape as x."""
        shape = [1] * x.ndim
        shape[self.channel_dim] = -1
        scale, shift = affine.to(x.dtype).unbind(0)
        return torch.addcmul(shift.view(shape), x, scale.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a whole batch at once.

        Parameters
        ----------
        x : (..., channels, ...) tensor

        Returns
        -------
        y : (..., channels, ...) tensor
        """
        if not self.training:
            return self.normalise(x, self.running_affine())
        alone = not (dist.is_available() and dist.is_initialized())
        if alone or not self.synchronise:
            return self._fused(x)
        return self.normalise(x, self.batch_affine(self.moments(x)))

    def _fused(self, x: Tensor) -> Tensor:
        """Give the same numbers by torch's own kernel, in one pass instead of two."""
        self.num_batches_tracked.add_(1)
        moved = x.movedim(self.channel_dim, -1)
        y = F.batch_norm(
            moved.reshape(-1, self.n_channels) if self.channel_dim != 1 else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )
        return y.view(moved.shape).movedim(-1, self.channel_dim) if self.channel_dim != 1 else y


def add_moments(pieces: Sequence[Tensor]) -> Tensor:
    """Moments of a batch from those of its pieces: sum of (3, channels) tensors."""
    return torch.stack(tuple(pieces)).sum(0)


@contextmanager
def renormalising(module: nn.Module) -> Iterator[None]:
    """Let the normalisations of a module stand for more than the batch, inside the block."""
    norms = [part for part in module.modules() if isinstance(part, MomentNorm)]
    for norm in norms:
        norm.renormalise = True
    try:
        yield
    finally:
        for norm in norms:
            norm.renormalise = False
