r"""Diffusion signal of tensor mixtures, with a scanner gain per spherical-harmonic degree.

A fibre along u with eigenvalues lambda_par, lambda_perp gives, for the unit gradient g,

    E(t) = exp(-b lambda_perp - b (lambda_par - lambda_perp) t^2),      t = u . g,

which is ``dipy.sims.voxel.single_tensor``; a voxel is the sum over compartments
(``multi_tensor``). E depends on t alone, so its part of degree l is a_l P_l(t) with
a_l = (2l + 1)/2 times the integral of E P_l over [-1, 1], and two changes have closed forms:

    dispersion kappa   E -> (1 - kappa) E + kappa a_0        (spherical mean a_0 unchanged)
    gain h_l           E -> E + sum over l of (h_l - 1) a_l P_l(t),      l = 0, 2, 4.

Gains of a scanner act on the whole signal of a voxel; sums of compartments are linear, so they
may act on each compartment. In the code a_l is ``legendre_coefficients``, t^2 is ``cos_squared``,
h is ``gains``, kappa is ``dispersion``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import legendre

from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

DEGREES = (0, 2, 4)
EIGENVALUES = (1.7e-3, 0.3e-3)  # along and across a fibre, mm²/s
UNIT_GAINS = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Isotropic:
    """A compartment that diffuses equally in all directions.

    Parameters
    ----------
    amplitude : float
        Signal without diffusion weighting, white matter being about 1.
    diffusivity : float
        mm²/s.
    """

    amplitude: float
    diffusivity: float


# T2-weighted contrast: fluid bright, white matter darkest, fat-suppressed scalp dim.
WHITE_AMPLITUDE = 1.0
GREY = Isotropic(1.3, 0.8e-3)
FLUID = Isotropic(2.6, 3.0e-3)
SKULL = Isotropic(0.05, 0.5e-3)
SCALP = Isotropic(0.45, 0.9e-3)


@lru_cache(maxsize=4096)
def legendre_coefficients(b: float) -> tuple[float, float, float]:
    """Coefficients a_0, a_2, a_4 of one fibre's signal at b-value `b` (64-point quadrature)."""
    t, weights = legendre.leggauss(64)
    along, across = EIGENVALUES
    signal = np.exp(-b * across - b * (along - across) * t**2)
    a0, a2, a4 = (
        (2 * degree + 1) / 2 * float(np.sum(weights * signal * legendre.legval(t, unit)))
        for degree, unit in ((d, np.eye(d + 1)[d]) for d in DEGREES)
    )
    return a0, a2, a4


def fibre_signal(
    cos_squared: Floats,
    b: float,
    dispersion: Floats | float = 0.0,
    gains: tuple[float, float, float] = UNIT_GAINS,
) -> Floats:
    """Signal of a fibre population of amplitude 1.

    Parameters
    ----------
    cos_squared : (...) array
        Squared cosine of the angle between fibre and gradient.
    b : float
        s/mm².
    dispersion : (...) array or float
        Fraction of fibres that point everywhere equally.
    gains : tuple of float
        Scanner gains of degrees 0, 2, 4.

    Returns
    -------
    (...) array
    """
    along, across = EIGENVALUES
    a0, a2, a4 = legendre_coefficients(float(b))
    signal = np.exp(-b * across - b * (along - across) * cos_squared)
    if gains[1:] != UNIT_GAINS[1:]:
        p2 = (3 * cos_squared - 1) / 2
        p4 = (35 * cos_squared**2 - 30 * cos_squared + 3) / 8
        signal = signal + (gains[1] - 1) * a2 * p2 + (gains[2] - 1) * a4 * p4
    mixed: Floats = (1 - dispersion) * signal + dispersion * a0 + (gains[0] - 1) * a0
    return mixed


def isotropic_signal(
    compartment: Isotropic, b: float, gains: tuple[float, float, float] = UNIT_GAINS
) -> float:
    """Signal of an isotropic compartment of volume fraction 1."""
    return float(compartment.amplitude * gains[0] * np.exp(-b * compartment.diffusivity))


def volume_gains(b: float, gains: tuple[float, float, float]) -> tuple[float, float, float]:
    """Gains that apply at b-value `b`: a scanner's gains are on S/b0, so b0s have none."""
    return UNIT_GAINS if b < B0_THRESHOLD else gains
