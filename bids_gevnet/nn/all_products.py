r"""The products of responses that the paper leaves out, for `GEVConv(products="full")`.

The paper multiplies responses of one channel that come from the same input frequency, and only
by responses of frequency 0. The steerability constraint, Eq. (3), allows more: in one channel,
any product of responses T_a (frequency m_a, from scalars or from vectors), each plain or
conjugated, is steerable with the sum of the signed frequencies,

    T_a T_b: m_a + m_b,      T_a conj(T_b): m_a - m_b.

For rho0 + rho1 and two rings, order 2 has 57 real products to rho0 and 36 complex ones to
rho1, against 20 and 20 of the paper's. Slower than the paper's set, which has its own kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bids_gevnet.errors import InputError
from bids_gevnet.nn.steerable_kernels import Factor, Response, all_products, is_real

if TYPE_CHECKING:
    from bids_gevnet.nn.fields import FieldType

_HIGHER_ORDERS_START = 0.2


def variance_shares(order: int) -> list[float]:
    """Part of a layer's output variance that each order 1 ... m has before training.

    Products have heavy tails, and those of one layer are multiplied again by the next: with equal
    parts the fourth moment after seven layers can be a hundred times that of a Gaussian, a few
    points decide the batch statistics, and training stands still for its first hundreds of steps
    (the wider the network, the longer: benchmarks/results/spherical_mnist.md). So weights of
    higher orders start at a fifth of the deviation that would make them equal, and grow where
    the data ask for it.
    """
    raw = [1.0, *[_HIGHER_ORDERS_START**2] * (order - 1)]
    return [part / sum(raw) for part in raw]


class FullProducts(nn.Module):
    """Mix all products of 2 ... order responses of each channel.

    Parameters
    ----------
    rows : dict of int to tuple of Response
        The responses from each input frequency, as `Responses` orders them.
    in_type, out_type : FieldType
        The input must have equally many channels of each frequency it has.
    order : int
    """

    def __init__(
        self,
        rows: dict[int, tuple[Response, ...]],
        in_type: FieldType,
        out_type: FieldType,
        order: int,
    ) -> None:
        super().__init__()
        channels = {in_type.multiplicities[n] for n in in_type.frequencies}
        if len(channels) != 1:
            raise InputError(
                expected="equally many channels of each input frequency for products='full'",
                found=str(in_type),
                remedy="use FieldType.regular(channels) or products='paper'",
            )
        self.rows, self.out_type, self.order = rows, out_type, order
        frequencies = self._frequencies()
        self.tables: dict[str, list[tuple[Factor, ...]]] = {}
        self.weights = nn.ParameterDict()
        for k in range(2, order + 1):
            for m in out_type.frequencies:
                table = all_products(frequencies, k, m)
                real = torch.tensor([is_real(p, frequencies) for p in table])
                key = f"order{k}to{m}"
                index = torch.tensor([[i for i, _ in p] for p in table])
                sign = torch.tensor([[-1.0 if conj else 1.0 for _, conj in p] for p in table])
                self.register_buffer(f"{key}_index", index, persistent=False)
                self.register_buffer(f"{key}_sign", sign, persistent=False)
                imaginary = torch.nonzero(~real)[:, 0]
                self.register_buffer(f"{key}_imaginary", imaginary, persistent=False)
                n_features = len(table) + len(imaginary) if m == 0 else len(table)
                shape = (out_type.multiplicities[m], n_features, *channels)
                self.weights[key] = nn.Parameter(torch.empty(shape if m == 0 else (2, *shape)))
        self.reset_parameters()

    def _frequencies(self) -> tuple[int, ...]:
        """Frequency of each factor; a complex response to frequency 0 is two real factors."""
        flat = [r for rows in self.rows.values() for r in rows]
        return tuple(r.m for r in flat for _ in range(r.components if r.m == 0 else 1))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights such that each order has its part of a unit output variance."""
        shares = variance_shares(self.order)
        for key, weight in self.weights.items():
            order, m = (int(word) for word in key.removeprefix("order").split("to"))
            fan_in = weight.shape[-1] * weight.shape[-2] * (1 if m == 0 else 2)
            weight.normal_(0.0, (shares[order - 1] / fan_in) ** 0.5)

    def forward(self, t: dict[int, Tensor]) -> Tensor:
        """Sum of the mixed products of all orders from 2.

        Parameters
        ----------
        t : dict of int to (points, rows, channels, batch) tensor

        Returns
        -------
        (points, out_type.dim, batch) tensor
        """
        re, im = self._factors(t)
        outs = []
        for m in self.out_type.frequencies:
            parts = [self._mix(f"order{k}to{m}", m, re, im) for k in range(2, self.order + 1)]
            outs.append(torch.stack(parts).sum(0))
        return torch.cat(outs, dim=1)

    def _factors(self, t: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of every factor, (points, factors, channels, batch) each."""
        re: list[Tensor] = []
        im: list[Tensor] = []
        for n, rows in self.rows.items():
            at = 0
            for r in rows:
                first, last = t[n][:, at], t[n][:, at + r.components - 1]
                at += r.components
                zero = torch.zeros_like(first)
                if r.m > 0:
                    re, im = [*re, first], [*im, last]
                else:
                    parts = [first, last][: r.components]
                    re, im = [*re, *parts], [*im, *([zero] * r.components)]
        return torch.stack(re, dim=1), torch.stack(im, dim=1)

    def _mix(self, key: str, m: int, re: Tensor, im: Tensor) -> Tensor:
        """Products of one order to frequency m, mixed: (points, components * out, batch)."""
        index = self.get_buffer(f"{key}_index")
        sign = self.get_buffer(f"{key}_sign").to(re.dtype)[:, :, None, None]
        x, y = re[:, index[:, 0]], im[:, index[:, 0]] * sign[:, 0]
        for k in range(1, index.shape[1]):
            a, b = re[:, index[:, k]], im[:, index[:, k]] * sign[:, k]
            x, y = x * a - y * b, x * b + y * a  # (points, products, channels, batch)
        weight = self.weights[key].to(re.dtype)
        if m == 0:
            features = torch.cat([x, y[:, self.get_buffer(f"{key}_imaginary")]], dim=1)
            return torch.einsum("ofc,pfcb->pob", weight, features)
        w_re, w_im = weight.unbind(0)
        out_re = torch.einsum("ofc,pfcb->pob", w_re, x) - torch.einsum("ofc,pfcb->pob", w_im, y)
        out_im = torch.einsum("ofc,pfcb->pob", w_im, x) + torch.einsum("ofc,pfcb->pob", w_re, y)
        return torch.cat([out_re, out_im], dim=1)
