"""A GEVNet cut at its normalisations, so that voxels can go through it piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from bids_gevnet.nn.nonlinearity import RegularNonlinearity, RegularNorm
from bids_gevnet.nn.staged import Staged

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bids_gevnet.nn.gevnet import GEVNet
    from bids_gevnet.nn.staged import Stage


def gevnet_stages(network: GEVNet) -> Staged:
    """Stages of a GEVNet, the mean over the sphere included and a head left out.

    Parameters
    ----------
    network : GEVNet
        Every nonlinearity with a `RegularNorm`, as in the paper.

    Returns
    -------
    staged : Staged
        From pieces (points, channels, voxels) to (voxels, n_features).
    """
    groups: list[list[nn.Module]] = [[]]
    for layer in network.layers:
        if isinstance(layer, RegularNonlinearity):
            groups.append([layer])
        else:
            groups[-1].append(layer)
    groups[-1].append(network.mean)
    norms = [_norm_of(group[0]) for group in groups[1:]]
    return Staged([_stage(group) for group in groups], norms, list(network.layers.parameters()))


def _norm_of(layer: nn.Module) -> RegularNorm:
    norm = cast("RegularNonlinearity", layer).norm
    return cast("RegularNorm", norm)


def _stage(group: list[nn.Module]) -> Stage:
    """Normalise and activate, unless this is the first stage, then convolve and pool."""

    def stage(x: Tensor, affine: Tensor | None, /) -> Tensor:
        layers = group
        if affine is not None:
            x = cast("RegularNonlinearity", group[0]).normalise_and_activate(x, affine)
            layers = group[1:]
        for layer in layers:
            x = layer(x)
        return x

    return stage
