r"""Regular nonlinearity: BatchNorm and a pointwise function on samples of the fibre.

The coefficients of one channel at one point, s (rho0) and z_n (rho_n), are those of a function
on the circle of directions,

    h(theta) = s + sqrt2 sum over n of ( Re z_n cos(n theta) + Im z_n sin(n theta) ),

which a change of gauge only shifts. Normalise, sample at N angles, apply a function, transform
back. The normalisation needs no samples: by Parseval (exact for N > 2 l)

    mean of h = mean of s,      mean of h^2 = mean of s^2 + sum over n of |z_n|^2.

Means over points are integrals over the surface: where points have different areas a_p, as on an
icosphere, each counts a_p / mean(a). Without that the statistics of a turned signal differ however
fine the grid is.

A shifted sampling of a ReLU, which has no bandlimit, differs by order N^-2: gauge equivariance
holds to 6 % for N = 5, 1 % for 11, 0.05 % for 51. For ReLU and rho0 + rho1 the limit N -> infinity
has a closed form, chosen by samples=None: with A = sqrt2 |z| and
alpha = arccos(-s / A) clipped to [0, pi] (h > 0 on an arc of half-width alpha),

    s' = (s alpha + A sin alpha) / pi,      z' = z (alpha - sin alpha cos alpha) / pi,

gauge equivariant to rounding and cheaper than any sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bids_gevnet.compiled.fibre import COEFFICIENTS, compiled_moments, compiled_relu
from bids_gevnet.compiled.library import serves
from bids_gevnet.errors import InputError
from bids_gevnet.nn.fused_volterra import Workspace, scratch_bytes
from bids_gevnet.nn.geometry import GeometryModule
from bids_gevnet.nn.norm import MomentNorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from bids_gevnet.nn.fields import FieldType
    from bids_gevnet.sphere.frames import FloatArray

_EQUAL_AREAS = 1e-9  # HEALPix pixels differ by rounding only
_SCRATCH = 12  # tensors per coefficient that the closed form needs at a time


class PointWeights(GeometryModule):
    """What each point counts in a mean over the surface: its area over the mean area.

    Parameters
    ----------
    areas : (points,) array
    """

    weights: Tensor

    def __init__(self, areas: FloatArray) -> None:
        super().__init__()
        self.register_exact("weights", areas / areas.mean())

    def forward(self, x: Tensor) -> Tensor:
        """Weighted mean over points and batch of a (points, channels, batch) tensor."""
        mean: Tensor = torch.einsum("p,pcb->c", self.weights.to(x.dtype), x)
        return mean / (x.shape[0] * x.shape[2])


class RegularNorm(MomentNorm):
    """BatchNorm of the samples of a regular field, from its coefficients: 2 numbers per channel.

    Inherits the two separate steps of `MomentNorm`: `moments(x)`, which add over chunks and
    processes, `batch_affine(moments)`, and `normalise(x, affine)`.

    Parameters
    ----------
    field : FieldType
        rho0 + ... + rho_l, each with the same number of channels.
    samples : int
        N; counts in the unbiased running variance only.
    areas : (points,) array or None
        Area of each point of the grid. None, or equal areas: every point counts the same.
    **options
        As for `MomentNorm`: eps, momentum, synchronise, group.

    Examples
    --------
    >>> from bids_gevnet.nn import FieldType
    >>> field = FieldType.regular(4, 1)
    >>> RegularNorm(field)(torch.randn(48, field.dim, 5)).shape
    torch.Size([48, 12, 5])
    """

    def __init__(
        self,
        field: FieldType,
        samples: int = 1,
        *,
        areas: FloatArray | None = None,
        **options: Any,
    ) -> None:
        check_regular(field)
        super().__init__(field.multiplicities[0], **options)
        self.field, self.samples = field, samples
        uneven = areas is not None and np.ptp(areas) > _EQUAL_AREAS * np.mean(areas)
        self.mean = PointWeights(areas) if uneven and areas is not None else None

    def moments(self, x: Tensor) -> Tensor:
        """Additive (n, S, Q) of the samples of a (points, dim, batch) tensor, by Parseval.

        Returns
        -------
        (3, channels) float64 tensor
        """
        c = self.n_channels
        count = float(self.samples * x.shape[0] * x.shape[2])
        wide = x.float() if x.dtype in {torch.bfloat16, torch.float16} else x
        mean, power, squares = self._statistics(wide)
        if self.field.bandlimit:
            power = power + squares.view(-1, c).sum(0).double()
        first = count * mean
        return torch.stack((torch.full_like(first, count), first, count * (power + mean.square())))

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of the scalars, mean square of the other coefficients, per row."""
        c = self.n_channels
        scalars, others = x[:, :c], x[:, c:]
        if serves(x) and x.numel():
            weights = x.new_empty(0) if self.mean is None else self.mean.weights
            mean, var = compiled_moments(x, weights).unbind(0)
            return mean[:c], var[:c], var[c:] + mean[c:].square()
        if self.mean is None:
            var, mean = torch.var_mean(scalars, dim=(0, 2), correction=0)
            return mean.double(), var.double(), others.square().mean(dim=(0, 2))
        mean = self.mean(scalars)
        var = self.mean((scalars - mean[:, None]).square())
        return mean.double(), var.double(), self.mean(others.square())

    def affine(self, x: Tensor) -> Tensor:
        """Scale and shift for a whole batch, (points, dim, batch): (2, channels) tensor."""
        return self.batch_affine(self.moments(x)) if self.training else self.running_affine()

    def normalise(self, x: Tensor, affine: Tensor) -> Tensor:
        """Scale all coefficients of a channel, shift its scalar: same shape as x."""
        scale, shift = affine.to(x.dtype).unbind(0)
        scale = scale.repeat(2 * self.field.bandlimit + 1)
        shift = F.pad(shift, (0, len(scale) - len(shift)))
        return torch.addcmul(shift[:, None], x, scale[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a whole batch, (points, dim, batch)."""
        return self.normalise(x, self.affine(x))


class RegularNonlinearity(GeometryModule):
    """Normalise, sample at N angles, apply a function, transform back.

    Parameters
    ----------
    field : FieldType
        rho0 + ... + rho_l, each with the same number of channels.
    samples : int or None
        N, more than 2 l. None: the limit N -> infinity in closed form, for ReLU and l <= 1.
    function : callable
        Pointwise, on tensors.
    norm : nn.Module or None or "batch"
        What normalises the coefficients first; "batch" is a `RegularNorm`.
    areas : (points,) array or None
        For that `RegularNorm`.

    Examples
    --------
    >>> from bids_gevnet.nn import FieldType
    >>> field = FieldType.regular(4, 1)
    >>> RegularNonlinearity(field, samples=7)(torch.randn(48, field.dim, 5)).shape
    torch.Size([48, 12, 5])
    """

    synthesis: Tensor

    def __init__(
        self,
        field: FieldType,
        samples: int | None = 51,
        *,
        function: Callable[[Tensor], Tensor] = F.relu,
        norm: nn.Module | str | None = "batch",
        areas: FloatArray | None = None,
    ) -> None:
        super().__init__()
        check_regular(field)
        if samples is None and (function is not F.relu or field.bandlimit > 1):
            raise InputError(
                expected="ReLU and rho0 + rho1 at most for samples=None (the closed form)",
                found=f"{function} on {field}",
                remedy="give a number of samples, for instance 51",
            )
        if samples is not None and samples <= 2 * field.bandlimit:
            raise InputError(
                expected=f"more than {2 * field.bandlimit} samples for {field}",
                found=str(samples),
                remedy="fewer cannot tell the frequencies apart; the paper takes 7, 51 or 101",
            )
        self.field, self.samples, self.function = field, samples, function
        self.norm: nn.Module | None
        if isinstance(norm, str):
            if norm != "batch":
                raise InputError(
                    expected="a module, None or 'batch'",
                    found=repr(norm),
                    remedy="'batch' is BatchNorm over samples, computed from the coefficients",
                )
            self.norm = RegularNorm(field, samples or 1, areas=areas)
        else:
            self.norm = norm
        matrix = synthesis_matrix(field.bandlimit, samples or 1)
        self.register_exact("synthesis", matrix)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and apply the nonlinearity, (points, dim, batch) to the same."""
        self.field.check(x)
        if isinstance(self.norm, RegularNorm):
            return self.normalise_and_activate(x, self.norm.affine(x))
        return self.activate(x if self.norm is None else self.norm(x))

    def normalise_and_activate(self, x: Tensor, affine: Tensor) -> Tensor:
        """Apply the (2, channels) scale and shift of a `RegularNorm`, then the nonlinearity."""
        if self._has_kernel(x):
            return self._fused(x, affine.to(x.dtype))
        return self.activate(cast("RegularNorm", self.norm).normalise(x, affine))

    def _has_kernel(self, x: Tensor) -> bool:
        sampled = self.samples is not None and self.field.bandlimit > 0
        small = 2 * self.field.bandlimit + 1 in COEFFICIENTS
        return sampled and small and self.function is F.relu and serves(x)

    def _fused(self, x: Tensor, affine: Tensor) -> Tensor:
        """Normalise, sample, ReLU and back without leaving the registers."""
        n_coefficients = 2 * self.field.bandlimit + 1
        h = torch.unflatten(x, 1, (n_coefficients, affine.shape[1]))
        out: Tensor = compiled_relu(h, affine, self.synthesis.to(x.dtype))
        return out.flatten(1, 2)

    def activate(self, x: Tensor) -> Tensor:
        """Apply the nonlinearity alone, to coefficients that are already normalised."""
        if self._has_kernel(x):
            one = x.new_ones(self.field.multiplicities[0])
            return self._fused(x, torch.stack((one, torch.zeros_like(one))))
        if self.field.bandlimit == 0:
            return self.function(x)
        shape = x.shape
        h = x.reshape(shape[0], 2 * self.field.bandlimit + 1, -1)  # (points, 2l+1, channels*batch)
        if self.samples is None:
            return exact_relu(h).view(shape)
        synthesis = self.synthesis.to(x.dtype)
        if self.function is F.relu:
            return regular_relu(h, synthesis).view(shape)
        samples = self.function(torch.matmul(synthesis, h))  # (points, N, channels*batch)
        return torch.matmul(synthesis.t() / len(synthesis), samples).view(shape)

    def extra_repr(self) -> str:
        """Show the field and N in the module's printout."""
        return f"{self.field}, samples={self.samples}"


def check_regular(field: FieldType) -> None:
    """Raise InputError unless every frequency has the same number of channels."""
    if len(set(field.multiplicities)) != 1:
        raise InputError(
            expected="a regular field: equally many channels of rho0, rho1, ...",
            found=str(field),
            remedy="use FieldType.regular(channels)",
        )


def synthesis_matrix(bandlimit: int, samples: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(N, 2 l + 1) values of 1, sqrt2 cos(n theta), sqrt2 sin(n theta) at N even angles."""
    theta = 2 * np.pi * np.arange(samples) / samples
    columns = [np.ones(samples)]
    for n in range(1, bandlimit + 1):
        columns += [np.sqrt(2) * np.cos(n * theta), np.sqrt(2) * np.sin(n * theta)]
    return np.stack(columns, axis=1)


def regular_relu(h: Tensor, synthesis: Tensor) -> Tensor:
    """ReLU on N samples and back to coefficients, a few points at a time.

    Parameters
    ----------
    h : (points, 2 l + 1, n) tensor
    synthesis : (N, 2 l + 1) tensor

    Returns
    -------
    (points, 2 l + 1, n) tensor
    """
    out: Tensor = torch.ops.bids_gevnet.regular_relu(h, synthesis)
    return out


def exact_relu(h: Tensor) -> Tensor:
    """ReLU on infinitely many samples, closed form of the module's docstring.

    Parameters
    ----------
    h : (points, 3, ...) tensor
        s, Re z, Im z.

    Returns
    -------
    (points, 3, ...) tensor
    """
    out: Tensor = torch.ops.bids_gevnet.exact_relu(h)
    return out


def _positive_arc(s: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Alpha, sin(alpha) and cos(alpha) of the arc where h > 0, from s and |z|.

    Alpha is pi or 0 where h has one sign; nothing is divided by a vanishing |z|.
    """
    tiny = torch.finfo(s.dtype).tiny
    cosine = torch.div(s, (size * 2**0.5).add_(tiny)).neg_().clamp_(-1.0, 1.0)
    sine = torch.addcmul(torch.ones_like(cosine), cosine, cosine, value=-1).clamp_(min=0).sqrt_()
    return torch.acos(cosine), sine, cosine


@torch.library.custom_op("bids_gevnet::exact_relu", mutates_args=())
def _exact_relu(h: Tensor) -> Tensor:
    out = torch.empty_like(h)
    for chunk in _chunks(h, _SCRATCH):
        s, re, im = h[chunk].unbind(1)
        size = torch.hypot(re, im)
        alpha, sine, cosine = _positive_arc(s, size)
        gain = torch.addcmul(alpha, sine, cosine, value=-1).div_(torch.pi)
        mean = alpha.mul_(s).addcmul_(size, sine, value=2**0.5).div_(torch.pi)
        out[chunk, 0] = mean
        torch.mul(h[chunk, 1:], gain[:, None], out=out[chunk, 1:])
    return out


@torch.library.custom_op("bids_gevnet::exact_relu_backward", mutates_args=())
def _exact_relu_backward(grad: Tensor, h: Tensor) -> Tensor:
    out = torch.empty_like(h)
    for chunk in _chunks(h, _SCRATCH):
        s, re, im = h[chunk].unbind(1)
        g0, g1, g2 = grad[chunk].unbind(1)
        size = torch.hypot(re, im)
        alpha, sine, cosine = _positive_arc(s, size)
        across = torch.addcmul(alpha, sine, cosine, value=-1).div_(torch.pi)  # z' / z
        size.add_(torch.finfo(h.dtype).tiny)
        u, v = re / size, im / size
        radial = torch.addcmul(g1 * u, g2, v)
        # d|z'|/d|z| - z'/z = 2 sin cos / pi;  d s'/d|z| = d|z'|/ds = sqrt2 sin / pi
        turn = cosine.mul_(2**0.5).mul_(radial).add_(g0).mul_(sine).mul_(2**0.5 / torch.pi)
        out[chunk, 0] = alpha.mul_(g0).addcmul_(radial, sine, value=2**0.5).div_(torch.pi)
        torch.addcmul(across * g1, turn, u, out=out[chunk, 1])
        torch.addcmul(across * g2, turn, v, out=out[chunk, 2])
    return out


@torch.library.custom_op("bids_gevnet::regular_relu", mutates_args=())
def _regular_relu(h: Tensor, synthesis: Tensor) -> Tensor:
    out, work = torch.empty_like(h), Workspace(h)
    analysis = synthesis.t() / len(synthesis)
    for chunk in _chunks(h, len(synthesis)):
        samples = _per_point(work, "samples", synthesis, h[chunk]).relu_()
        torch.bmm(analysis.expand(len(samples), *analysis.shape), samples, out=out[chunk])
    return out


@torch.library.custom_op("bids_gevnet::regular_relu_backward", mutates_args=())
def _regular_relu_backward(grad: Tensor, h: Tensor, synthesis: Tensor) -> Tensor:
    out, work = torch.empty_like(h), Workspace(h)
    analysis = synthesis.t() / len(synthesis)
    for chunk in _chunks(h, 2 * len(synthesis)):
        samples = _per_point(work, "samples", synthesis, h[chunk])
        back = _per_point(work, "back", synthesis, grad[chunk])
        torch.ops.aten.threshold_backward.grad_input(back, samples, 0, grad_input=back)
        torch.bmm(analysis.expand(len(back), *analysis.shape), back, out=out[chunk])
    return out


def _per_point(work: Workspace, name: str, matrix: Tensor, h: Tensor) -> Tensor:
    """Matrix (a, b) times each point of h (points, b, n)."""
    out = work.take(name, len(h), len(matrix), h.shape[2])
    return torch.bmm(matrix.expand(len(h), *matrix.shape), h, out=out)


def _chunks(h: Tensor, samples: int) -> list[slice]:
    """Slices of points whose samples fit in the cache, or in a part of a GPU."""
    per_point = h.shape[2] * samples * h.element_size()
    step = max(1, scratch_bytes(h) // max(1, per_point))
    return [slice(i, min(i + step, len(h))) for i in range(0, len(h), step)]


def _like_first(h: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(h)


_exact_relu.register_fake(_like_first)
_exact_relu_backward.register_fake(_like_first)
_regular_relu.register_fake(_like_first)
_regular_relu_backward.register_fake(_like_first)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _apply_exact_backward(ctx: Any, grad: Tensor) -> Tensor:
    back: Tensor = torch.ops.bids_gevnet.exact_relu_backward(grad, *ctx.saved_tensors)
    return back


def _apply_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    back = torch.ops.bids_gevnet.regular_relu_backward(grad.contiguous(), *ctx.saved_tensors)
    return back, None


_exact_relu.register_autograd(_apply_exact_backward, setup_context=_save)
_regular_relu.register_autograd(_apply_backward, setup_context=_save)
