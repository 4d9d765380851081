"""Decorrelate the shells of a scan before they meet in one patch.

For the vector x of the k shells' signals in one voxel and direction, with mean m and covariance C
over brain voxels of training volumes,

    y = (C + eps^2 I)^(-1/2) (x - m) in the brain, 0 elsewhere.

S/b0 is positive and all shells follow the same anatomy, so that patches of two raw shells point
nearly the same way, along their common part, and a kernel network, which sees directions of
patches, is blind to how the shells differ: on the phantom of benchmarks/results/shells.md it stays
at chance without this step. The symmetric root leaves each channel as near to its shell as
uncorrelated channels can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bids_gevnet.nn.inverse_sqrt import inverse_sqrt

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOOR = 0.05
"""eps over the largest standard deviation: what differs by less between shells is noise."""


class ShellWhitening(nn.Module):
    """(n, shells, x, y, z) to the same shape; does nothing before `fit_`.

    Parameters
    ----------
    shells : int

    Examples
    --------
    >>> one, other = torch.rand(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> volume = torch.stack([one, (one + other) / 2])  # two shells
    >>> whitening = ShellWhitening(2)
    >>> whitening.fit_([volume])
    >>> shells, white = volume.flatten(1), whitening(volume[None])[0].flatten(1)
    >>> [abs(round(float(part.corrcoef()[0, 1]), 1)) for part in (shells, white)]
    [0.7, 0.0]
    """

    mean: Tensor
    mixing: Tensor

    def __init__(self, shells: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shells))
        self.register_buffer("mixing", torch.eye(shells))

    @torch.no_grad()
    def fit_(self, volumes: Sequence[Tensor]) -> None:
        """Take mean and covariance from volumes (shells, x, y, z) that are 0 outside the brain."""
        inside = [v[:, (v != 0).any(0)].double() for v in volumes]
        signals = torch.cat(inside, dim=1)  # (shells, voxels)
        if signals.shape[1] < 2:
            return
        covariance = signals.cov()
        largest = float(torch.linalg.eigvalsh(covariance)[-1]) ** 0.5
        if largest > 0:
            self.mean.copy_(signals.mean(1))
            self.mixing.copy_(inverse_sqrt(covariance, _FLOOR * largest))

    def forward(self, x: Tensor) -> Tensor:
        """Decorrelate.

        Parameters
        ----------
        x : (n, shells, x, y, z) tensor
            0 outside the brain.
        """
        # Differences of shells are small: not for half precision.
        with torch.autocast(x.device.type, enabled=False):
            inside = (x != 0).any(1, keepdim=True)
            centred = x - self.mean.to(x.dtype).view(-1, 1, 1, 1)
            mixed = torch.einsum("ij,njxyz->nixyz", self.mixing.to(x.dtype), centred)
            return mixed * inside
