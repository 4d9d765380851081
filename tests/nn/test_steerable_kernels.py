"""Steerability of every basis kernel, Eq. (2) and (3), and the counts of the paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.nn.steerable_kernels import (
    all_products,
    is_real,
    kernel_matrices,
    n_bases,
    n_volterra_bases,
    response_scale,
    volterra_kernel_matrices,
)

angle = st.floats(-7, 7)
frequency = st.integers(0, 3)


def rho(n, t):
    """rho_n(t): the matrix of multiplication by exp(i n t)."""
    if n == 0:
        return np.eye(1)
    return np.array([[np.cos(n * t), -np.sin(n * t)], [np.sin(n * t), np.cos(n * t)]])


def kron_power(matrix, k):
    out = np.eye(1)
    for _ in range(k):
        out = np.kron(out, matrix)
    return out


@settings(deadline=None)
@given(frequency, frequency, angle, angle)
def test_first_order_kernels_are_steerable(n, m, theta, t):
    """Eq. (2): K(t^-1 v) = rho_out(t^-1) K(v) rho_in(t)."""
    turned, kernels = kernel_matrices(n, m, theta - t), kernel_matrices(n, m, theta)
    assert np.allclose(turned, rho(m, -t) @ kernels @ rho(n, t), atol=1e-9)


@settings(deadline=None)
@given(frequency, frequency, st.lists(angle, min_size=2, max_size=3), angle)
def test_higher_order_kernels_are_steerable(n, m, thetas, t):
    """Eq. (3) with rho_in^(x)k, for the products of Proposition 3.5, orders 2 and 3."""
    kernels = volterra_kernel_matrices(n, m, tuple(thetas))
    turned = volterra_kernel_matrices(n, m, tuple(theta - t for theta in thetas))
    expected = rho(m, -t) @ kernels @ kron_power(rho(n, t), len(thetas))
    assert np.allclose(turned, expected, atol=1e-9)


def test_a_wrong_frequency_is_not_steerable():
    """Negative control: cos(theta) as a kernel between scalars."""
    theta, t = 0.4, 1.1
    assert not np.isclose(np.cos(theta - t), np.cos(theta))


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_bases_are_independent_and_as_many_as_steerable_maps_exist(n, m):
    """Solve Eq. (2) numerically: with K(theta) = rho_m(theta) K(0) rho_n(-theta) any K(0) will do.

    So the space of kernels has the dimension of K(0), 1, 2 or 4.
    """
    stack = np.stack([kernel_matrices(n, m, t).reshape(n_bases(n, m, 1), -1) for t in (0.3, 1.9)])
    flat = np.concatenate(stack, axis=1)
    assert np.linalg.matrix_rank(flat) == n_bases(n, m, 1)
    assert n_bases(n, m, 1) == (1 if n == 0 else 2) * (1 if m == 0 else 2)


def test_the_papers_printed_kernel_is_among_the_bases():
    a, b = 0.3, -1.2
    printed = np.kron(
        [[np.cos(2 * a), np.sin(2 * a)], [np.sin(2 * a), -np.cos(2 * a)]], [[np.cos(b), np.sin(b)]]
    )
    bases = volterra_kernel_matrices(1, 1, (a, b)).reshape(8, -1)
    residual = np.linalg.lstsq(bases.T, printed.ravel(), rcond=None)[1]
    in_span = residual.size == 0 or residual[0] < 1e-20
    assert in_span
    assert any(np.allclose(k, printed.ravel()) for k in bases)


def test_counts_of_the_paper():
    assert [n_bases(n, m, 1) for n, m in ((0, 0), (0, 1), (1, 0), (1, 1))] == [1, 2, 2, 4]
    second = [n_volterra_bases(n, m, 1, 2) for n, m in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert second == [1, 2, 4, 8]
    assert sum(n_volterra_bases(n, m, 2, 2) for n in (0, 1) for m in (0, 1)) == 60


def test_full_products_by_hand():
    """Two real factors (r, s) and one complex z of frequency 1."""
    frequencies = (0, 0, 1)
    to0 = all_products(frequencies, 2, 0)
    assert len(to0) == 4  # rr, rs, ss, |z|^2
    assert all(is_real(p, frequencies) for p in to0)
    assert len(all_products(frequencies, 2, 1)) == 2  # rz, sz
    assert len(all_products(frequencies, 2, 2)) == 1  # zz
    assert len(all_products((1, 1), 2, 0)) == 3  # |z|^2, |w|^2, z conj(w)
    assert [is_real(p, (1, 1)) for p in all_products((1, 1), 2, 0)].count(False) == 1


@pytest.mark.parametrize("f", [0, 1, 2])
def test_scale_gives_unit_variance_on_a_gaussian_field(f):
    """Monte Carlo of a random plane-wave field with covariance exp(-d^2 / 2)."""
    rng, r, n_waves = np.random.default_rng(0), 1.2, 40_000
    k = rng.normal(size=(n_waves, 2))  # spectral density of that covariance
    theta = 2 * np.pi * np.arange(64) / 64
    ring = r * np.stack([np.cos(theta), np.sin(theta)])
    waves = np.exp(1j * k @ ring)  # each has unit variance
    response = (waves * np.exp(1j * f * theta)).mean(1)
    assert np.mean(np.abs(response) ** 2) ** 0.5 * response_scale(f, r) == pytest.approx(
        1, rel=0.03
    )
