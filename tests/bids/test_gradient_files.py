"""Gradient tables as scanners, converters and people write them."""

from pathlib import Path

import numpy as np
import pytest

from bids_gevnet.bids.gradient_files import holds_only_b0, read_gradient_table
from bids_gevnet.errors import ParticipantError

DIRECTIONS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1.0]])
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
BVALS = [0.0] + [1000.0] * 6
BVECS = np.vstack([np.zeros(3), DIRECTIONS])
IMAGE = Path("sub-01_dwi.nii.gz")


def write_table(folder, bvals, bvecs, *, digits=6):
    np.savetxt(folder / "dwi.bval", [bvals], fmt="%g")
    np.savetxt(folder / "dwi.bvec", np.transpose(bvecs), fmt=f"%.{digits}f")
    return folder / "dwi.bval", folder / "dwi.bvec"


def read(folder, bvals, bvecs, *, n_volumes=None, digits=6):
    bval, bvec = write_table(folder, bvals, bvecs, digits=digits)
    count = len(bvals) if n_volumes is None else n_volumes
    return read_gradient_table(IMAGE, bval, bvec, n_volumes=count, b0_threshold=50)


@pytest.mark.parametrize("digits", [2, 3, 4, 5, 6])
def test_directions_have_length_one_whatever_was_printed(tmp_path, digits):
    table = read(tmp_path, BVALS, BVECS, digits=digits)
    np.testing.assert_allclose(np.linalg.norm(table.bvecs[1:], axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(table.bvecs, BVECS, atol=10**-digits)
    assert table.notes == ()


def test_one_row_per_volume_is_read_and_said(tmp_path):
    bval, bvec = write_table(tmp_path, BVALS, BVECS)
    np.savetxt(bvec, BVECS, fmt="%.6f")
    table = read_gradient_table(IMAGE, bval, bvec, n_volumes=7, b0_threshold=50)
    np.testing.assert_allclose(table.bvecs, BVECS, atol=1e-6)
    assert "one row per volume" in table.notes[0]


@pytest.mark.parametrize("b_values", [[1000.0], [1000.0, 2000.0]])
def test_computed_volumes_at_the_end_are_named_and_left_out(tmp_path, b_values):
    bvecs = np.vstack([BVECS, np.zeros((len(b_values), 3))])
    table = read(tmp_path, BVALS + b_values, bvecs)
    np.testing.assert_array_equal(table.bvals, BVALS)
    assert len(table.bvecs) == 7
    (note,) = table.notes
    assert "volume 7 (b = 1000)" in note
    assert "trace, ADC" in note


def test_a_last_volume_without_any_vector_is_left_out(tmp_path):
    table = read(tmp_path, [*BVALS, 1000.0], BVECS)
    assert len(table.bvals) == 7
    assert "volume 7" in table.notes[0]


def test_b0s_at_the_end_are_measured_and_stay(tmp_path):
    table = read(tmp_path, [*BVALS, 0.0], np.vstack([BVECS, np.zeros(3)]))
    assert len(table.bvals) == 8
    assert table.notes == ()


def test_a_table_that_lost_its_directions_is_refused(tmp_path):
    bvecs = np.vstack([BVECS, np.zeros((5, 3))])
    with pytest.raises(ParticipantError, match="length 1"):
        read(tmp_path, BVALS + [1000.0] * 5, bvecs)


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e6, "s/m²"), (1e-3, "ms/µm²"), (0.7e-3, "ms/µm²"), (5e-3, "ms/µm²")]
)
def test_other_units_are_refused(tmp_path, factor, unit):
    bvals = [b * factor for b in BVALS]
    with pytest.raises(ParticipantError, match="b-values in s/mm²") as caught:
        read(tmp_path, bvals, BVECS)
    assert unit in str(caught.value)
    with pytest.raises(ParticipantError):
        holds_only_b0(tmp_path / "dwi.bval", tmp_path / "dwi.bvec", b0_threshold=50)


@pytest.mark.parametrize("b", [0.0, 1.0, 5.0])
def test_a_series_of_b0s_that_have_directions_is_one(tmp_path, b):
    """HCP's b0s have b = 5 and the vectors of their neighbours."""
    bval, bvec = write_table(tmp_path, [b] * 6, DIRECTIONS)
    assert holds_only_b0(bval, bvec, b0_threshold=50)


def test_b0s_of_b_5_beside_weighted_volumes_are_no_other_unit(tmp_path):
    assert len(read(tmp_path, [5.0, *BVALS[1:]], BVECS).bvals) == 7
