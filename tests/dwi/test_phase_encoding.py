import numpy as np
import pytest

from bids_gevnet.dwi.conform import ras_order
from bids_gevnet.dwi.phase_encoding import (
    DUMMY_READOUT_S,
    acquisition_rows,
    are_opposite,
    phase_encoding,
    readout_time,
    reorder_phase_encoding,
)
from bids_gevnet.errors import ParticipantError

ALL = {
    "TotalReadoutTime": 0.04,
    "EffectiveEchoSpacing": 0.0005,
    "ReconMatrixPE": 101,
    "EstimatedTotalReadoutTime": 0.026,
    "EstimatedEffectiveEchoSpacing": 0.0002,
}


class TestReadout:
    @pytest.mark.parametrize(
        ("missing", "seconds", "word"),
        [
            (0, 0.04, "TotalReadoutTime"),
            (1, 0.05, "EffectiveEchoSpacing x"),
            (2, 0.026, "EstimatedTotalReadoutTime"),
        ],
    )
    def test_order_of_the_chain(self, missing, seconds, word):
        keys = ["TotalReadoutTime", "EffectiveEchoSpacing", "EstimatedTotalReadoutTime"][:missing]
        metadata = {key: value for key, value in ALL.items() if key not in keys}
        found = readout_time(metadata, 0.07)
        assert found.seconds == pytest.approx(seconds)
        assert word in found.source
        assert not found.is_dummy

    def test_estimated_echo_spacing(self):
        found = readout_time({"EstimatedEffectiveEchoSpacing": 0.0002, "ReconMatrixPE": 101})
        assert found.seconds == pytest.approx(0.02)

    def test_command_line_then_dummy(self):
        assert readout_time({}, 0.07).seconds == 0.07
        assert "command line" in readout_time({}, 0.07).source
        dummy = readout_time({})
        assert dummy.seconds == DUMMY_READOUT_S
        assert dummy.is_dummy
        assert "dummy" in dummy.source

    @pytest.mark.parametrize("value", [0, -1, float("nan"), "0.05", None, True])
    def test_nonsense_is_passed_over(self, value):
        assert readout_time(ALL | {"TotalReadoutTime": value}).seconds == pytest.approx(0.05)

    def test_milliseconds_are_not_believed(self):
        found = readout_time(ALL | {"TotalReadoutTime": 40.0})
        assert found.seconds == pytest.approx(0.05)
        assert "not believable" in found.source


class TestDirection:
    @pytest.mark.parametrize(
        ("stated", "vector"), [("i", (1, 0, 0)), ("j-", (0, -1, 0)), ("k", (0, 0, 1))]
    )
    def test_stated(self, stated, vector):
        found = phase_encoding({"PhaseEncodingDirection": stated, "PhaseEncodingAxis": "k"})
        assert found.vector == vector
        assert not found.is_guess

    def test_axis_without_sign(self):
        found = phase_encoding({"PhaseEncodingAxis": "i"})
        assert found.direction == "i"
        assert found.is_guess
        assert "sign" in found.source

    def test_nothing(self):
        assert phase_encoding({}).is_guess
        assert phase_encoding({}).direction == "j"

    def test_another_spelling_is_an_error(self):
        with pytest.raises(ParticipantError, match="'AP'"):
            phase_encoding({"PhaseEncodingDirection": "AP"})

    def test_opposite(self):
        assert are_opposite("j", "j-")
        assert not are_opposite("j", "j")
        assert not are_opposite("j", "i-")

    @pytest.mark.parametrize("direction", ["i", "i-", "j", "j-", "k", "k-"])
    def test_reordering_follows_the_image(self, direction):
        affine = np.eye(4)
        affine[:3, :3] = [[0, 0, -1], [-1, 0, 0], [0, 1, 0]]
        world = affine[:3, :3] @ phase_encoding({"PhaseEncodingDirection": direction}).vector
        found = reorder_phase_encoding(direction, *ras_order(affine))
        # In RAS order voxel axes are the world axes.
        np.testing.assert_allclose(phase_encoding({"PhaseEncodingDirection": found}).vector, world)


def test_acquisition_rows():
    acqp, index = acquisition_rows(
        [((0, -1, 0), 0.05), ((0, -1, 0), 0.05), ((0, 1, 0), 0.05), ((0, -1, 0), 0.05)]
    )
    np.testing.assert_allclose(acqp, [[0, -1, 0, 0.05], [0, 1, 0, 0.05]])
    assert index.tolist() == [1, 1, 2, 1]
