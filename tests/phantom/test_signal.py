import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.sims.voxel import multi_tensor
from scipy.special import sph_harm_y

from bids_gevnet.phantom import signal
from bids_gevnet.phantom.anatomy import Head
from bids_gevnet.phantom.effects import TissueState
from bids_gevnet.phantom.simulation import HeadSignal

B_VALUES = (0.0, 5.0, 700.0, 1000.0, 3000.0)


def quadrature_sphere(n=24):
    """Points and weights (sum 1) exact for polynomials far beyond degree 8."""
    z, wz = np.polynomial.legendre.leggauss(n)
    phi = np.arange(2 * n) * np.pi / n
    z, phi = np.meshgrid(z, phi, indexing="ij")
    radius = np.sqrt(1 - z**2)
    xyz = np.stack([radius * np.cos(phi), radius * np.sin(phi), z], axis=-1).reshape(-1, 3)
    weights = np.repeat(wz / 2, 2 * n) / (2 * n)
    return xyz, weights


def degree_energy(values, xyz, weights, degree):
    polar, azimuth = np.arccos(xyz[:, 2]), np.arctan2(xyz[:, 1], xyz[:, 0])
    coefficients = [
        np.sum(4 * np.pi * weights * values * sph_harm_y(degree, m, polar, azimuth).conj())
        for m in range(-degree, degree + 1)
    ]
    return float(np.sum(np.abs(coefficients) ** 2))


def test_whole_head_equals_dipy_multi_tensor_voxel_by_voxel():
    """Random mixtures of both fibres, grey matter and fluid, against DIPY's own simulation."""
    rng = np.random.default_rng(0)
    shape = (3, 4, 3)
    maps = np.zeros((5, *shape), np.float32)
    maps[:3] = np.moveaxis(rng.dirichlet([2, 1, 1], shape), -1, 0)
    affine = np.diag([20.0, 20, 20, 1])
    affine[:3, 3] = (10, -40, 10)
    head = HeadSignal(Head(maps, affine, np.ones(shape, bool)), TissueState(60.0, 0.1, 0.0))
    head.dispersion = np.zeros_like(head.dispersion)  # DIPY's mixtures are not dispersed
    bvecs = rng.normal(size=(12, 3))
    bvecs /= np.linalg.norm(bvecs, axis=1, keepdims=True)
    bvals = np.r_[0.0, rng.uniform(500, 3000, 11)]
    bvecs[0] = 0
    table = gradient_table(bvals, bvecs=bvecs)
    ours = np.stack([head.on_grid(b, g) for b, g in zip(bvals, bvecs, strict=True)], axis=-1)
    along, across = signal.EIGENVALUES
    evals = [(along, across, across)] * 2 + [
        (c.diffusivity,) * 3 for c in (signal.GREY, signal.FLUID)
    ]
    for voxel in range(np.prod(shape)):
        fractions = [amplitude[voxel] for amplitude in head.amplitudes]
        fractions += [
            maps[t].ravel()[voxel] * c.amplitude for t, c in ((1, signal.GREY), (2, signal.FLUID))
        ]
        total = sum(fractions)
        theirs, _ = multi_tensor(
            table,
            np.array(evals),
            S0=total,
            angles=[_angles(d[voxel]) for d in head.directions] + [(0, 0)] * 2,
            fractions=[100 * f / total for f in fractions],
            snr=None,
        )
        np.testing.assert_allclose(ours.reshape(-1, 12)[voxel], theirs, rtol=2e-6)


def _angles(direction):
    return (
        np.rad2deg(np.arccos(direction[2])),
        np.rad2deg(np.arctan2(direction[1], direction[0])),
    )


@pytest.mark.parametrize("b", B_VALUES)
@pytest.mark.parametrize("dispersion", [0.0, 0.1, 0.7])
def test_dispersion_keeps_the_spherical_mean_at_every_b(b, dispersion):
    xyz, weights = quadrature_sphere()
    fibre = np.array([0.6, -0.48, 0.64])
    plain = signal.fibre_signal((xyz @ fibre) ** 2, b)
    mixed = signal.fibre_signal((xyz @ fibre) ** 2, b, dispersion)
    assert np.sum(weights * mixed) == pytest.approx(np.sum(weights * plain), rel=1e-12)
    if dispersion and b > 500:
        assert np.ptp(mixed) < np.ptp(plain)


def test_dispersion_is_a_share_of_fibres_in_all_directions():
    """Closed form against an explicit mixture of many fibres."""
    xyz, weights = quadrature_sphere()
    gradient, fibre = np.array([0.0, 0.6, 0.8]), np.array([0.0, 0.0, 1.0])
    everywhere = np.sum(weights * signal.fibre_signal((xyz @ gradient) ** 2, 1000.0))
    one = signal.fibre_signal(np.array((fibre @ gradient) ** 2), 1000.0)
    mixed = signal.fibre_signal(np.array((fibre @ gradient) ** 2), 1000.0, 0.3)
    assert mixed == pytest.approx(0.7 * one + 0.3 * everywhere, rel=1e-12)


def test_turning_a_fibre_keeps_the_spherical_mean():
    xyz, weights = quadrature_sphere()
    means = [
        np.sum(weights * signal.fibre_signal((xyz @ u) ** 2, 1000.0))
        for u in (np.array([0, 0, 1.0]), np.array([0.6, 0.8, 0]), np.array([0.36, 0.48, 0.8]))
    ]
    np.testing.assert_allclose(means, signal.legendre_coefficients(1000.0)[0], rtol=1e-12)


@pytest.mark.parametrize("b", [700.0, 1000.0, 2000.0])
@pytest.mark.parametrize("gains", [(1.1, 0.85, 0.75), (0.9, 1.2, 1.3), (1.0, 1.0, 1.0)])
def test_gains_scale_the_energy_of_each_degree_and_of_no_other(b, gains):
    xyz, weights = quadrature_sphere()
    fibre = np.array([0.36, 0.48, 0.8])
    cos_squared = (xyz @ fibre) ** 2
    plain = signal.fibre_signal(cos_squared, b, 0.2)
    scaled = signal.fibre_signal(cos_squared, b, 0.2, gains)
    for degree, gain in zip((0, 2, 4, 6), (*gains, 1.0), strict=True):
        energies = [degree_energy(v, xyz, weights, degree) for v in (plain, scaled)]
        assert energies[1] == pytest.approx(gain**2 * energies[0], rel=1e-6)


def test_isotropic_signal_feels_degree_zero_only():
    fluid = signal.isotropic_signal(signal.FLUID, 1000.0)
    assert signal.isotropic_signal(signal.FLUID, 1000.0, (1.1, 0.5, 0.5)) == pytest.approx(
        1.1 * fluid
    )


def test_b0s_have_no_gain():
    gains = (1.1, 0.9, 0.8)
    assert signal.volume_gains(5.0, gains) == (1.0, 1.0, 1.0)
    assert signal.volume_gains(995.0, gains) == gains
