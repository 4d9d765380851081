"""The compound network on blocks of scans: features of the brains they are from.

The network is the same as on whole scans. A block's margin goes through the kernel network and
nowhere else: it counts neither in the statistics nor in the mean. See `blocks` for what is
estimated, and `norm` for the normalisations.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bids_gevnet.nn.norm import renormalising
from bids_gevnet.nn.staged import Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bids_gevnet.nn.blocks import BlockBatch
    from bids_gevnet.nn.ckn import CKN
    from bids_gevnet.nn.compound import CompoundNetwork


def block_features(network: CompoundNetwork, batch: BlockBatch) -> Tensor:
    """Estimate the mean feature vector of each scan from a block of it.

    Parameters
    ----------
    network : CompoundNetwork
        In training its normalisations learn from the blocks, and its `regions` too, if it has
        any.
    batch : BlockBatch

    Returns
    -------
    features : (batch, n_features) tensor
    """
    with renormalising(network) if network.training else nullcontext():
        voxels = features_by_block(network, batch)
    regions = network.regions
    if regions is None:
        return torch.stack([v.sum(0) * (batch.boxes / len(b)) for v, b in _pairs(voxels, batch)])
    features = torch.stack(
        [
            regions.estimate(values, cells, brain, batch.boxes)
            for values, cells, brain in zip(voxels, batch.cells, batch.brains, strict=True)
        ]
    )
    if network.training:
        regions.update_(batch.cells, [values.detach() for values in voxels])
    return features


def _pairs(voxels: Sequence[Tensor], batch: BlockBatch) -> zip[tuple[Tensor, Tensor]]:
    return zip(voxels, batch.brains, strict=True)


def features_by_block(network: CompoundNetwork, batch: BlockBatch) -> list[Tensor]:
    """Features of the coarse brain voxels of each block: batch times (V_b, n_features)."""
    stride = network.stride
    index = [m[::stride, ::stride, ::stride].flatten().nonzero()[:, 0] for m in batch.masks]
    scans = [network.shells_as_channels(signal[None])[0] for signal in batch.signals]
    if network.ckn is None:
        per_scan = [s.flatten(2).index_select(2, i) for s, i in zip(scans, index, strict=True)]
    else:
        per_scan = _run_ckn(network, network.ckn, scans, index, batch)
    return network.to_features(per_scan, network.block_pieces)


def _run_ckn(
    network: CompoundNetwork,
    ckn: CKN,
    scans: Sequence[Tensor],
    index: Sequence[Tensor],
    batch: BlockBatch,
) -> list[Tensor]:
    """Kernel network on the windows, (directions, shells, x, y, z): its brain voxels."""
    pieces, staged = network.block_pieces, network.volume_stages(ckn)
    counts, channels = len(scans[0]), ckn.channels[-1]
    if pieces.whole:
        maps = staged.run_each(scans, _inside(ckn, batch, range(len(scans))))
        return [m.flatten(2).index_select(2, i) for m, i in zip(maps, index, strict=True)]
    shapes = [scan.shape for scan in scans]
    steps = [max(1, pieces.volume_voxels // math.prod(shape[2:])) for shape in shapes]
    owners = [n for n, step in enumerate(steps) for _ in range(math.ceil(counts / step))]

    def cut(flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [math.prod(shape) for shape in shapes])
        each = zip(parts, shapes, steps, strict=True)
        return [piece for part, shape, n in each for piece in torch.split(part.view(shape), n)]

    def take_brain(piece: int, maps: Tensor) -> Tensor:
        return maps.flatten(2).index_select(2, index[owners[piece]])

    sizes = [counts * channels * len(i) for i in index]
    outputs = staged.run(
        torch.cat([scan.flatten() for scan in scans]),
        cut,
        keep=pieces.keep_volumes,
        finish=Finish(take_brain, sum(sizes)),
        inside=_inside(ckn, batch, owners),
    )
    return [each.view(counts, channels, -1) for each in torch.split(outputs, sizes)]


def _inside(
    ckn: CKN, batch: BlockBatch, owners: Sequence[int]
) -> Callable[[int, int, Tensor], Tensor]:
    """Cut the margin off the output of a layer; `owners` says which scan a piece is of."""
    levels, stride = ckn.levels, ckn.stride

    def inside(piece: int, layer: int, maps: Tensor) -> Tensor:
        low, high = batch.insides[owners[piece]]
        finer = stride // levels[layer]
        for axis, (a, b) in enumerate(zip(low, high, strict=True), start=2):
            end = min(b * finer, maps.shape[axis])
            maps = maps.narrow(axis, a * finer, end - a * finer)
        return maps

    return inside
