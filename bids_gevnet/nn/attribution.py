"""What a prediction rests on: gradients of a class score, per voxel and per direction.

With the score F_c of class c, minus the mean score of all others (`margin`; softmax does not see
what is common to all), the attribution A of each input sample x_i is

    gradient       A_i = dF_c / dx_i                              sensitivity
    product        A_i = (x_i - b_i) dF_c / dx_i                  first-order share
    integrated     A_i = (x_i - b_i) int_0^1 dF_c/dx_i (b + t (x - b)) dt

b is the `baseline`, 0 unless given. The integrated gradients (Sundararajan 2017) add up to
F_c(x) - F_c(b); the integral is the midpoint sum of `n_steps` terms. Maps for display are
root mean squares: of A over directions for a voxel, over brain voxels for a direction.

The network is put in its state after training, with fixed statistics, and goes through the scan
piece by piece as always: memory holds the scan, its gradient and one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.resampling import expand_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from bids_gevnet.nn.compound import ScanNetwork

Method = Literal["gradient", "product", "integrated"]


@dataclass(frozen=True)
class Saliency:
    """Attribution of one prediction for one scan.

    Parameters
    ----------
    target : int
        The class that is explained.
    scores : (classes,) tensor
        The network's scores.
    attribution : (shells * 6 nside^2, X, Y, Z) tensor
        A of every distinct direction and voxel, shell after shell.
    voxels : (X, Y, Z) tensor
        Root mean square over directions and shells.
    directions : (shells * 6 nside^2,) tensor
        Root mean square over brain voxels.
    shells : int

    Examples
    --------
    >>> from bids_gevnet.nn import build, saliency
    >>> mask = torch.ones(4, 4, 4, dtype=torch.bool)
    >>> explained = saliency(build("ckn2", nside=1), torch.rand(6, 4, 4, 4), mask)
    >>> explained.directions.shape, explained.on_sphere().shape
    (torch.Size([6]), torch.Size([12]))
    """

    target: int
    scores: Tensor
    attribution: Tensor
    voxels: Tensor
    directions: Tensor
    shells: int = 1

    def on_sphere(self) -> Tensor:
        """Directions on all HEALPix points, opposite ones alike: (12 nside^2,) tensor."""
        directions = self.over_shells()
        nside = round((len(directions) / 6) ** 0.5)
        return directions[torch.from_numpy(expand_index(nside)).to(directions.device)]

    def over_shells(self) -> Tensor:
        """Root mean square of directions over shells: (6 nside^2,) tensor."""
        if self.shells == 1:
            return self.directions
        return self._by_shell().square().mean(0).sqrt()

    def shell_shares(self) -> Tensor:
        """Share of each shell in the squared attribution: (shells,) tensor that adds up to 1."""
        squares = self._by_shell().square().sum(1)
        return squares / squares.sum().clamp_min(1e-30)

    def _by_shell(self) -> Tensor:
        return torch.unflatten(self.directions, 0, (self.shells, -1))


def margin(scores: Tensor, target: int) -> Tensor:
    """Score of a class minus the mean of the others: (samples, classes) to (samples,) tensor."""
    n_classes = scores.shape[1]
    if n_classes == 1:  # a number that is predicted has no others beside it
        return scores[:, 0]
    return (scores[:, target] * n_classes - scores.sum(1)) / (n_classes - 1)


def attribute(
    network: nn.Module,
    forward: Callable[[Tensor], Tensor],
    x: Tensor,
    target: int | None = None,
    *,
    method: Method = "gradient",
    baseline: Tensor | None = None,
    n_steps: int = 16,
) -> tuple[Tensor, Tensor, int]:
    """Attribution for any network, of the sphere or of scans.

    Parameters
    ----------
    network
        The module whose mode is set to evaluation meanwhile; its parameters get no gradients.
    forward : callable
        Input to scores, (1, ...) to (1, classes): the network itself, or with its other inputs.
    x : (1, ...) tensor
        One sample.
    target : int or None
        Class to explain; None for the one with the highest score.
    method
        See the module's docstring.
    baseline : (1, ...) tensor or None
        b; zeros if None.
    n_steps : int
        Points of the integral.

    Returns
    -------
    attribution : (...) tensor
    scores : (classes,) tensor
    target : int
    """
    if len(x) != 1:
        raise InputError(
            expected="one sample at a time",
            found=f"a batch of {len(x)}",
            remedy="call once for each sample",
        )
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            scores = forward(x)[0]
        if not -len(scores) <= (target or 0) < len(scores):
            raise InputError(
                expected=f"a class from 0 to {len(scores) - 1}",
                found=str(target),
                remedy="count classes from 0",
            )
        chosen = int(scores.argmax()) if target is None else target
        start = torch.zeros_like(x) if baseline is None else baseline
        steps = [(k + 0.5) / n_steps for k in range(n_steps)] if method == "integrated" else [1.0]
        total = torch.zeros_like(x)
        for t in steps:
            point = torch.lerp(start, x, t).requires_grad_()
            with torch.enable_grad():
                value = margin(forward(point), chosen).sum()
                total += torch.autograd.grad(value, point)[0] / len(steps)
        attribution = total if method == "gradient" else total.mul_(x - start)
    finally:
        for module, training in modes:
            module.training = training
    return attribution[0], scores, chosen


def saliency(
    network: ScanNetwork,
    scan: Tensor,
    mask: Tensor,
    target: int | None = None,
    *,
    method: Method = "gradient",
    baseline: Tensor | None = None,
    n_steps: int = 16,
) -> Saliency:
    """Explain the prediction of a network for one scan.

    Parameters
    ----------
    network
        Any network that classifies scans.
    scan : (shells * 6 nside^2, X, Y, Z) tensor
    mask : (X, Y, Z) bool tensor
    target : int or None
        Class to explain; None for the predicted one.
    method, n_steps
        See the module's docstring.
    baseline : (shells * 6 nside^2, X, Y, Z) tensor or None
        For instance the mean scan of a reference group; zeros if None.

    Returns
    -------
    saliency : Saliency

    Examples
    --------
    >>> from bids_gevnet.nn import build
    >>> network = build("ckn2", nside=1)
    >>> mask = torch.ones(4, 4, 4, dtype=torch.bool)
    >>> saliency(network, torch.rand(6, 4, 4, 4), mask).voxels.shape
    torch.Size([4, 4, 4])
    """
    attribution, scores, chosen = attribute(
        network,
        lambda x: network(x, mask[None]),
        scan[None].float(),
        target,
        method=method,
        baseline=None if baseline is None else baseline[None].float(),
        n_steps=n_steps,
    )
    # One pass over the attribution each, without a squared copy of it.
    n_directions = len(attribution)
    voxels = torch.linalg.vector_norm(attribution, dim=0) / n_directions**0.5
    brain = mask.flatten().nonzero()[:, 0]  # once: a GPU's host waits for it
    inside = torch.stack(
        [torch.linalg.vector_norm(a.flatten().index_select(0, brain)) for a in attribution]
    )
    shells = network.shells
    return Saliency(chosen, scores, attribution, voxels, inside / mask.sum().sqrt(), shells)


def sphere_saliency(
    network: nn.Module,
    signal: Tensor,
    target: int | None = None,
    *,
    method: Method = "gradient",
    n_steps: int = 16,
) -> Tensor:
    """Explain the output of a spherical network for one signal, per direction.

    Parameters
    ----------
    network
        From (1, channels, points) to (1, classes), as every spherical network of the zoo.
    signal : (channels, points) tensor
    target : int or None
        Output to explain; None for the largest.
    method, n_steps
        See the module's docstring.

    Returns
    -------
    directions : (points,) tensor
        Root mean square over channels.

    Examples
    --------
    >>> from bids_gevnet.nn import GEVNet
    >>> from bids_gevnet.sphere import healpix
    >>> network = GEVNet(healpix(1), "1-2-2", samples=7, classes=2)
    >>> sphere_saliency(network, torch.randn(1, 12)).shape
    torch.Size([12])
    """
    attribution, _, _ = attribute(
        network, network, signal[None], target, method=method, n_steps=n_steps
    )
    return attribution.square().mean(0).sqrt()
