import numpy as np

from bids_gevnet.interfaces.resampling import keep_seen


def test_voxels_that_a_volume_did_not_see_leave_the_mask():
    brain = np.zeros((10, 10, 10), bool)
    brain[2:8, 2:8, 2:10] = True
    data = np.ones((10, 10, 10, 4), np.float32)
    data[:, :, 9, 2] = 0
    data[5, 5, 5, 1] = 0
    seen, facts = keep_seen(brain, data)
    assert facts.without_data == 36
    assert facts.lost_volumes == 0
    np.testing.assert_array_equal(seen, brain & (np.arange(10) < 9))


def test_an_empty_volume_is_told_and_takes_nothing_along():
    brain = np.zeros((10, 10, 10), bool)
    brain[2:8, 2:8, 2:8] = True
    data = np.ones((10, 10, 10, 3), np.float32)
    data[..., 1] = 0
    seen, facts = keep_seen(brain, data)
    np.testing.assert_array_equal(seen, brain)
    assert (facts.without_data, facts.lost_volumes) == (0, 1)
