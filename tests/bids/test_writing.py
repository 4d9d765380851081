import contextlib
import gzip
import json
import os
import struct
import subprocess
import sys
import time
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


LIMITED_WRITER = """
import resource, sys
from pathlib import Path
import numpy as np
from bids_gevnet.bids.writing import write_image

# The kernel refuses to let any file grow beyond this, as a full disk would.
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
noise = np.random.default_rng(0).normal(size=(40, 40, 40)).astype(np.float32)
try:
    write_image(Path(sys.argv[1]), noise, np.eye(4))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("name", ["image.nii", "image.nii.gz"])
def test_an_image_that_finds_no_room_gets_a_sentence_and_leaves_nothing(tmp_path, name):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITER, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ParticipantError Expected room on the disk for")
    assert "run the same command again" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_full_disk_gets_a_sentence_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with (
        pytest.raises(ParticipantError, match="room on the disk"),
        replacing(path),
    ):
        Path("/dev/full").write_text("new")  # whatever is written to it meets a full disk
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys
from pathlib import Path
from bids_gevnet.bids.description import write_description

for _ in range(100):
    write_description(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_eight_processes_describe_one_output_at_once(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-c", WRITER, str(out), str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        with contextlib.suppress(FileNotFoundError):  # nobody has finished the first one yet
            seen.add((out / "dataset_description.json").read_text())
        time.sleep(0.01)
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8, errors
    assert len(seen) == 1, "a reader never sees half a file"
    assert json.loads(seen.pop())["Name"].startswith("bids_gevnet")
    assert {path.name for path in out.iterdir()} == {
        "dataset_description.json", "README.md", ".bidsignore",
    }  # fmt: skip


KILLED = """
import os, sys
from pathlib import Path
from bids_gevnet.bids.writing import replacing

with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.read_text() == "half"
    other = tmp_path / ".file.txt.part"
    other.write_text("of the user")
    with replacing(path) as part:
        assert not left.exists()
        write_text(path, "another writer is faster")
        assert part.exists()
        part.write_text("slower")
    assert path.read_text() == "slower"
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_folder_of_very_many_files_is_not_searched_to_its_end(tmp_path):
    path = tmp_path / "file.txt"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    with replacing(path, most_entries=0) as part:
        part.write_text("new")
    assert left.exists()
    with replacing(path) as part:
        part.write_text("newer")
    assert set(tmp_path.iterdir()) == {path}


def test_half_a_surrogate_pair_in_a_sidecar_stays_readable(tmp_path):
    write_json(tmp_path / "a.json", {"Manufacturer": "\ud800"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"Manufacturer": "\ud800"}


def header_on_disk(path):
    """Slope, intercept and type code as bytes 112, 116 and 70 have them, for no mercy."""
    content = path.read_bytes()
    head = gzip.decompress(content) if path.suffix == ".gz" else content
    assert struct.unpack_from("<i", head)[0] == 348
    return (*struct.unpack_from("<ff", head, 112), struct.unpack_from("<h", head, 70)[0])


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.float32, np.float64])
def test_slope_is_one_and_intercept_zero_on_disk(tmp_path, name, dtype):
    write_image(tmp_path / name, np.ones((3, 4, 5), dtype), AFFINE)
    assert header_on_disk(tmp_path / name)[:2] == (1.0, 0.0)


def test_scaled_images_keep_their_slope_on_disk(tmp_path):
    write_image(tmp_path / "a.nii", np.ones((3, 4, 5), np.float32), AFFINE, scale=1 / 30000)
    slope, intercept, kind = header_on_disk(tmp_path / "a.nii")
    assert (slope, intercept, kind) == (pytest.approx(1 / 30000, rel=1e-6), 0.0, 4)


def test_json_is_sorted_and_keeps_other_alphabets(tmp_path):
    write_json(tmp_path / "a.json", {"b": "Köln", "a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 1,\n  "b": "Köln"\n}\n'
