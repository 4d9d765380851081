"""Gains of `gains` applied where the samples are: on the CPU or on a GPU, by PyTorch.

The same map as `RishGains.apply`, all voxels at once and without a copy to the host. Gains of a
site are copied to the device when its first scan comes, and stay there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from bids_gevnet.harmonisation.gains import RishGains


class DeviceGains:
    """A fitted harmonisation on a device.

    Parameters
    ----------
    gains : RishGains
    device : torch.device
    """

    def __init__(self, gains: RishGains, device: torch.device) -> None:
        self._gains, self._device = gains, device
        self._analysis, self._synthesis, self._membership = (
            torch.from_numpy(matrix).to(device) for matrix in gains.operators()
        )
        self._excess: dict[str, Tensor | None] = {}

    def apply(self, samples: Tensor, site: str, places: Tensor) -> Tensor:
        """Harmonise the brain voxels of a scan; one from an unknown site comes back as it is.

        Parameters
        ----------
        samples : (n_voxels, points) float32 tensor
            Shell after shell.
        site : str
        places : (n_voxels,) int tensor
            Number of each voxel in the flattened grid.

        Returns
        -------
        harmonised : (n_voxels, points) tensor
        """
        excess = self._of_site(site)
        if excess is None:
            return samples
        flat = samples.view(-1, len(self._analysis))  # (voxels * shells, points)
        gains = excess.index_select(0, places).view(len(flat), -1)  # (voxels * shells, degrees)
        coefficients = (flat @ self._analysis) * (gains @ self._membership)
        return torch.addmm(flat, coefficients, self._synthesis).view_as(samples)

    def _of_site(self, site: str) -> Tensor | None:
        """Gains minus 1, (voxels of the grid, shells * degrees); None if nothing is changed."""
        if site not in self._excess:
            changed = self._gains.corrects(site)
            values = self._gains.gains[self._gains.sites.index(site)] - 1 if changed else None
            self._excess[site] = (
                None if values is None else torch.from_numpy(values).flatten(0, 2).to(self._device)
            )
        return self._excess[site]
