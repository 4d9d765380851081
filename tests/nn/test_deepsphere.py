"""DeepSphere against the dense spectral definition, and its symmetries."""

import healpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh

from bids_gevnet.nn.deepsphere import (
    ChebyshevConv,
    DeepSphere,
    healpix_weights,
    normalised_laplacian,
    scaled_laplacian,
)


def _spectral_filter(scaled: np.ndarray, x: torch.Tensor, conv: ChebyshevConv) -> torch.Tensor:
    """y = sum_k U T_k(mu) U^T x Theta_k + b, with numpy's own Chebyshev polynomials."""
    mu, U = np.linalg.eigh(scaled)
    y = conv.bias.detach().expand(x.shape[0], x.shape[1], -1).clone()
    for k, theta in enumerate(conv.weight.detach()):
        response = np.polynomial.chebyshev.chebval(mu, np.eye(k + 1)[k])
        operator = torch.from_numpy(U @ np.diag(response) @ U.T)
        y += torch.einsum("pq,qsi,io->pso", operator, x, theta)
    return y


@pytest.mark.parametrize("nside", [1, 2, 4])
@pytest.mark.parametrize("n_coefficients", [1, 2, 4, 6])
def test_convolution_equals_the_dense_eigendecomposition(nside: int, n_coefficients: int) -> None:
    torch.manual_seed(nside)
    scaled = scaled_laplacian(nside).toarray()
    conv = ChebyshevConv(3, 5, n_coefficients).double()
    torch.nn.init.normal_(conv.bias)
    x = torch.randn(len(scaled), 4, 3, dtype=torch.float64)
    y = conv(x, torch.from_numpy(scaled))
    torch.testing.assert_close(y, _spectral_filter(scaled, x, conv), rtol=1e-11, atol=1e-11)


def test_sparse_and_dense_operators_agree() -> None:
    torch.manual_seed(0)
    scaled = torch.from_numpy(scaled_laplacian(4).toarray())
    conv = ChebyshevConv(2, 3, 4).double()
    x = torch.randn(192, 2, 2, dtype=torch.float64, requires_grad=True)
    dense, sparse = conv(x, scaled), conv(x, scaled.to_sparse_coo())
    torch.testing.assert_close(dense, sparse)
    probe = torch.randn_like(dense)
    (g_dense,) = torch.autograd.grad(dense, x, probe)
    (g_sparse,) = torch.autograd.grad(sparse, x, probe)
    torch.testing.assert_close(g_dense, g_sparse)


@pytest.mark.parametrize("nside", [2, 4, 16])
def test_graph_has_healpix_neighbourhoods_and_its_spectrum_is_scaled(nside: int) -> None:
    weights = healpix_weights(nside)
    degrees = np.diff(weights.indptr)
    assert (degrees == 7).sum() == 24
    assert (degrees == 8).sum() == 12 * nside**2 - 24
    assert abs(weights - weights.T).max() == 0
    assert weights.diagonal().max() == 0
    # The constant, times the root of the degree, is the null vector of the Laplacian.
    root = np.sqrt(weights.sum(axis=1))
    assert np.abs(normalised_laplacian(weights) @ root).max() < 1e-12
    ends = eigsh(scaled_laplacian(nside), k=2, which="BE", return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(ends), [-1, 1], atol=1e-8)


def test_parameter_count_of_the_paper() -> None:
    assert sum(p.numel() for p in DeepSphere().parameters()) == 13_696


def test_geometry_is_not_saved_with_the_weights() -> None:
    assert not any("scaled" in key for key in DeepSphere().state_dict())


@settings(max_examples=4, deadline=None)
@given(turn=st.integers(1, 3), seed=st.integers(0, 99))
def test_quarter_turns_of_the_grid_commute_with_the_network(turn: int, seed: int) -> None:
    # A rotation about z by 90 degrees maps HEALPix to itself, so equivariance is exact.
    torch.manual_seed(seed)
    network = DeepSphere(channels=(2, 3, 4), nside=4).double()
    theta, phi = healpy.pix2ang(4, np.arange(192), nest=True)
    rotated = torch.from_numpy(healpy.ang2pix(4, theta, phi + turn * np.pi / 2, nest=True))
    x = torch.randn(3, 2, 192, dtype=torch.float64)
    torch.testing.assert_close(network(x[..., rotated]), network(x)[..., rotated])
    # Negative control: a permutation that is no rotation of the grid does not commute.
    shuffled = torch.randperm(192)
    assert (network(x[..., shuffled]) - network(x)[..., shuffled]).abs().max() > 0.01


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(1)
    network = DeepSphere(channels=(2, 3, 2), nside=1).double()
    x = torch.randn(3, 2, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(network, (x,))
