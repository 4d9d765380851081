r"""Gauge equivariant convolutions: Eq. (1) and its higher orders, Definition 3.3.

    GEConv    f_out(p) = int K(v) rho_in(t_(p <- q_v)) f_in(q_v) dv                   Eq. (1)
    GEVConv   V^m(f) = sum over k = 1 ... m of K^(k) * f                     Definition 3.3

with kernels that satisfy the steerability constraint of any order, Eq. (3), by Proposition
3.5, and the block structure of Eq. (7). `steerable_kernels` lists them, `response_matrices`
computes the first-order responses (where the transport t_(p <- q) and the ring quadrature are),
`fused_volterra` multiplies and mixes them; on a CPU `compiled` does all three. Nothing here has a
bias: on vectors it would break equivariance.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from bids_gevnet.compiled.library import serves
from bids_gevnet.compiled.volterra import compiled_volterra
from bids_gevnet.errors import InputError
from bids_gevnet.nn.all_products import FullProducts, variance_shares
from bids_gevnet.nn.fused_volterra import Plan, volterra
from bids_gevnet.nn.response_matrices import BlockedOperator, response_values
from bids_gevnet.nn.steerable_kernels import Response, n_bases, response_scale, responses
from bids_gevnet.sphere.quadrature import DEFAULT_Q, ring_stencil

if TYPE_CHECKING:
    from bids_gevnet.nn.fields import FieldType
    from bids_gevnet.sphere.grid import Grid

DEFAULT_RADII = (0.55, 1.2)
Products = Literal["paper", "full"]


class Responses(nn.Module):
    """First-order responses of a field: one tensor per input frequency.

    Parameters
    ----------
    grid : Grid
    in_type : FieldType
    frequencies : tuple of int
        Output frequencies wanted, in increasing order.
    radii : tuple of float
        Radius of each ring in mean neighbour spacings.
    q : int
        Quadrature nodes per ring.
    """

    def __init__(
        self,
        grid: Grid,
        in_type: FieldType,
        frequencies: tuple[int, ...],
        *,
        radii: tuple[float, ...] = DEFAULT_RADII,
        q: int = DEFAULT_Q,
    ) -> None:
        super().__init__()
        self.in_type = in_type
        self.rows: dict[int, tuple[Response, ...]] = {
            n: tuple(r for m in frequencies for r in responses(n, m, len(radii)))
            for n in in_type.frequencies
        }
        highest = in_type.bandlimit + max(frequencies)
        stencil = ring_stencil(grid, radii, highest, q)
        values = {}
        for n, rows in self.rows.items():
            scales = [response_scale(r.frequency, radii[r.ring]) for r in rows]
            values[n] = response_values(stencil, n, rows, scales)
        self.operator = BlockedOperator(grid.points, stencil, values)

    def n_rows(self, n: int, m: int) -> int:
        """Real numbers per channel and point from rho_n to frequency m."""
        return sum(r.components for r in self.rows[n] if r.m == m)

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        """Responses in the order of the operator's blocks; `in_order` puts points back.

        Parameters
        ----------
        x : (points, dim, batch) tensor

        Returns
        -------
        dict of int to (padded points, rows, channels, batch) tensor
        """
        op = self.operator
        out = {}
        for n in self.rows:
            span, channels = self.in_type.span(n), self.in_type.multiplicities[n]
            gathered = x[:, span].index_select(0, op.sources.view(-1))
            gathered = gathered.reshape(op.n_blocks, -1, channels * x.shape[2])
            t = torch.bmm(op.matrix(n, x.dtype), gathered)  # (blocks, size*rows, channels*batch)
            out[n] = t.view(op.n_blocks * op.size, -1, channels, x.shape[2])
        return out

    def in_order(self, y: Tensor) -> Tensor:
        """Undo the order of the blocks along the first axis and drop the filling."""
        return y.index_select(0, self.operator.place)


class GEVConv(nn.Module):
    """Gauge equivariant Volterra convolution of any order, Definition 3.3.

    Parameters
    ----------
    grid : Grid
    in_type, out_type : FieldType
    order : int
        m of Definition 3.3: 1 is GEConv, 2 the paper's GEVConv.
    radii : tuple of float
        Rings, in mean neighbour spacings. (0, r) puts a knot at the centre, as in the code the
        paper builds on: it feeds frequency 0 only and leaves a third of the weights dead.
    q : int
        Quadrature nodes per ring; the paper has 1000 and 5000.
    products : {"paper", "full"}
        "paper": products within one channel and one input frequency, 15 x rings^2 bases for
        rho0 + rho1. "full": all products within one channel, scalar with vector too.

    Notes
    -----
    With two rings and rho0 + rho1 on both sides, order 2 has 18 + 60 = 78 weights per pair of
    channels, 26 to rho0 only, 18 from rho0 only.

    Examples
    --------
    >>> import torch
    >>> from bids_gevnet.nn import FieldType
    >>> from bids_gevnet.sphere import healpix
    >>> layer = GEVConv(healpix(2), FieldType.scalars(3), FieldType.regular(4, 1))
    >>> layer(torch.randn(48, 3, 5)).shape  # points, 4 scalars and 4 vectors, batch
    torch.Size([48, 12, 5])
    """

    def __init__(
        self,
        grid: Grid,
        in_type: FieldType,
        out_type: FieldType,
        *,
        order: int = 2,
        radii: tuple[float, ...] = DEFAULT_RADII,
        q: int = DEFAULT_Q,
        products: Products = "paper",
    ) -> None:
        super().__init__()
        if order < 1 or products not in ("paper", "full"):
            raise InputError(
                expected="order 1 or more and products 'paper' or 'full'",
                found=f"order {order!r}, products {products!r}",
                remedy="the paper's layer is order=2, products='paper'",
            )
        self.in_type, self.out_type = in_type, out_type
        self.order, self.products, self.radii = order, products, tuple(radii)
        self.n_points = grid.n_points
        wanted = set(out_type.frequencies)
        if order > 1:
            wanted |= {0} if products == "paper" else set(range(in_type.bandlimit + 1))
        self.frequencies = tuple(sorted(wanted))
        self.responses = Responses(grid, in_type, self.frequencies, radii=self.radii, q=q)
        self.weights = nn.ParameterDict()
        for n in in_type.frequencies:
            for m in out_type.frequencies:
                self.weights[f"{n}to{m}"] = nn.Parameter(torch.empty(self._weight_shape(n, m)))
        self.mixer = (
            FullProducts(self.responses.rows, in_type, out_type, order) if self._full else None
        )
        self.reset_parameters()

    @property
    def _full(self) -> bool:
        return self.products == "full" and self.order > 1

    def _n_factors(self, n: int) -> int:
        """Size of (1, K_0n, K_0n (x) K_0n, ...): what a response is multiplied with."""
        j = n_bases(n, 0, len(self.radii))
        return sum(j**k for k in range(1 if self._full else self.order))

    def _weight_shape(self, n: int, m: int) -> tuple[int, ...]:
        """(out, rows, factors, in) for m = 0, (2, out, responses, factors, in) for m > 0."""
        c_in, c_out = self.in_type.multiplicities[n], self.out_type.multiplicities[m]
        if m == 0:
            return (c_out, n_bases(n, 0, len(self.radii)), self._n_factors(n), c_in)
        return (2, c_out, len(responses(n, m, len(self.radii))), self._n_factors(n), c_in)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights for a unit output variance that is almost all of first order.

        Each order has its part of the variance of the sum, see `variance_shares`.
        """
        shares = variance_shares(self.order)
        for m in self.out_type.frequencies:
            ins = [(n, self.weights[f"{n}to{m}"]) for n in self.in_type.frequencies]
            fan_in = [0.0] * self.order
            for n, weight in ins:
                rows = weight.shape[-3] * weight.shape[-1] * (2 if m > 0 else 1)
                for k in range(1 if self._full else self.order):
                    fan_in[k] += rows * n_bases(n, 0, len(self.radii)) ** k
            for n, weight in ins:
                start = 0
                for k in range(1 if self._full else self.order):
                    stop = start + n_bases(n, 0, len(self.radii)) ** k
                    std = (shares[k] / fan_in[k]) ** 0.5
                    weight[..., start:stop, :].normal_(0.0, std)
                    start = stop
        if self.mixer is not None:
            self.mixer.reset_parameters()

    def matrix(self, n: int, m: int) -> Tensor:
        """Real (components * out, rows * factors * in) matrix of the weights from n to m."""
        weight: Tensor = self.weights[f"{n}to{m}"]
        if m == 0:
            return weight.flatten(1)
        re, im = weight.unbind(0)  # (out, responses, factors, in) each; (re + i im) times T
        real_rows = torch.stack([re, -im], dim=2)  # Re out = re Re T - im Im T
        imag_rows = torch.stack([im, re], dim=2)
        return torch.stack([real_rows, imag_rows]).flatten(2).flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a feature map.

        Parameters
        ----------
        x : (points, in_type.dim, batch) tensor

        Returns
        -------
        (points, out_type.dim, batch) tensor
        """
        self.in_type.check(x, self.n_points)
        x = in_autocast_dtype(x)
        if self.order <= 2 and not self._full:
            return self._fused(x)
        t = self.responses(x)
        out = torch.stack([self._mix(n, t_n) for n, t_n in t.items()]).sum(0)
        return self.responses.in_order(out if self.mixer is None else out + self.mixer(t))

    def _out_sizes(self) -> list[int]:
        """Rows of the output for each frequency of the responses, 0 for mere factors."""
        out = self.out_type
        used = [m in out.frequencies for m in self.frequencies]
        return [
            out.components(m) * out.multiplicities[m] if u else 0
            for m, u in zip(self.frequencies, used, strict=True)
        ]

    def _fused(self, x: Tensor) -> Tensor:
        """Orders 1 and 2 in one operator: responses, products, mixing."""
        op, ins = self.responses.operator, self.in_type.frequencies
        pairs = [(n, m) for n in ins for m in self.out_type.frequencies]
        weight = torch.cat([self.matrix(n, m).flatten() for n, m in pairs]).to(x.dtype)
        plan = Plan(
            [self.in_type.components(n) for n in ins],
            [self.in_type.multiplicities[n] for n in ins],
            [n_bases(n, 0, len(self.radii)) if self.order == 2 else 0 for n in ins],
            [self.responses.n_rows(n, m) for n in ins for m in self.frequencies],
            self._out_sizes(),
        )
        if serves(x):
            sizes = [op.n_target, len(ins), len(plan.outs), *chain(*plan.lists())]
            compiled: Tensor = compiled_volterra(
                x, weight, [op.entries(n) for n in ins], op.index, sizes
            )
            return compiled
        matrices = [op.matrix(n, x.dtype) for n in ins]
        out = volterra(x.contiguous(), weight, matrices, op.sources, op.targets, *plan.lists())
        return self.responses.in_order(out)

    def _mix(self, n: int, t: Tensor) -> Tensor:
        """Any order: multiply by (1, K_0n, K_0n (x) K_0n, ...), then mix."""
        factors = t[:, : n_bases(n, 0, len(self.radii))]
        z, power = [t[:, :, None]], factors
        for k in range(1, 1 if self._full else self.order):
            power = factors if k == 1 else outer(power, factors)
            z.append(t[:, :, None] * power[:, None])
        products = torch.cat(z, dim=2)
        parts, start = [], 0
        for m in self.frequencies:
            stop = start + self.responses.n_rows(n, m)
            if m in self.out_type.frequencies:
                matrix = self.matrix(n, m).to(t.dtype)
                z_m = products[:, start:stop].flatten(1, 3)
                parts.append(torch.bmm(matrix.expand(len(z_m), *matrix.shape), z_m))
            start = stop
        return torch.cat(parts, dim=1)

    def extra_repr(self) -> str:
        """Show types and order in the module's printout."""
        return f"{self.in_type} -> {self.out_type}, order={self.order}, radii={self.radii}"


class GEConv(GEVConv):
    """First-order gauge equivariant convolution, Eq. (1): 18 weights per pair of channels.

    Examples
    --------
    >>> import torch
    >>> from bids_gevnet.nn import FieldType
    >>> from bids_gevnet.sphere import icosphere
    >>> layer = GEConv(icosphere(1), FieldType.scalars(1), FieldType.scalars(2))
    >>> layer(torch.randn(42, 1, 3)).shape
    torch.Size([42, 2, 3])
    """

    def __init__(
        self,
        grid: Grid,
        in_type: FieldType,
        out_type: FieldType,
        *,
        radii: tuple[float, ...] = DEFAULT_RADII,
        q: int = DEFAULT_Q,
    ) -> None:
        super().__init__(grid, in_type, out_type, order=1, radii=radii, q=q)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """All products along the second axis: (p, j, ...) and (p, k, ...) to (p, j*k, ...)."""
    return (a[:, :, None] * b[:, None]).flatten(1, 2)


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Cast to the autocast dtype where autocast is on; float64 is left alone."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(device))
    return x
