import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import Lattice, Level
from bids_gevnet.dwi.model_corrector.outlier_slices import Losses, find_outliers, sum_slices
from bids_gevnet.dwi.model_corrector.warp import Field, Warp, pull

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


SHAPE, SIZES = (30, 34, 24), np.full(3, 6.0)


def head(points):
    radius = (points / torch.tensor([55.0, 68.0, 50.0])).square().sum(dim=1)
    return 100 * torch.exp(-(radius**2)) * (1 + 0.004 * points[:, 0])


class TestSumSlices:
    """A head seen through motion, eddy currents and a field has its prediction in every slice."""

    @pytest.fixture
    def lattice(self):
        return Lattice(SHAPE, SIZES, Level(6.0, 0.0, 1))

    @pytest.fixture
    def warp(self, lattice):
        x, y, z = lattice.points().numpy().T
        field = 9 * np.exp(-((x - 4) ** 2 + (y - 40) ** 2 + (z + 20) ** 2) / (2 * 22**2))
        motion = np.eye(4)
        motion[:3, :3] = Rotation.from_euler("xyz", [4, -3, 6], degrees=True).as_matrix()
        motion[:3, 3] = [3, -2, 4]
        eddy = np.array([[1.0, 2, -1, 1.5, 0.5, 0.2, -0.3, 0.4, 0.2, 0.1]])
        return Warp(motion[None], eddy, 1, field.reshape(SHAPE).astype(np.float32))

    def seen(self, lattice, warp, field):
        """Return the head as the volume saw it, by a slow and independent inverse."""
        motion, eddy = (
            torch.as_tensor(a[0], dtype=torch.float32) for a in (warp.motion, warp.eddy)
        )
        back = torch.linalg.inv(motion)
        seen = lattice.points()
        guess = seen @ back[:3, :3].T + back[:3, 3]
        for _ in range(12):
            _, where, jacobian = pull(guess, motion, eddy, warp.axis, field)
            guess = guess + (seen - where) @ back[:3, :3].T
        return (head(guess) / jacobian).reshape(SHAPE).numpy()

    def sums(self, raw, lattice, warp, field):
        reference = head(lattice.points()).reshape(SHAPE)
        inner = (reference > 30).numpy()
        return sum_slices(raw, reference, inner, lattice, SIZES, warp, 2, field)

    @pytest.mark.parametrize("with_field", [True, False])
    def test_observed_is_predicted_but_for_the_lost_slice(self, lattice, warp, with_field):
        field = Field(warp.field, SIZES) if with_field else None
        raw = self.seen(lattice, warp, field)
        raw[..., 11] *= 0.5
        observed, predicted, area = self.sums(raw, lattice, warp, field)
        use = area > 1000
        assert use.sum() > 12
        expected = np.where(np.flatnonzero(use) == 11, 0.5, 1.0)
        np.testing.assert_allclose(observed[use] / predicted[use], expected, atol=0.03)

    def test_with_the_wrong_field_it_is_not(self, lattice, warp):
        raw = self.seen(lattice, warp, Field(warp.field, SIZES))
        observed, predicted, area = self.sums(raw, lattice, warp, Field(-warp.field, SIZES))
        use = area > 1000
        assert np.abs(observed[use] / predicted[use] - 1).max() > 0.04

    def test_no_voxel_of_the_brain_is_left_out(self, lattice, warp):
        field = Field(warp.field, SIZES)
        _, _, area = self.sums(np.zeros(SHAPE), lattice, warp, field)
        motion, eddy = (
            torch.as_tensor(a[0], dtype=torch.float32) for a in (warp.motion, warp.eddy)
        )
        _, _, jacobian = pull(lattice.points(), motion, eddy, 1, field)
        brain = head(lattice.points()) > 30
        volume = float(jacobian[brain].sum()) * 6.0**3
        assert area.sum() * 6.0 == pytest.approx(volume, rel=0.01)
