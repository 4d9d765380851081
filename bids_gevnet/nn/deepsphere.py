"""DeepSphere: Chebyshev graph convolution on the HEALPix grid (the paper's comparison in Table 3).

    W_ij = exp(-|x_i - x_j|^2 / (2 w)) for the 7 or 8 HEALPix neighbours j of i,
           w = mean of |x_i - x_j|^2 over all edges,                           (`healpix_weights`)
    L = I - D^(-1/2) W D^(-1/2),    D = diag(sum_j W_ij),            (`normalised_laplacian`)
    M = (2 / lambda_max) L - I, with spectrum in [-1, 1],                  (`scaled_laplacian`)
    y = sum_{k=0}^{K-1} T_k(M) x Theta_k + b,                                  (`ChebyshevConv`)

with T_0 = 1, T_1 = M, T_k = 2 M T_{k-1} - T_{k-2}; in the spectral domain M = U diag(mu) U^T this
is y = sum_k U diag(T_k(mu)) U^T x Theta_k. Ordering is nested; K is `n_coefficients`.

The kernel is isotropic on the graph, hence approximately rotation equivariant without frames. Each
convolution has a bias and is followed by batch normalisation and ReLU, the last one included: the
only reading that gives the paper's 13,696 parameters for 8-32-32-64 and K = 4.

Features are laid out (points, samples, channels) inside: M then acts on all samples and channels
in one matrix product, and so does Theta_k, without a transposition in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import healpy
import numpy as np
import scipy.sparse
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from bids_gevnet.nn.norm import MomentNorm
from bids_gevnet.nn.staged import Staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.nn.staged import Stage

# Up to this size a dense product is as fast as a sparse one on a CPU, and knows half precision.
_LARGEST_DENSE = 768


def healpix_weights(nside: int) -> Any:
    """Gaussian edge weights between neighbouring HEALPix points.

    Parameters
    ----------
    nside : int
        HEALPix resolution, a power of 2.

    Returns
    -------
    weights : (12 nside^2, 12 nside^2) scipy CSR array
        Symmetric, zero diagonal, nested ordering.
    """
    n_points = healpy.nside2npix(nside)
    points = np.stack(healpy.pix2vec(nside, np.arange(n_points), nest=True), axis=1)
    neighbours = healpy.get_all_neighbours(nside, np.arange(n_points), nest=True)  # (8, n)
    rows = np.tile(np.arange(n_points), neighbours.shape[0])
    columns = neighbours.ravel()
    real = columns >= 0  # 24 points of any HEALPix grid have 7 neighbours only; healpy says -1
    # On the coarsest grids two of the eight directions lead to the same point: one edge, not two.
    edges = np.unique(np.stack((rows[real], columns[real]), axis=1), axis=0)
    squared = np.sum((points[edges[:, 0]] - points[edges[:, 1]]) ** 2, axis=1)
    weights = np.exp(-squared / (2 * squared.mean()))
    matrix = scipy.sparse.csr_array(
        (weights, (edges[:, 0], edges[:, 1])), shape=(n_points, n_points)
    )
    return matrix.maximum(matrix.T)


def normalised_laplacian(weights: Any) -> Any:
    """Graph Laplacian I - D^(-1/2) W D^(-1/2): (n, n) CSR array to (n, n) CSR array."""
    inverse_root = scipy.sparse.diags_array(1 / np.sqrt(weights.sum(axis=1)))
    identity = scipy.sparse.eye_array(weights.shape[0])
    return scipy.sparse.csr_array(identity - inverse_root @ weights @ inverse_root)


def scaled_laplacian(nside: int) -> Any:
    """Laplacian of the HEALPix graph with its spectrum moved to [-1, 1].

    Parameters
    ----------
    nside : int

    Returns
    -------
    scaled : (12 nside^2, 12 nside^2) scipy CSR array
    """
    laplacian = normalised_laplacian(healpix_weights(nside))
    n_points = laplacian.shape[0]
    if n_points <= _LARGEST_DENSE:
        largest = float(np.linalg.eigvalsh(laplacian.toarray())[-1])
    else:
        # A fixed starting vector, or ARPACK would give other digits in every process.
        start: NDArray[np.float64] = np.random.default_rng(0).standard_normal(n_points)
        largest = float(eigsh(laplacian, k=1, which="LA", v0=start, tol=1e-10)[0][0])
    return scipy.sparse.csr_array((2 / largest) * laplacian - scipy.sparse.eye_array(n_points))


class ChebyshevConv(nn.Module):
    """y = sum_k T_k(M) x Theta_k + b, on features laid out (points, samples, channels).

    Parameters
    ----------
    n_in, n_out : int
        Channels.
    n_coefficients : int
        K, the number of Chebyshev polynomials; the filter reaches K - 1 edges far.
    """

    def __init__(self, n_in: int, n_out: int, n_coefficients: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_coefficients, n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        # He initialisation for the ReLU that follows, over the fan-in of all polynomials.
        nn.init.normal_(self.weight, std=math.sqrt(2 / (n_in * n_coefficients)))

    def forward(self, x: Tensor, scaled: Tensor) -> Tensor:
        """Filter.

        Parameters
        ----------
        x : (points, samples, n_in) tensor
        scaled : (points, points) dense or sparse tensor
            M, the scaled Laplacian.

        Returns
        -------
        y : (points, samples, n_out) tensor
        """
        n_points, n_samples, n_in = x.shape
        polynomials = [x.contiguous().view(n_points, -1)]  # each (points, samples * n_in)
        if len(self.weight) > 1:
            polynomials.append(scaled @ polynomials[0])
        while len(polynomials) < len(self.weight):
            previous, last = polynomials[-2:]
            polynomials.append(torch.addmm(previous, scaled, last, beta=-1, alpha=2))
        y = self.bias.expand(n_points * n_samples, -1)
        for polynomial, theta in zip(polynomials, self.weight, strict=True):
            y = torch.addmm(y, polynomial.view(-1, n_in), theta)
        return y.view(n_points, n_samples, -1)


class DeepSphere(nn.Module):
    """Chebyshev convolution, batch normalisation and ReLU, layer after layer, on one grid.

    Parameters
    ----------
    channels : sequence of int
        Channels from input to output.
    n_coefficients : int
        Chebyshev polynomials per layer.
    nside : int
        HEALPix resolution; 4 is the 192 points of the paper.

    Examples
    --------
    >>> DeepSphere((8, 16), 3, nside=2)(torch.randn(4, 8, 48)).shape
    torch.Size([4, 16, 48])
    """

    scaled: Tensor

    def __init__(
        self,
        channels: Sequence[int] = (8, 32, 32, 64),
        n_coefficients: int = 4,
        nside: int = 4,
    ) -> None:
        super().__init__()
        self.channels = tuple(channels)
        self.nside = nside
        pairs = list(zip(self.channels[:-1], self.channels[1:], strict=True))
        self.convs = nn.ModuleList(ChebyshevConv(i, o, n_coefficients) for i, o in pairs)
        self.norms = nn.ModuleList(MomentNorm(o, channel_dim=2) for _, o in pairs)
        matrix = torch.from_numpy(scaled_laplacian(nside).toarray()).float()
        if len(matrix) > _LARGEST_DENSE:
            matrix = matrix.to_sparse()
        # Geometry follows from nside: no need to save it with the weights.
        self.register_buffer("scaled", matrix, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network.

        Parameters
        ----------
        x : (samples, channels[0], 12 nside^2) tensor
            Signals in nested ordering.

        Returns
        -------
        y : (samples, channels[-1], 12 nside^2) tensor
        """
        x = x.permute(2, 0, 1)  # (points, samples, channels)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x, self.scaled)))
        return x.permute(1, 2, 0)

    @property
    def n_features(self) -> int:
        """Channels at the output."""
        return self.channels[-1]

    def staged(self) -> Staged:
        """Cut the network, with a mean over points at its end, at its normalisations.

        Takes pieces (points, channels[0], samples), gives (samples, channels[-1]).
        """
        numbers = range(len(self.convs) + 1)
        norms = [self._norm(k) for k in numbers[:-1]]
        return Staged([self._stage(k) for k in numbers], norms, list(self.parameters()))

    def _norm(self, number: int) -> MomentNorm:
        return cast("MomentNorm", self.norms[number])

    def _stage(self, number: int) -> Stage:
        def stage(x: Tensor, affine: Tensor | None, /) -> Tensor:
            if affine is None:
                x = x.transpose(1, 2)  # (points, samples, channels)
            else:
                x = torch.relu(self._norm(number - 1).normalise(x, affine))
            if number == len(self.convs):
                return x.mean(0)  # HEALPix points have equal areas
            return cast("Tensor", self.convs[number](x, self.scaled))

        return stage
