"""The compound network on blocks of scans: features of the brains they are from.

The network is the same as on whole scans. A block's margin goes through the kernel network and
nowhere else: it counts neither in the statistics nor in the mean. See `blocks` for what is
estimated, and `norm` for the normalisations.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from bids_gevnet.nn.norm import renormalising
from bids_gevnet.nn.staged import Finish, Margins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.nn.blocks import BlockBatch
    from bids_gevnet.nn.ckn import CKN, CKNLayer
    from bids_gevnet.nn.compound import CompoundNetwork

    Place = tuple[tuple[int, ...], tuple[int, ...]]


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
    each = zip(voxels, batch.cells, batch.brains, strict=True)
    if regions is None:  # as if all means were 0
        return torch.stack([v.sum(0) * (batch.boxes / len(brain)) for v, _, brain in each])
    estimates = [regions.estimate(v, cells, brain, batch.boxes) for v, cells, brain in each]
    features = torch.stack(estimates)
    if network.training:
        regions.update_(batch.cells, [values.detach() for values in voxels])
    return features


def features_by_block(network: CompoundNetwork, batch: BlockBatch) -> list[Tensor]:
    """Features of the coarse brain voxels of each block: batch times (V_b, n_features)."""
    stride = network.stride
    scans = [network.shells_as_channels(signal[None])[0] for signal in batch.signals]
    index = [
        _narrow(mask[::stride, ::stride, ::stride], box).flatten().nonzero()[:, 0].to(scan.device)
        for scan, mask, box in zip(scans, batch.masks, batch.insides, strict=True)
    ]
    if network.ckn is None:
        per_scan = [
            _narrow(scan, box).flatten(2).index_select(2, i)
            for scan, box, i in zip(scans, batch.insides, index, strict=True)
        ]
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
    counts, channels, last = len(scans[0]), ckn.channels[-1], len(ckn.strides) - 1
    shapes = [scan.shape for scan in scans]
    plans = [
        plan_windows(ckn, box, shape[2:]) for box, shape in zip(batch.insides, shapes, strict=True)
    ]
    if pieces.whole:
        margins = _margins(plans, range(len(scans)))
        maps = staged.run_each(scans, margins)
        inner = [margins.counted(n, last, m) for n, m in enumerate(maps)]
        return [m.flatten(2).index_select(2, i) for m, i in zip(inner, index, strict=True)]
    steps = [max(1, pieces.volume_voxels // math.prod(shape[2:])) for shape in shapes]
    owners = [n for n, step in enumerate(steps) for _ in range(math.ceil(counts / step))]
    margins = _margins(plans, owners)

    def cut(flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [math.prod(shape) for shape in shapes])
        each = zip(parts, shapes, steps, strict=True)
        return [piece for part, shape, n in each for piece in torch.split(part.view(shape), n)]

    def take_brain(piece: int, maps: Tensor) -> Tensor:
        inner = margins.counted(piece, last, maps)
        return inner.flatten(2).index_select(2, index[owners[piece]])

    sizes = [counts * channels * len(i) for i in index]
    outputs = staged.run(
        torch.cat([scan.flatten() for scan in scans]),
        cut,
        keep=pieces.keep_volumes,
        finish=Finish(take_brain, sum(sizes)),
        margins=margins,
    )
    return [each.view(counts, channels, -1) for each in torch.split(outputs, sizes)]


@dataclass(frozen=True)
class LayerWindow:
    """Part of the input of a layer that is needed, and of its output that is in the block."""

    needed: Place
    counted: Place


def plan_windows(ckn: CKN, box: Place, shape: Sequence[int]) -> list[LayerWindow]:
    """Say what each layer needs of its input for the features in a box, from the last one back.

    Parameters
    ----------
    ckn : CKN
    box : pair of 3 int
        First coarse voxel in the block, and the one after its last, counted from the window's.
    shape : 3 int
        Voxels of the window.

    Returns
    -------
    windows : list of LayerWindow
        For each layer; `needed` is counted from the first voxel that the layer before gives.
    """
    axes = [_plan_axis(ckn, low, high, n) for low, high, n in zip(*box, shape, strict=True)]
    return [
        LayerWindow(
            needed=_place([needed for needed, _ in layer]),
            counted=_place([counted for _, counted in layer]),
        )
        for layer in zip(*axes, strict=True)
    ]


def _place(sides: Sequence[tuple[int, int]]) -> Place:
    return tuple(low for low, _ in sides), tuple(high for _, high in sides)


def _plan_axis(
    ckn: CKN, low: int, high: int, n: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """`plan_windows` along one axis."""
    half = cast("CKNLayer", ckn.layers[0]).size // 2
    sizes = [n, *(-(-n // level) for level in ckn.levels)]  # of inputs and the last output
    needed, first, last = [], low, high
    for size, stride in reversed(list(zip(sizes[:-1], ckn.strides, strict=True))):
        reach = half + (stride if stride > 1 else 0)
        # From a multiple of the stride, where the pooling of the whole has a voxel, too.
        first = stride * max(0, (first * stride - reach) // stride)
        last = min(size, (last - 1) * stride + reach + 1)
        needed.append((first, last))
    windows, start = [], 0  # of what the layer before gives
    each = zip(reversed(needed), ckn.strides, ckn.levels, sizes[1:], strict=True)
    for (first, last), stride, level, size in each:
        finer = ckn.stride // level
        given = first // stride
        counted = (finer * low - given, min(finer * high, size) - given)
        windows.append(((first - start, last - start), counted))
        start = given
    return windows


def _margins(plans: Sequence[Sequence[LayerWindow]], owners: Sequence[int]) -> Margins:
    """Cut margins off on the way; `owners` says which scan a piece is of."""
    return Margins(
        needed=lambda piece, layer, x: _narrow(x, plans[owners[piece]][layer].needed),
        counted=lambda piece, layer, x: _narrow(x, plans[owners[piece]][layer].counted),
    )


def _narrow(x: Tensor, place: Place) -> Tensor:
    """Part of the last three axes of a tensor, as a view."""
    for axis, (low, high) in enumerate(zip(*place, strict=True), start=x.ndim - 3):
        x = x.narrow(axis, low, high - low)
    return x
