import healpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RBFInterpolator

from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.sphere.resampling import (
    antipode,
    distinct_directions,
    distinct_points,
    expand,
    expand_index,
    healpix_points,
    resample,
    resampling_matrix,
)


def random_directions(count, seed):
    table = np.random.default_rng(seed).normal(size=(count, 3))
    return table / np.linalg.norm(table, axis=1, keepdims=True)


def fibre_signal(directions, axis):
    """Signal of one fibre at b = 1000."""
    return np.exp(-1.0 * (0.3 + 1.4 * (directions @ axis) ** 2))


@pytest.mark.parametrize("nside", [1, 2, 4, 8])
class TestPairs:
    def test_antipode_is_the_opposite_pixel(self, nside):
        points = healpix_points(nside)
        np.testing.assert_allclose(points[antipode(nside)], -points, atol=1e-12)

    def test_half_of_the_pixels_are_distinct_and_sorted(self, nside):
        distinct = distinct_points(nside)
        assert len(distinct) == 6 * nside**2
        assert np.all(np.diff(distinct) > 0)
        assert np.all(distinct < antipode(nside)[distinct])

    def test_expanding_puts_each_pair_back(self, nside):
        samples = np.random.default_rng(0).normal(size=(3, 6 * nside**2))
        everywhere = expand(samples, nside)
        np.testing.assert_array_equal(everywhere[:, distinct_points(nside)], samples)
        np.testing.assert_array_equal(everywhere[:, antipode(nside)], everywhere)
        assert expand_index(nside).shape == (12 * nside**2,)

    def test_points_are_nested_healpix(self, nside):
        points = healpix_points(nside)
        assert np.array_equal(
            healpy.vec2pix(nside, *points.T, nest=True), np.arange(12 * nside**2)
        )


def test_nside_must_be_a_power_of_two():
    with pytest.raises(InputError, match="nside = 3"):
        healpix_points(3)


def test_callers_cannot_spoil_the_grid():
    points = healpix_points(2)
    points[:] = 0
    assert np.linalg.norm(healpix_points(2)) > 0


