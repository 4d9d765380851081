import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.rish import DEGREES, rish_features
from bids_gevnet.sphere.harmonics import degree_projectors, even_degrees, synthesis_matrix
from bids_gevnet.sphere.resampling import distinct_directions


def test_constant_signal_has_degree_zero_only():
    found = rish_features(np.full((2, 96), 0.5))
    np.testing.assert_allclose(found, [[np.pi, 0, 0, 0]] * 2, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31))
def test_energy_of_known_coefficients(seed):
    coefficients = np.random.default_rng(seed).normal(size=45)
    expected = [np.sum(coefficients[even_degrees(8) == degree] ** 2) for degree in DEGREES]
    found = rish_features(synthesis_matrix(4) @ coefficients)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_does_not_change_when_the_fibre_turns():
    turns = Rotation.random(50, rng=0).as_matrix()
    axes = turns @ np.array([0.0, 0.0, 1.0])
    signals = np.exp(-0.3 - 1.4 * (axes @ distinct_directions(4).T) ** 2)
    found = rish_features(signals)
    assert np.all(found.std(axis=0) < 0.01 * found.mean(axis=0))


def test_is_the_energy_of_the_projected_samples():
    samples = np.random.default_rng(1).normal(size=(5, 96))
    projected = np.einsum("dpq,vq->vdp", degree_projectors(4), samples)
    energy = np.mean(projected**2, axis=-1) * 4 * np.pi
    np.testing.assert_allclose(rish_features(samples), energy, rtol=0.1)


def test_a_gain_on_one_degree_squares_its_feature():
    samples = np.random.default_rng(2).normal(size=96)
    changed = samples + 0.5 * degree_projectors(4, (4,))[0] @ samples
    before, after = rish_features(samples), rish_features(changed)
    np.testing.assert_allclose(after / before, [1, 1, 2.25, 1], rtol=1e-3)


def test_shape_and_order_of_degrees():
    samples = np.random.default_rng(3).normal(size=(3, 4, 96))
    turned = rish_features(samples, degrees=(4, 0))
    assert turned.shape == (3, 4, 2)
    np.testing.assert_allclose(turned, rish_features(samples)[..., [2, 0]], rtol=1e-5)


def test_chunks_do_not_show():
    samples = np.random.default_rng(4).normal(size=(16384 + 5, 96)).astype(np.float32)
    np.testing.assert_allclose(rish_features(samples)[-5:], rish_features(samples[-5:]), rtol=1e-5)


def test_refuses_another_grid():
    with pytest.raises(InputError, match="96 distinct"):
        rish_features(np.ones((2, 150)))


def test_refuses_odd_degrees():
    with pytest.raises(InputError, match="found 3"):
        rish_features(np.ones((2, 96)), degrees=(0, 3))


@pytest.mark.parametrize(("nside", "lmax"), [(1, 2), (2, 4), (4, 8), (8, 8)])
def test_degrees_never_exceed_what_the_points_determine(nside, lmax):
    found, degrees = fit_limits(nside)
    assert found == lmax
    assert max(degrees) <= min(6, lmax)
