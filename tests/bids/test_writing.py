import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.writing import replacing, write_image, write_json, write_text
from bids_gevnet.errors import ParticipantError

AFFINE = np.array([[2.0, 0, 0, -9], [0, 2, 0, 4], [0, 0, 3, 1], [0, 0, 0, 1]])


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 6)])
def test_image_round_trip(tmp_path, name, dtype, shape):
    data = np.random.default_rng(0).normal(0, 50, shape).astype(dtype)
    write_image(tmp_path / name, data, AFFINE)
    image = nib.load(tmp_path / name)
    np.testing.assert_allclose(np.asarray(image.dataobj), data.astype(np.float32), rtol=1e-6)
    np.testing.assert_array_equal(image.affine, AFFINE)
    assert image.get_sform(coded=True)[1] == 1


def test_scaled_image_is_within_half_a_step_and_16_bit(tmp_path):
    data = np.random.default_rng(0).uniform(0, 1, (4, 4, 4, 3)).astype(np.float32)
    write_image(tmp_path / "a.nii.gz", data, AFFINE, scale=1 / 30000)
    image = nib.load(tmp_path / "a.nii.gz")
    assert image.get_data_dtype() == np.int16
    assert np.abs(image.get_fdata() - data).max() <= 0.5001 / 30000


def test_same_content_same_bytes(tmp_path):
    data = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for name in ("a.nii.gz", "b.nii.gz"):
        write_image(tmp_path / name, data, AFFINE)
        os.utime(tmp_path / name, (1, 1))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_a_failure_leaves_the_old_file_and_no_part(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as part:  # noqa: PT012
        part.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_gets_a_sentence(tmp_path):
    path = tmp_path / "image.nii.gz"
    # Whatever is written to /dev/full meets a full disk.
    (tmp_path / ".image.nii.gz.part").symlink_to("/dev/full")
    data = np.random.default_rng(0).normal(size=(40, 40, 40)).astype(np.float32)
    with pytest.raises(ParticipantError, match="room on the disk") as caught:
        write_image(path, data, AFFINE)
    assert "run the same command again" in str(caught.value)
    assert Path("/dev/full").exists()
    assert list(tmp_path.iterdir()) == []


def test_json_is_sorted_and_keeps_other_alphabets(tmp_path):
    write_json(tmp_path / "a.json", {"b": "Köln", "a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 1,\n  "b": "Köln"\n}\n'
