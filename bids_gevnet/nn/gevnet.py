r"""Networks of gauge equivariant layers, written as the paper writes them.

An architecture is a line such as "1-3-3v-8-8v-12-12v-12": channels, with v (the paper's down
arrow) where a pooling follows. The input is scalars, hidden layers are rho0 + rho1, the last
convolution gives scalars. Every convolution but the last is followed by a regular
nonlinearity. The mean over the sphere, and a head Linear(c, 50) - ReLU - Linear(50, classes)
where there are classes, turn the last field into numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from bids_gevnet.errors import InputError
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gauge_convolution import DEFAULT_RADII, GEVConv, Products
from bids_gevnet.nn.nonlinearity import RegularNonlinearity
from bids_gevnet.nn.pool import SphereMean, TransportPool
from bids_gevnet.sphere.quadrature import DEFAULT_Q

if TYPE_CHECKING:
    from collections.abc import Callable

    from bids_gevnet.sphere.grid import Grid

HEAD_WIDTH = 50


@dataclass(frozen=True)
class Architecture:
    """Channels and poolings of a network.

    Parameters
    ----------
    channels : tuple of int
        Input channels first.
    pooled : tuple of bool
        Whether a pooling follows each convolution; one fewer than channels.
    """

    channels: tuple[int, ...]
    pooled: tuple[bool, ...]

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read "1-3-3v-8": channels, v where a pooling follows."""
        if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*v?)*-[1-9]\d*", text):
            raise InputError(
                expected="channels joined by '-', with v after those that are pooled",
                found=repr(text),
                remedy="for instance 1-3-3v-8-8v-12-12v-12",
            )
        words = text.split("-")
        channels = tuple(int(word.removesuffix("v")) for word in words)
        return cls(channels, tuple(word.endswith("v") for word in words[1:]))


class GEVNet(nn.Module):
    """Stack of gauge equivariant convolutions on one grid hierarchy.

    Parameters
    ----------
    grid : Grid
        Finest grid, where the input lives.
    architecture : str
        Channels and poolings, see the module's docstring.
    order : int
        2 is the paper's GEVNet, 1 its GENet.
    samples : int or None
        N of the regular nonlinearity; None is the closed form of infinitely many.
    classes : int or None
        With a head of this many outputs; None leaves the mean over the sphere.
    bandlimit : int
        Highest frequency l of the hidden layers.
    radii, q, products
        As for `GEVConv`.
    function : callable
        Pointwise nonlinearity.
    norm : callable or None
        Makes the normalisation of a hidden field; None takes `RegularNorm`.

    Attributes
    ----------
    layers : nn.Sequential
        (points, c_in, batch) to (coarse points, c_out, batch).

    Examples
    --------
    >>> import torch
    >>> from bids_gevnet.sphere import icosphere
    >>> network = GEVNet(icosphere(2), "1-2v-4", samples=7, classes=3)
    >>> network(torch.randn(5, 1, 162)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        grid: Grid,
        architecture: str,
        *,
        order: int = 2,
        samples: int | None = 51,
        classes: int | None = None,
        bandlimit: int = 1,
        radii: tuple[float, ...] = DEFAULT_RADII,
        q: int = DEFAULT_Q,
        products: Products = "paper",
        function: Callable[[Tensor], Tensor] = F.relu,
        norm: Callable[[FieldType], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        plan = Architecture.parse(architecture)
        self.architecture, self.order = architecture, order
        self.n_in, self.n_features = plan.channels[0], plan.channels[-1]
        self.n_points = grid.n_points
        layers: list[nn.Module] = []
        field = FieldType.scalars(self.n_in)
        last = len(plan.pooled) - 1
        for i, (channels, pooled) in enumerate(zip(plan.channels[1:], plan.pooled, strict=True)):
            out = FieldType.regular(channels, 0 if i == last else bandlimit)
            layers.append(
                GEVConv(grid, field, out, order=order, radii=radii, q=q, products=products)
            )
            field = out
            if i < last:
                normaliser = "batch" if norm is None else norm(field)
                layers.append(
                    RegularNonlinearity(
                        field, samples, function=function, norm=normaliser, areas=grid.areas
                    )
                )
            if pooled:
                layers.append(TransportPool(grid, field, q=q))
                grid = grid.coarse()
        self.layers = nn.Sequential(*layers)
        self.mean = SphereMean(grid, field)
        self.head = None if classes is None else make_head(self.n_features, classes)

    def features(self, x: Tensor) -> Tensor:
        """Mean over the sphere of the last field, without the head.

        Parameters
        ----------
        x : (batch, channels, points) tensor

        Returns
        -------
        (batch, n_features) tensor
        """
        if x.ndim != 3 or tuple(x.shape[1:]) != (self.n_in, self.n_points):
            raise InputError(
                expected=f"a tensor of shape (batch, {self.n_in}, {self.n_points})",
                found=str(tuple(x.shape)),
                remedy="one value per channel and point of the grid",
            )
        x = x.permute(2, 1, 0).contiguous()  # (points, channels, batch): once, see fields.py
        out: Tensor = self.mean(self.layers(x))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, points) to (batch, classes), or (batch, n_features) with no head."""
        features = self.features(x)
        return features if self.head is None else self.head(features)


def make_head(n_features: int, classes: int) -> nn.Sequential:
    """Linear(n, 50) - ReLU - Linear(50, classes), the head of the MNIST networks."""
    return nn.Sequential(
        nn.Linear(n_features, HEAD_WIDTH), nn.ReLU(), nn.Linear(HEAD_WIDTH, classes)
    )


def count_parameters(module: nn.Module) -> int:
    """Count the learnable numbers.

    Examples
    --------
    >>> count_parameters(nn.Linear(2, 3))
    9
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