class TestMatrix:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("count", [6, 30, 64, 300])
    def test_equals_scipy_on_both_signs(self, count, smoothing):
        directions = random_directions(count, count)
        signal = np.random.default_rng(1).uniform(size=(count, 5))
        oracle = RBFInterpolator(
            np.concatenate([directions, -directions]),
            np.concatenate([signal, signal]),
            kernel="thin_plate_spline",
            smoothing=smoothing,
        )(healpix_points(4))
        matrix = resampling_matrix(directions, distinct_directions(4), smoothing=smoothing)
        found = expand(signal.T @ matrix.T, 4).T
        np.testing.assert_allclose(found, oracle, atol=1e-7)
        single = expand(resample(signal.T, matrix), 4).T
        np.testing.assert_allclose(single, oracle, atol=1e-6 if smoothing else 1e-5)

    @settings(deadline=None, max_examples=25)
    @given(count=st.integers(6, 120), seed=st.integers(0, 2**31), full=st.booleans())
    def test_rows_sum_to_one_for_any_scheme(self, count, seed, full):
        directions = random_directions(count, seed)
        if not full:
            directions[directions[:, 2] < 0] *= -1
        matrix = resampling_matrix(directions, distinct_directions(4))
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-8)

    def test_sign_and_length_of_directions_do_not_matter(self):
        directions = random_directions(30, 0)
        signs = np.where(np.arange(30) % 3, 1.0, -1.01)[:, None]
        np.testing.assert_allclose(
            resampling_matrix(directions * signs, distinct_directions(2)),
            resampling_matrix(directions, distinct_directions(2)),
            atol=1e-10,
        )

    def test_repeated_directions_are_averaged(self):
        directions = random_directions(20, 3)
        signal = np.random.default_rng(0).uniform(size=20)
        noise = np.random.default_rng(1).normal(size=20)
        twice = resampling_matrix(np.concatenate([directions] * 2), distinct_directions(2))
        plain = twice @ np.concatenate([signal, signal])
        noisy = twice @ np.concatenate([signal + noise, signal - noise])
        np.testing.assert_allclose(noisy, plain, atol=1e-9)

    def test_turning_everything_turns_nothing(self):
        turn = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]
        directions, targets = random_directions(30, 5), distinct_directions(2)
        np.testing.assert_allclose(
            resampling_matrix(directions @ turn.T, targets @ turn.T),
            resampling_matrix(directions, targets),
            atol=1e-9,
        )

    @pytest.mark.parametrize(("count", "bound"), [(30, 0.044), (64, 0.031)])
    def test_noise_figures(self, count, bound):
        # 0.040 and 0.028 on well spread schemes; random ones are a little worse.
        from dipy.core.sphere import HemiSphere, disperse_charges

        start = random_directions(count, 0)
        spread, _ = disperse_charges(HemiSphere(xyz=start), 500)
        directions = spread.vertices
        rng = np.random.default_rng(7)
        matrix = resampling_matrix(directions, distinct_directions(4))
        errors = []
        for axis in random_directions(200, 8):
            noisy = np.hypot(
                fibre_signal(directions, axis) + rng.normal(scale=0.05, size=count),
                rng.normal(scale=0.05, size=count),
            )
            errors.append(matrix @ noisy - fibre_signal(distinct_directions(4), axis))
        assert np.sqrt(np.mean(np.square(errors))) < bound

    def test_without_the_opposite_points_the_figures_are_missed(self):
        # Control: a half-sphere scheme without its mirror image has a rim of extrapolation.
        directions = random_directions(64, 0)
        directions[directions[:, 2] < 0] *= -1
        axis = np.array([0.0, 0.6, 0.8])
        truth = fibre_signal(healpix_points(4), axis)
        half = RBFInterpolator(directions, fibre_signal(directions, axis), smoothing=0.1)(
            healpix_points(4)
        )
        both = expand(
            resampling_matrix(directions, distinct_directions(4)) @ fibre_signal(directions, axis),
            4,
        )
        assert np.sqrt(np.mean((half - truth) ** 2)) > 5 * np.sqrt(np.mean((both - truth) ** 2))


class TestBrokenTables:
    def test_too_few(self):
        with pytest.raises(ParticipantError, match="5 directions"):
            resampling_matrix(random_directions(5, 0), distinct_directions(2))

    def test_all_in_one_plane(self):
        table = random_directions(20, 0) * [1, 1, 0]
        with pytest.raises(ParticipantError, match="do not lie in one plane"):
            resampling_matrix(table, distinct_directions(2))

    @pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
    def test_a_row_without_direction(self, value):
        table = random_directions(20, 0)
        table[3] = value
        with pytest.raises(InputError, match="1 of 20"):
            resampling_matrix(table, distinct_directions(2))

    def test_transposed(self):
        with pytest.raises(InputError, match=r"\(3, 20\)"):
            resampling_matrix(random_directions(20, 0).T, distinct_directions(2))

    def test_repeats_without_smoothing(self):
        table = np.repeat(random_directions(8, 0), 2, axis=0)
        with pytest.raises(ParticipantError, match="smoothing"):
            resampling_matrix(table, distinct_directions(2), smoothing=0.0)


class TestResample:
    def test_chunks_do_not_show(self):
        matrix = np.random.default_rng(0).normal(size=(96, 10))
        signal = np.random.default_rng(1).normal(size=(16384 + 17, 10))
        np.testing.assert_allclose(resample(signal, matrix), signal @ matrix.T, atol=1e-5)

    def test_writes_where_it_is_told(self):
        out = np.empty((4, 96), np.float32)
        matrix = np.ones((96, 10))
        assert resample(np.ones((4, 10), np.float32), matrix, out=out) is out
        np.testing.assert_array_equal(out, 10)

    def test_refuses_another_shell(self):
        with pytest.raises(InputError, match="select the shell"):
            resample(np.ones((4, 11)), np.ones((96, 10)))
