import numpy as np
import pytest

from bids_gevnet.dwi.sampling import sample_shell, sample_shells
from bids_gevnet.errors import ParticipantError
from bids_gevnet.sphere.resampling import distinct_directions

SHAPE = (3, 4, 2)


def series(rng):
    """Two shells of one fibre per voxel: volumes, b-values, gradients, mask and the fibres."""
    gradients = rng.normal(size=(64, 3))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    bvals = np.concatenate([[0, 5], np.full(64, 1000.0), np.full(64, 3000.0)])
    bvecs = np.concatenate([np.zeros((2, 3)), gradients, gradients])
    mask = np.zeros(SHAPE, bool)
    mask[1:, :3] = True
    fibres = rng.normal(size=(*SHAPE, 3))
    fibres /= np.linalg.norm(fibres, axis=-1, keepdims=True)
    b0 = rng.uniform(500, 1500, SHAPE)
    return b0[..., None] * signal(fibres, bvals, bvecs), bvals, bvecs, mask, fibres


def signal(fibres, bvals, bvecs):
    return np.exp(-bvals * (0.3e-3 + 1.2e-3 * (fibres @ bvecs.T) ** 2))


@pytest.mark.parametrize(("wanted", "b_value"), [(None, 1000.0), (3000.0, 3000.0)])
def test_samples_are_the_signal_at_the_points_of_the_sphere(wanted, b_value):
    data, bvals, bvecs, mask, fibres = series(np.random.default_rng(0))
    found = sample_shell(data, bvals, bvecs, mask, nside=2, wanted=wanted)
    points = distinct_directions(2)
    truth = signal(fibres[mask], np.full(len(points), b_value), points)
    # b = 5 among the b0s costs up to 0.4 %, smoothing of the splines the rest.
    np.testing.assert_allclose(found.samples, truth, atol=0.06)
    assert np.sqrt(np.mean((found.samples - truth) ** 2)) < 0.025
    assert found.shell.b_value == b_value
    assert len(found.shells.shells) == 2
    assert 0 < found.residual_rms < 0.03


def test_voxels_outside_the_brain_do_not_count():
    data, bvals, bvecs, mask, _ = series(np.random.default_rng(1))
    expected = sample_shell(data, bvals, bvecs, mask, nside=2)
    data[~mask] = np.nan
    found = sample_shell(data, bvals, bvecs, mask, nside=2)
    np.testing.assert_array_equal(found.samples, expected.samples)
    assert found.samples.shape == (mask.sum(), 24)


def test_a_shell_that_is_not_there_is_named():
    data, bvals, bvecs, mask, _ = series(np.random.default_rng(2))
    with pytest.raises(ParticipantError, match="near b = 2000"):
        sample_shell(data, bvals, bvecs, mask, wanted=2000.0)


def test_several_shells_are_each_sampled_as_if_alone():
    data, bvals, bvecs, mask, _ = series(np.random.default_rng(3))
    both = sample_shells(data, bvals, bvecs, mask, nside=2, wanted="all")
    assert [found.shell.b_value for found in both] == [1000, 3000]
    for found in both:
        alone = sample_shell(data, bvals, bvecs, mask, nside=2, wanted=found.shell.b_value)
        np.testing.assert_array_equal(found.samples, alone.samples)
        assert found.residual_rms == alone.residual_rms
