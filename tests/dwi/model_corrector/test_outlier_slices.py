import numpy as np
import pytest

from bids_gevnet.dwi.model_corrector.outlier_slices import Losses, find_outliers

VOLUMES, SLICES = 30, 40


@pytest.fixture
def losses():
    rng = np.random.default_rng(0)
    area = np.broadcast_to(3000 + 9000 * np.sin(np.linspace(0.1, 3, SLICES)), (VOLUMES, SLICES))
    predicted = area * 0.1 * rng.uniform(0.9, 1.1, (VOLUMES, SLICES))
    # Slice by slice, observed and predicted differ in the same way in every volume.
    shading = 1 + 0.1 * np.sin(np.arange(SLICES))
    observed = predicted * shading * (1 + rng.normal(scale=0.02, size=predicted.shape))
    return Losses(observed, predicted, area.copy())


def test_a_good_shell_has_none(losses):
    outlier, z_score = find_outliers(losses)
    assert not outlier.any()
    assert 0.7 < z_score.std() < 1.4


def test_lost_slices_are_found_and_no_others(losses):
    truth = np.random.default_rng(1).random((VOLUMES, SLICES)) < 0.02
    losses.observed[truth] *= 0.7
    outlier, _ = find_outliers(losses)
    np.testing.assert_array_equal(outlier, truth)


def test_a_bright_slice_is_not_lost(losses):
    losses.observed[3, 20] *= 1.5
    assert not find_outliers(losses)[0].any()


def test_four_deviations_are_nothing_when_there_is_no_noise(losses):
    quiet = Losses(losses.predicted * 1.0, losses.predicted, losses.area_mm2)
    quiet.observed[3, 20] *= 0.97
    assert not find_outliers(quiet)[0].any()


def test_slices_with_little_brain_do_not_count(losses):
    losses.area_mm2[:, :3] = 500
    losses.observed[5, 1] = 0
    outlier, z_score = find_outliers(losses)
    assert not outlier.any()
    np.testing.assert_array_equal(z_score[:, :3], 0)


def test_two_volumes_cannot_tell():
    two = Losses(np.ones((2, 5)), np.ones((2, 5)), np.full((2, 5), 5000.0))
    assert not find_outliers(two)[0].any()
