import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bids_gevnet.dwi.shells import (
    choose_shell,
    choose_shells,
    count_directions,
    divide_by_b0,
    find_shells,
    mean_volume,
    require_shells,
    shared_shells,
)
from bids_gevnet.errors import InputError, ParticipantError


class TestFind:
    @given(st.lists(st.floats(-50, 50), min_size=12, max_size=12), st.randoms())
    def test_jitter_and_order_do_not_matter(self, jitter, random):
        nominal = [0, 5, 0, *[1000] * 5, *[2000] * 4]
        bvals = [max(0.0, b + j * (b > 50)) for b, j in zip(nominal, jitter, strict=True)]
        order = list(range(12))
        random.shuffle(order)
        found = find_shells(np.array(bvals)[order])
        assert [shell.n_volumes for shell in found.shells] == [5, 4]
        assert sorted(np.array(order)[found.b0]) == [0, 1, 2]
        assert sorted(np.array(order)[found.shells[1].volumes]) == [8, 9, 10, 11]

    def test_mean_b_and_words(self):
        found = find_shells([1, 990, 1010, 2990, 3000, 3010])
        assert [shell.b_value for shell in found.shells] == [1000, 3000]
        assert str(found) == "1 b0, b = 1000 (2 volumes), b = 3000 (3 volumes)"

    def test_volumes_without_direction_are_left_out(self):
        usable = np.array([True, True, True, False])
        assert find_shells([0, 1000, 1000, 1000], usable=usable).shells[0].n_volumes == 2

    def test_threshold(self):
        assert find_shells([60, 1000]).b0.size == 0
        assert find_shells([60, 1000], b0_threshold=60).b0.tolist() == [0]

    def test_only_b0(self):
        assert str(find_shells([0, 0])) == "2 b0, no diffusion weighting"


class TestChoose:
    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            ({1000: 30}, 1000),
            ({2500: 20}, 2500),
            ({1000: 30, 2000: 60, 3000: 90}, 1000),
            ({700: 6, 2000: 64}, 2000),
            ({700: 20, 1000: 6}, 700),
            ({500: 6, 1200: 8}, 1200),
            ({900: 15, 1100: 30}, 1100),
        ],
    )
    def test_default(self, counts, expected):
        bvals = [0, *np.repeat(list(counts), list(counts.values()))]
        assert choose_shell(find_shells(bvals)).b_value == expected

    def test_asked_for(self):
        shells = find_shells([0, *[1000] * 30, *[2000] * 30])
        assert choose_shell(shells, 2050).b_value == 2000

    @pytest.mark.parametrize(
        ("bvals", "wanted", "match"),
        [
            ([0, *[1000] * 30], 3000, "near b = 3000"),
            ([0, *[1000] * 5], None, "at least 6 directions"),
            ([1000] * 30, None, "at least one b0"),
            ([0, 0], None, "no diffusion weighting"),
        ],
    )
    def test_nothing_fits(self, bvals, wanted, match):
        with pytest.raises(ParticipantError, match=match):
            choose_shell(find_shells(bvals), wanted)


class TestDivide:
    def test_fraction(self):
        b0 = np.array([100.0, 200.0])
        np.testing.assert_allclose(divide_by_b0(b0[:, None] * [0.25, 0.5], b0), [[0.25, 0.5]] * 2)

    @given(
        st.lists(st.floats(allow_nan=True, width=32), min_size=4, max_size=4),
        st.lists(st.floats(allow_nan=True, width=32), min_size=4, max_size=4),
    )
    def test_anything_becomes_finite_and_bounded(self, signal, b0):
        with np.errstate(all="ignore"):
            found = divide_by_b0(np.array(signal)[:, None], np.array(b0))
        assert np.all((found >= 0) & (found <= 1))

    def test_no_signal_is_zero_and_not_noise_over_noise(self):
        b0 = np.array([1000.0, 0.5, 0.0, np.nan])
        found = divide_by_b0(np.array([[500.0], [0.5], [3.0], [1.0]]), b0)
        np.testing.assert_allclose(found.ravel(), [0.5, 0, 0, 0])

    def test_clip_can_be_chosen(self):
        found = divide_by_b0(np.array([[150.0]]), np.array([100.0]), clip=(0.0, 2.0))
        np.testing.assert_allclose(found, 1.5)

    def test_input_is_left_alone(self):
        signal = np.full((2, 3), 50, np.float32)
        divide_by_b0(signal, np.full(2, 100, np.float32))
        np.testing.assert_array_equal(signal, 50)


def test_mean_volume():
    data = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = data[..., [0, 3]].mean(axis=-1)
    np.testing.assert_allclose(mean_volume(data, np.array([0, 3])), expected, rtol=1e-6, atol=1e-7)


