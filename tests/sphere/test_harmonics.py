import numpy as np
import pytest
from scipy.special import eval_legendre

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.harmonics import (
    analysis_matrix,
    degree_projectors,
    even_degrees,
    real_harmonics,
    spectrum,
    synthesis_matrix,
)
from bids_gevnet.sphere.resampling import distinct_directions, healpix_points


def random_directions(count, seed):
    table = np.random.default_rng(seed).normal(size=(count, 3))
    return table / np.linalg.norm(table, axis=1, keepdims=True)


def test_addition_theorem():
    # Sum over m of Y_lm(x) Y_lm(y) = (2l + 1) / (4 pi) P_l(x . y), in any orthonormal basis.
    x, y = random_directions(40, 0), random_directions(40, 1)
    left, right = real_harmonics(x, 8), real_harmonics(y, 8)
    for degree in (0, 2, 4, 6, 8):
        columns = even_degrees(8) == degree
        found = np.sum(left[:, columns] * right[:, columns], axis=1)
        expected = (2 * degree + 1) / (4 * np.pi) * eval_legendre(degree, np.sum(x * y, axis=1))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_orthonormal_on_a_fine_grid():
    basis = real_harmonics(healpix_points(32), 8)
    gram = basis.T @ basis * 4 * np.pi / len(basis)
    np.testing.assert_allclose(gram, np.eye(45), atol=2e-3)


def test_even_functions_and_poles():
    poles = np.array([[0, 0, 1.0], [0, 0, -1.0]])
    both = np.concatenate([random_directions(20, 2), poles])
    np.testing.assert_allclose(real_harmonics(both, 8), real_harmonics(-both, 8), atol=1e-12)
    assert np.all(np.isfinite(real_harmonics(poles, 8)))


class TestProjectors:
    projectors = degree_projectors(4, (0, 2, 4, 6, 8))

    def test_idempotent_and_orthogonal(self):
        for i, first in enumerate(self.projectors):
            for j, second in enumerate(self.projectors):
                np.testing.assert_allclose(first @ second, first * (i == j), atol=1e-10)

    def test_rank_is_the_number_of_orders(self):
        np.testing.assert_allclose(
            np.trace(self.projectors, axis1=1, axis2=2), [1, 5, 9, 13, 17], atol=1e-10
        )

    def test_keeps_its_degree_and_kills_the_others(self):
        basis = real_harmonics(distinct_directions(4), 8)
        for projector, degree in zip(self.projectors, (0, 2, 4, 6, 8), strict=True):
            own = even_degrees(8) == degree
            np.testing.assert_allclose(projector @ basis[:, own], basis[:, own], atol=1e-10)
            np.testing.assert_allclose(projector @ basis[:, ~own], 0, atol=1e-10)

    def test_degree_above_the_fit_leaks_little(self):
        basis = real_harmonics(distinct_directions(4), 10)[:, even_degrees(10) == 10]
        leak = degree_projectors(4, (6,))[0] @ basis
        assert np.linalg.norm(leak) < 0.05 * np.linalg.norm(basis)

    @pytest.mark.parametrize("degrees", [(1,), (-2,), (10,), (0, 3)])
    def test_refuses_other_degrees(self, degrees):
        with pytest.raises(InputError, match="even degrees"):
            degree_projectors(4, degrees)


def test_analysis_undoes_synthesis():
    np.testing.assert_allclose(analysis_matrix(4) @ synthesis_matrix(4), np.eye(45), atol=1e-10)


def test_spectrum_sums_over_orders():
    coefficients = np.arange(15.0)
    expected = [0, np.sum(np.arange(1, 6) ** 2), np.sum(np.arange(6, 15) ** 2)]
    np.testing.assert_allclose(spectrum(coefficients), expected)
    assert spectrum(np.ones((2, 3, 45))).shape == (2, 3, 5)


def test_spectrum_refuses_another_count():
    with pytest.raises(InputError, match="found 7"):
        spectrum(np.ones(7))


@pytest.mark.parametrize("lmax", [-2, 3])
def test_refuses_odd_or_negative_degree(lmax):
    with pytest.raises(InputError, match="even"):
        even_degrees(lmax)


def test_refuses_more_harmonics_than_points():
    with pytest.raises(InputError, match="at most 6"):
        analysis_matrix(1, 4)
