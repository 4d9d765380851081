r"""Steerable kernels, first and higher order: Eq. (2), Eq. (3), Proposition 3.5 and Eq. (7).

First order. With theta the direction of the neighbour in the frame at p, the complex linear
maps from z of type rho_n to type rho_m that satisfy Eq. (2) are, for any complex number w,

    w z exp(i (m - n) theta)          "plain"
    w conj(z) exp(i (m + n) theta)    "conjugate", a different map only if n > 0 and m > 0.

To rho0 the real part is taken: a real basis of 1 (n = 0) or 2 (Re and Im) kernels. This gives
1, 2, 2, 4 bases for 0->0, 0->1, 1->0, 1->1. A *response* is the mean of such a term over one
ring, a complex number of frequency m (a real one for n = m = 0); times w it is the whole
first-order layer.

Higher order. Proposition 3.5: K2(v1, v2) = K_mn(v1) (x) K_0n(v2) satisfies Eq. (3), so a
response to frequency m times real responses to frequency 0 is again of frequency m. With the
paper's rule that products only occur within one channel and one input frequency, Eq. (7) has
the blocks 00x00: 1, 10x00: 2, 01x01: 4, 11x01: 8 bases, 15 times rings^2. A third factor
K_0n(v3) gives the third order, and so on.

`all_products` lists instead every product of responses of one channel, of any input
frequency, whose frequencies (conjugate ones negative) add up to that of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ive

if TYPE_CHECKING:
    from bids_gevnet.sphere.frames import FloatArray

MAX_SCALE = 12.0


@dataclass(frozen=True)
class Response:
    """One first-order response: rho_n in, frequency m out, plain or conjugate, one ring."""

    n: int
    m: int
    conjugate: bool
    ring: int

    @property
    def frequency(self) -> int:
        """Angular frequency f of the kernel, exp(i f theta)."""
        return self.m + self.n if self.conjugate else self.m - self.n

    @property
    def components(self) -> int:
        """Real numbers of the response: 1 for n = m = 0, else 2."""
        return 1 if self.n == self.m == 0 else 2


def responses(n: int, m: int, n_rings: int) -> tuple[Response, ...]:
    """List the first-order responses from rho_n to frequency m."""
    kinds = (False, True) if n > 0 and m > 0 else (False,)
    return tuple(Response(n, m, kind, ring) for kind in kinds for ring in range(n_rings))


def n_bases(n: int, m: int, n_rings: int) -> int:
    """Real first-order bases (weights per channel pair) from rho_n to rho_m."""
    return sum(r.components for r in responses(n, m, n_rings))


def n_volterra_bases(n: int, m: int, n_rings: int, order: int) -> int:
    """Real bases of one order, from Proposition 3.5: K_mn (x) K_0n (x) ... (x) K_0n."""
    return n_bases(n, m, n_rings) * int(n_bases(n, 0, n_rings) ** (order - 1))


def kernel_matrices(n: int, m: int, theta: float) -> FloatArray:
    """All first-order bases of type (rho_m, rho_n) as real matrices: the angular K of Eq. (2).

    Parameters
    ----------
    n, m : int
        Input and output frequency.
    theta : float
        Direction of v.

    Returns
    -------
    (bases, d_m, d_n) array
        d = 1 for frequency 0, else 2. For n = m = 1 the four matrices of Weiler and Cesa.
    """
    matrices = []
    for kind in (False, True) if n > 0 and m > 0 else (False,):
        wave = np.exp(1j * (m + n if kind else m - n) * theta)
        for w in (1.0, 1j) if n > 0 or m > 0 else (1.0,):
            columns = [w * wave * (z.conjugate() if kind else z) for z in (1 + 0j, 1j)]
            full = np.array([np.real(columns), np.imag(columns)])
            matrices.append(full[: 1 if m == 0 else 2, : 1 if n == 0 else 2])
    return np.array(matrices)


def volterra_kernel_matrices(n: int, m: int, thetas: tuple[float, ...]) -> FloatArray:
    """Higher-order angular bases of type (rho_m, rho_n) by Proposition 3.5.

    Returns
    -------
    (bases, d_m, d_n^k) array
        For k angles; for n = m = 1 and k = 2 the eight 2 x 4 matrices of K11 in Eq. (7).
    """
    product = kernel_matrices(n, m, thetas[0])
    for theta in thetas[1:]:
        scalar = kernel_matrices(n, 0, theta)
        product = np.array([np.kron(a, b) for a in product for b in scalar])
    return product


def response_scale(frequency: int, radius: float) -> float:
    """Factor that brings a response to unit variance on a smooth random signal.

    For a Gaussian random field with covariance exp(-d^2 / 2), d in neighbour spacings, the
    mean over a ring of radius r times exp(i f theta) has the variance exp(-r^2) I_f(r^2),
    I_f the modified Bessel function. Without this the responses of frequency 1 and 2, which
    see gradient and curvature, are several times smaller than those of frequency 0, their
    products smaller still, and training stalls. The factor is bounded, because barycentric
    interpolation does not resolve what a high frequency sees on a small ring.
    """
    if radius == 0:
        return 1.0
    return float(min(MAX_SCALE, 1.0 / np.sqrt(ive(abs(frequency), radius**2))))


Factor = tuple[int, bool]  # index of a response, and whether it is conjugated


def all_products(frequencies: tuple[int, ...], order: int, m: int) -> list[tuple[Factor, ...]]:
    """Every product of `order` responses of one channel with total frequency m.

    Parameters
    ----------
    frequencies : tuple of int
        Frequency of each response; those of frequency 0 are real (give the two parts of a
        complex one as two).
    order : int
    m : int
        Frequency of the output, 0 or more.

    Returns
    -------
    list of tuples of (index, conjugate)
        Each product once. For m = 0 a product and its conjugate count once; its imaginary part
        vanishes if it is its own conjugate (see `is_real`).
    """
    factors: list[Factor] = [(i, False) for i in range(len(frequencies))]
    factors += [(i, True) for i, f in enumerate(frequencies) if f > 0]
    products = []
    for product in combinations_with_replacement(sorted(factors), order):
        total = sum(-frequencies[i] if conj else frequencies[i] for i, conj in product)
        if total == m and (m > 0 or product <= conjugate_product(product, frequencies)):
            products.append(product)
    return products


def conjugate_product(
    product: tuple[Factor, ...], frequencies: tuple[int, ...]
) -> tuple[Factor, ...]:
    """Return the complex conjugate of a product, in canonical order."""
    return tuple(sorted((i, not conj if frequencies[i] > 0 else conj) for i, conj in product))


def is_real(product: tuple[Factor, ...], frequencies: tuple[int, ...]) -> bool:
    """Whether a product of total frequency 0 is its own conjugate."""
    return product == conjugate_product(product, frequencies)
