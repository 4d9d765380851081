import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.interfaces.series import read_mask


@pytest.mark.parametrize("volumes", [1, 3])
def test_a_mask_with_a_fourth_axis_is_joined(tmp_path, volumes):
    data = np.zeros((4, 5, 6, volumes), np.uint8)
    data[1, 2, 3, 0] = data[0, 0, 0, -1] = 1
    nib.save(nib.Nifti1Image(data, np.eye(4)), tmp_path / "mask.nii.gz")
    mask, _ = read_mask(tmp_path / "mask.nii.gz")
    assert mask.shape == (4, 5, 6)
    assert np.argwhere(mask).tolist() == [[0, 0, 0], [1, 2, 3]]
