"""Images that are damaged, or announce what they are not."""

import gzip
import os
import struct

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.images import load_image, read_header
from bids_gevnet.errors import ParticipantError

SHAPE = (20, 20, 20, 4)
AFFINE = np.diag([2.0, 2, 2, 1])


def noise(shape=SHAPE):
    return np.random.default_rng(0).integers(0, 1000, shape).astype(np.int16)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "dwi.nii.gz"
    nib.save(nib.Nifti1Image(noise(), AFFINE), path)
    return path


def test_a_whole_image_is_read_as_nibabel_reads_it(image):
    data, affine = load_image(image)
    np.testing.assert_array_equal(data, noise())
    np.testing.assert_array_equal(affine, AFFINE)
    assert read_header(image).shape == SHAPE


def test_several_gzip_members_are_one_file(image):
    content = gzip.decompress(image.read_bytes())
    image.write_bytes(gzip.compress(content[:9000]) + gzip.compress(content[9000:]))
    assert read_header(image).shape == SHAPE
    np.testing.assert_array_equal(load_image(image)[0], noise())


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("seed", range(4))
def test_64_flipped_bytes_never_pass_for_data(image, level, seed):
    """At level 0 nothing but the checksum can tell: every byte sequence unpacks."""
    packed = bytearray(gzip.compress(gzip.decompress(image.read_bytes()), level))
    begin = np.random.default_rng(seed).integers(500, len(packed) - 100)
    for i in range(begin, begin + 64):
        packed[i] ^= 0xFF
    image.write_bytes(packed)
    read_header(image)  # planning reads the header alone
    with pytest.raises(ParticipantError, match="copy or convert the file again") as caught:
        load_image(image)
    assert str(image) in str(caught.value)


def test_a_checksum_that_is_missing_is_noticed(image):
    image.write_bytes(image.read_bytes()[:-8])
    with pytest.raises(ParticipantError, match="damaged"):
        load_image(image)


def test_an_uncompressed_file_is_mapped_into_memory(tmp_path):
    nib.save(nib.Nifti1Image(noise(), AFFINE), tmp_path / "dwi.nii")
    data, _ = load_image(tmp_path / "dwi.nii")
    assert isinstance(data, np.memmap)


@pytest.mark.parametrize("name", ["dwi.nii", "dwi.nii.gz"])
def test_axes_of_length_one_at_the_end_are_dropped(tmp_path, name):
    path = tmp_path / name
    nib.save(nib.Nifti1Image(noise((*SHAPE, 1)), AFFINE), path)
    header = read_header(path)
    assert header.shape == SHAPE
    assert header.stored_shape == (*SHAPE, 1)
    assert load_image(path)[0].shape == SHAPE


def bomb(path, unpacked_bytes):
    """Put far more behind a small header than it announces, all of it zeros."""
    head = gzip.decompress(path.read_bytes())[:352]
    with gzip.GzipFile(path, "wb", 6) as stream:
        stream.write(head)
        for _ in range(unpacked_bytes >> 20):
            stream.write(bytes(1 << 20))


def test_a_gzip_bomb_is_not_unpacked(image):
    bomb(image, 1 << 28)
    for read in (read_header, load_image):
        with pytest.raises(ParticipantError, match="copy or convert") as caught:
            read(image)
        assert str(image) in str(caught.value)
    # Seven mebibytes are enough to know: three of image, one of padding, a chunk of reading.
    found = int(str(read_error(image)).split("at least ")[1].split()[0])
    assert found < 8 << 20


def read_error(path):
    with pytest.raises(ParticipantError) as caught:
        read_header(path)
    return caught.value


def test_a_header_cannot_announce_more_than_gzip_can_hold(image):
    content = bytearray(gzip.decompress(image.read_bytes()))
    struct.pack_into("<8h", content, 40, 4, 200, 200, 100, 16384, 1, 1, 1)
    image.write_bytes(gzip.compress(bytes(content)))
    # The note of the size at the end is made to agree, modulo 2^32, as it does.
    expected = 352 + 2 * 200 * 200 * 100 * 16384
    image.write_bytes(image.read_bytes()[:-4] + struct.pack("<I", expected % 2**32))
    assert "truncated" in str(read_error(image))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "dwi.nii.gz")
    assert "no regular file" in str(read_error(tmp_path / "dwi.nii.gz"))
