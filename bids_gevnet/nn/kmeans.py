"""Spherical k-means: k unit vectors z_j that maximise sum_i max_j <x_i, z_j> for unit x_i."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spherical_kmeans(
    patches: Tensor,
    n_clusters: int,
    *,
    generator: torch.Generator,
    n_iterations: int = 100,
    block: int = 65_536,
    tolerance: float = 1e-6,
) -> Tensor:
    """Cluster directions.

    Parameters
    ----------
    patches : (n, d) tensor
        Not zero; their length does not matter.
    n_clusters : int
    generator
        Source of all randomness, so that a seed fixes the result; on the CPU, wherever the
        patches are.
    n_iterations : int
        At most so many rounds.
    block : int
        Patches compared with the centres at a time.
    tolerance : float
        Stop when the mean cosine grows by less.

    Returns
    -------
    centres : (n_clusters, d) tensor
        Unit vectors.
    """
    x = torch.nn.functional.normalize(patches, dim=1)
    centres = _spread_start(x, n_clusters, generator)
    before = -torch.inf
    for _ in range(n_iterations):
        sums = torch.zeros_like(centres)
        cosines, labels = _nearest(x, centres, block)
        sums.index_add_(0, labels, x)
        counts = torch.bincount(labels, minlength=n_clusters)
        centres = _unit(sums, generator)
        # An empty cluster restarts at the patch that is served worst.
        worst = cosines.argsort()
        for rank, empty in enumerate((counts == 0).nonzero().flatten().tolist()):
            if cosines[worst[rank]] < 1 - 1e-6:
                centres[empty] = x[worst[rank]]
        score = cosines.mean().item()
        if score - before < tolerance and bool((counts > 0).all()):
            break
        before = score
    return centres


def _nearest(x: Tensor, centres: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Cosine to, and index of, the closest centre of each patch, block by block."""
    best = [(part @ centres.T).max(dim=1) for part in torch.split(x, block)]
    return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])


def _spread_start(x: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """Start by greedy k-means++, as scikit-learn does.

    Of a few patches drawn with probability proportional to 1 - cosine, the one that leaves the
    least to the others becomes the next centre.
    """
    first = torch.randint(len(x), (1,), generator=generator).to(x.device)
    centres = x[first]
    distance = (1 - (x @ centres[0])).clamp_min(0)
    tries = 2 + int(math.log(n_clusters))
    while len(centres) < n_clusters:
        # Fewer distinct patches than centres: the rest start anywhere.
        if float(distance.max()) < 1e-6:
            drawn = _unit(torch.zeros_like(centres[:1]), generator)
        else:
            total = distance.double().cumsum(0)
            places = torch.rand(tries, generator=generator, dtype=torch.float64).to(x.device)
            drawn = x[torch.searchsorted(total, places * total[-1]).clamp_max(len(x) - 1)]
        left = torch.minimum(distance[:, None], (1 - x @ drawn.T).clamp_min(0))  # (n, tries)
        best = left.sum(0).argmin()
        centres = torch.cat((centres, drawn[best][None]))
        distance = left[:, best]
    return centres


def _unit(vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Scale to unit length; a vanishing vector becomes a random direction."""
    lost = vectors.norm(dim=1) < 1e-6
    noise = torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype)
    noise = noise.to(vectors.device)
    return torch.nn.functional.normalize(torch.where(lost[:, None], noise, vectors), dim=1)