def spread_axes(count):
    """Axes on a spiral over half the sphere, at least ten degrees apart for up to 60."""
    i = np.arange(count) + 0.5
    z, turn = i / count, np.pi * (1 + 5**0.5) * i
    axes = np.stack([np.sqrt(1 - z**2) * np.cos(turn), np.sqrt(1 - z**2) * np.sin(turn), z], 1)
    between = np.abs(axes @ axes.T) - np.eye(count)
    assert between.max() < np.cos(np.deg2rad(10))
    return axes


class TestCountDirections:
    def test_a_vector_that_is_too_short_ends_the_count(self):
        assert count_directions(np.array([[0.895, 0.445, 0.0]])) == 1

    @given(
        st.integers(1, 60),
        st.integers(2, 6),
        st.lists(st.tuples(st.integers(0, 59), st.booleans(), st.floats(0.95, 1.05)), max_size=90),
        st.randoms(use_true_random=False),
    )
    def test_digits_lengths_repeats_and_antipodes_do_not_matter(
        self, count, digits, repeats, random
    ):
        axes = spread_axes(count)
        rows = [*axes, *((-1) ** flip * length * axes[i % count] for i, flip, length in repeats)]
        random.shuffle(rows)
        assert count_directions(np.round(rows, digits)) == count

    @given(
        st.lists(
            st.tuples(*[st.floats(allow_nan=True, allow_infinity=True, width=32)] * 3), max_size=20
        )
    )
    def test_any_numbers_come_to_an_end(self, rows):
        with np.errstate(over="ignore", invalid="ignore"):
            count = count_directions(np.array(rows, dtype=float).reshape(-1, 3))
        assert 0 <= count <= len(rows)

    def test_no_axis_in_zeros_and_nans(self):
        assert count_directions(np.array([[0, 0, 0], [np.nan, 0, 1], [0, 0, 1]])) == 1


class TestSeveral:
    SCAN = find_shells([0, *[3000] * 30, *[1000] * 30, *[200] * 3])

    @pytest.mark.parametrize(
        ("wanted", "b_values"),
        [(None, [1000]), ("all", [1000, 3000]), ((3000.0, 950.0), [1000, 3000])],
    )
    def test_choice_in_increasing_order(self, wanted, b_values):
        assert [shell.b_value for shell in choose_shells(self.SCAN, wanted)] == b_values

    @pytest.mark.parametrize(
        ("wanted", "match"),
        [((1000.0, 2000.0), "near b = 2000"), ((1000.0, 1010.0), "a shell for each of b = 1000")],
    )
    def test_a_missing_shell_is_named(self, wanted, match):
        with pytest.raises(ParticipantError, match=match):
            choose_shells(self.SCAN, wanted)

    def test_all_of_a_scan_without_shells(self):
        with pytest.raises(ParticipantError, match="at least 6 directions"):
            choose_shells(find_shells([0, *[1000] * 5]), "all")

    @given(st.lists(st.tuples(*[st.floats(-45, 45)] * 2), min_size=1, max_size=9))
    def test_jitter_within_the_tolerance_is_one_cohort(self, jitter):
        scans = {str(n): (3000 + b, 1000 + a) for n, (a, b) in enumerate(jitter)}
        low, high = shared_shells(scans)
        assert abs(low - 1000) < 46
        assert abs(high - 3000) < 46

    def test_who_lacks_which_shell_is_named(self):
        scans = {"sub-1": [1000, 3000], "sub-2": [1000], "sub-3": [995, 2000, 3000]}
        with pytest.raises(InputError) as refusal:
            shared_shells(scans)
        assert "b = 2000 in sub-1, sub-2;" in str(refusal.value)
        assert "b = 3000 in sub-2." in str(refusal.value)
        assert "b = 1000 in" not in str(refusal.value)

    def test_shells_far_from_their_mean_are_not_shared(self):
        """A chain of small steps must not make b = 900 and b = 1140 the same shell."""
        with pytest.raises(InputError, match="sub-1, sub-4"):
            shared_shells({f"sub-{n}": [900 + 80 * n] for n in range(1, 5)})

    def test_samples_of_other_shells_than_asked_for(self):
        require_shells((1000.0, 3000.0), (3010.0, 1000.0))
        require_shells((1000.0,), None)
        require_shells((), (1000.0,))
        with pytest.raises(InputError, match="samples of b = 1000, 3000"):
            require_shells((1000.0, 3000.0), (1000.0,))


def test_a_second_run_adds_volumes_and_no_directions():
    from scipy.spatial.transform import Rotation

    axes = np.vstack([np.eye(3), [[1, 1, 0], [1, 0, 1], [0, 1, 1]]])
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    turned = Rotation.from_rotvec([0, 0.03, 0.05]).apply(-axes)  # by 3.3 degrees at most
    bvecs = np.vstack([np.zeros((1, 3)), axes, turned])
    (shell,) = find_shells([0, *[1000] * 12]).shells
    assert (shell.n_volumes, shell.n_directions(bvecs)) == (12, 6)
