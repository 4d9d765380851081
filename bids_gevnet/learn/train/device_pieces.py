"""How to cut up a batch on a GPU: as little as its free memory allows.

On a CPU pieces are small, because a cache is fast and memory is slow. A GPU wants few and large
operators: each costs the host some microseconds, and a GPU that waits for them is idle. So the
whole batch goes at once if everything that the backward pass needs fits; if not, pieces are as
large as fit. Bytes per voxel and point are those that `benchmarks/gpu_plan.py` counts for
float32, rounded up.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.nn.compound import Pieces, ScanNetwork

VOXEL_BYTES = 90
"""Of one voxel of one volume on its way through the kernel network, with all that is kept."""
POINT_BYTES = 1_250
"""Of one point of one sphere on its way through the spherical network, with all that is kept."""
_KEPT_BYTES = 600  # of one point, where only what lies between two normalisations is kept
_SCRATCH = 2_000_000_000  # of the operators, and the weights
_USED = 0.8  # part of the free memory: the allocator leaves holes


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free on a GPU; None where nobody can say."""
    if device.type != "cuda":
        return None
    free: int = torch.cuda.mem_get_info(device)[0]
    # What PyTorch has taken and does not use at the moment is free for us.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def fit_one_scan_(network: ScanNetwork, shape: Sequence[int], nside: int) -> None:
    """Set the pieces of a network for one scan at a time, on the GPU that it is on, if any.

    Parameters
    ----------
    network : ScanNetwork
    shape : (X, Y, Z)
    nside : int
    """
    free = free_bytes(next(network.parameters()).device)
    if free is None:
        return
    voxels, directions = math.prod(shape), 6 * nside**2
    network.pieces = device_pieces(
        network.pieces,
        free=free,
        voxels=network.shells * directions * voxels,
        points=2 * directions * -(-voxels // network.stride**3),
        points_per_sphere=2 * directions,
    )


def device_pieces(
    start: Pieces, *, free: int, voxels: int, points: int, points_per_sphere: int
) -> Pieces:
    """Choose pieces for a GPU.

    Parameters
    ----------
    start : Pieces
        What is not chosen here.
    free : int
        Bytes.
    voxels : int
        Of all volumes of a process's share of a batch; 0 without a kernel network.
    points : int
        Of all spheres of that share; 0 without a spherical network.
    points_per_sphere : int

    Examples
    --------
    >>> from bids_gevnet.nn.compound import Pieces
    >>> paper = {"voxels": 54_000_000, "points": 600_000, "points_per_sphere": 192}  # one scan
    >>> device_pieces(Pieces(), free=38 * 10**9, **paper).whole
    True
    >>> device_pieces(Pieces(), free=6 * 10**9, **paper).volume_voxels > 10_000_000
    True
    """
    # The scans themselves, with their gradient where somebody asks for it, are there as well.
    budget = max(0.0, _USED * free - _SCRATCH - 8 * voxels)
    whole = VOXEL_BYTES * voxels + POINT_BYTES * points <= budget
    kept = _KEPT_BYTES * points <= budget / 2
    left = budget - (_KEPT_BYTES * points if kept else 0)
    return replace(
        start,
        whole=whole,
        keep_sphere=kept,
        volume_voxels=max(start.volume_voxels, int(left / VOXEL_BYTES)),
        sphere_voxels=max(start.sphere_voxels, int(left / (POINT_BYTES * points_per_sphere))),
    )
