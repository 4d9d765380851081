r"""Pooling to a coarser grid with transport, and the mean over the sphere.

    f_avg(p) = mean over a disc around p of rho(t_(p <- q)) f(q)

for p of the coarse grid and q of the fine one. The disc, of radius one fine spacing, is
integrated on rings of equal area with the same quadrature as the convolution: averaging over
the neighbours themselves would leak, because their number and directions differ from point to
point, and the points of a coarse HEALPix grid are not points of the fine one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from bids_gevnet.nn.geometry import GeometryModule
from bids_gevnet.nn.response_matrices import BlockedOperator
from bids_gevnet.sphere.quadrature import DEFAULT_Q, stencil_between

if TYPE_CHECKING:
    from bids_gevnet.nn.fields import FieldType
    from bids_gevnet.sphere.grid import Grid


class TransportPool(nn.Module):
    """Mean over a disc of the fine grid around each point of the coarse one, transported.

    Parameters
    ----------
    fine : Grid
    field : FieldType
    coarse : Grid or None
        None takes fine.coarse(); give one to choose its frames.
    radius : float
        Of the disc, in mean spacings of the fine grid.
    n_rings : int
        Rings of equal area that integrate the disc.
    q : int
        Quadrature nodes per ring.

    Examples
    --------
    >>> import torch
    >>> from bids_gevnet.nn import FieldType
    >>> from bids_gevnet.sphere import icosphere
    >>> field = FieldType.regular(2, 1)
    >>> TransportPool(icosphere(2), field)(torch.randn(162, field.dim, 3)).shape
    torch.Size([42, 6, 3])
    """

    def __init__(
        self,
        fine: Grid,
        field: FieldType,
        coarse: Grid | None = None,
        *,
        radius: float = 1.0,
        n_rings: int = 3,
        q: int = DEFAULT_Q,
    ) -> None:
        super().__init__()
        self.field, self.coarse = field, coarse or fine.coarse()
        radii = tuple(radius * float(np.sqrt((i + 0.5) / n_rings)) for i in range(n_rings))
        stencil = stencil_between(self.coarse, fine, radii, 0, q)
        weight = stencil.weights[:, :, 0].real.mean(axis=1)
        values = {}
        for n in field.frequencies:
            phase = weight * np.exp(1j * n * stencil.angles)
            turn = np.array([[phase.real, -phase.imag], [phase.imag, phase.real]])
            values[n] = np.moveaxis(turn, -1, 0)[:, : 1 if n == 0 else 2, : 1 if n == 0 else 2]
        self.n_fine = fine.n_points
        self.operator = BlockedOperator(self.coarse.points, stencil, values)

    def forward(self, x: Tensor) -> Tensor:
        """Pool a feature map.

        Parameters
        ----------
        x : (fine points, dim, batch) tensor

        Returns
        -------
        (coarse points, dim, batch) tensor
        """
        self.field.check(x, self.n_fine)
        op = self.operator
        parts = []
        for n in self.field.frequencies:
            channels, batch = self.field.multiplicities[n], x.shape[2]
            gathered = x[:, self.field.span(n)].index_select(0, op.sources.view(-1))
            gathered = gathered.reshape(op.n_blocks, -1, channels * batch)
            pooled = torch.bmm(op.matrix(n, x.dtype), gathered)
            parts.append(pooled.view(op.n_blocks * op.size, -1, batch))
        return torch.cat(parts, dim=1).index_select(0, op.place)


class SphereMean(GeometryModule):
    """Area-weighted mean of the scalars over all points; the mean of a vector has no meaning.

    Parameters
    ----------
    grid : Grid
    field : FieldType

    Examples
    --------
    >>> import torch
    >>> from bids_gevnet.nn import FieldType
    >>> from bids_gevnet.sphere import healpix
    >>> SphereMean(healpix(1), FieldType.scalars(2))(torch.ones(12, 2, 3)).shape
    torch.Size([3, 2])
    """

    weights: Tensor

    def __init__(self, grid: Grid, field: FieldType) -> None:
        super().__init__()
        self.field, self.n_points = field, grid.n_points
        self.register_exact("weights", grid.areas / grid.areas.sum())

    def forward(self, x: Tensor) -> Tensor:
        """(points, dim, batch) to (batch, channels of rho0)."""
        self.field.check(x, self.n_points)
        return torch.einsum("p,pcb->bc", self.weights.to(x.dtype), x[:, self.field.span(0)])
