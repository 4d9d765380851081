import numpy as np
import pytest

from bids_gevnet.dwi.conform import ras_order
from bids_gevnet.dwi.phase_encoding import (
    DUMMY_READOUT_S,
    PhaseEncoding,
    Relation,
    acquisition_rows,
    are_opposite,
    phase_encoding,
    readout_time,
    relate,
    reorder_phase_encoding,
    resolve_relation,
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

    @pytest.mark.parametrize(
        "value", [0, -1, float("nan"), float("inf"), 10**400, "0.05", None, True]
    )
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

    @pytest.mark.parametrize("stated", ["AP", "z", "", 5, ["j"], {"j": 1}, True])
    def test_another_spelling_is_an_error(self, stated):
        with pytest.raises(ParticipantError, match="i, i-, j, j-, k or k-"):
            phase_encoding({"PhaseEncodingDirection": stated})

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


RAS, LAS = np.diag([2.0, 2, 2, 1]), np.diag([-2.0, 2, 2, 1])
SAGITTAL = np.array([[0, 0, 2.0, 0], [-2, 0, 0, 0], [0, -2, 0, 0], [0, 0, 0, 1]])
"""Voxel axes i, j, k towards P, I, R."""
TOWARDS = {"R": (1, 0, 0), "P": (0, -1, 0), "A": (0, 1, 0), "I": (0, 0, -1), "F": (0, 0, -1)}


class TestSign:
    """Scanners that state the axis alone; what people called the protocol tells the sign."""

    @pytest.mark.parametrize(
        ("label", "affine", "direction"),
        [
            ("AP", RAS, "j-"),
            ("PA", RAS, "j"),
            ("ap", LAS, "j-"),
            ("LR", RAS, "i"),
            ("LR", LAS, "i-"),
            ("AP", SAGITTAL, "i"),
            ("HF", SAGITTAL, "j"),
            ("SI", RAS, "k-"),
        ],
    )
    def test_the_direction_points_to_the_second_letter(self, label, affine, direction):
        towards = TOWARDS[label[1].upper()]
        metadata = {"PhaseEncodingAxis": direction[0]}
        encoding = phase_encoding(metadata, label=label, affine=affine)
        assert encoding.direction == direction
        assert np.dot(affine[:3, :3] @ encoding.vector, towards) > 0
        assert encoding.is_inferred
        assert not encoding.is_guess
        assert f"dir-{label}" in encoding.source

    def test_name_before_description_before_display(self):
        metadata = {
            "PhaseEncodingAxis": "j",
            "SeriesDescription": "dti_tra_dir16_PA_SaveBySlc",
            "PhaseEncodingDirectionDisplayed": "A->P",
        }
        by_name = phase_encoding(metadata, label="AP", affine=RAS)
        assert by_name.direction == "j-"
        assert "SeriesDescription" in by_name.source  # which contradicts, and that is said
        by_description = phase_encoding(metadata, affine=RAS)
        assert by_description.direction == "j"
        assert "would make it j-" in by_description.source
        del metadata["SeriesDescription"]
        assert phase_encoding(metadata, affine=RAS).direction == "j-"

    def test_a_stated_sign_beats_every_name(self):
        stated = phase_encoding({"PhaseEncodingDirection": "j"}, label="AP", affine=RAS)
        assert stated == PhaseEncoding("j", "j from PhaseEncodingDirection")

    @pytest.mark.parametrize(
        ("label", "description"),
        [("", ""), ("1", ""), ("LR", ""), ("", "dti_AP_PA"), ("", "this is it"), ("", "HAPPY")],
    )
    def test_what_tells_no_sign_leaves_it_unknown(self, label, description):
        metadata = {"PhaseEncodingAxis": "j", "SeriesDescription": description}
        encoding = phase_encoding(metadata, label=label, affine=RAS)
        assert encoding.is_guess
        assert not encoding.is_inferred

    def test_a_name_tells_the_axis_too(self):
        assert phase_encoding({}, label="LR", affine=RAS).direction == "i"


class TestRelation:
    @pytest.mark.parametrize(
        ("first", "second", "relation"),
        [
            ("j", "j", Relation.EQUAL),
            ("j", "j-", Relation.OPPOSITE),
            ("j", "i", Relation.CROSSED),
        ],
    )
    def test_known_directions(self, first, second, relation):
        assert relate(PhaseEncoding(first, ""), PhaseEncoding(second, "")) is relation

    @pytest.mark.parametrize("direction", ["i", "j", "j-"])
    def test_unknown_is_never_equal(self, direction):
        unknown = PhaseEncoding("j", "", is_guess=True)
        assert relate(unknown, unknown) is Relation.UNKNOWN
        assert relate(PhaseEncoding(direction, ""), unknown) is Relation.UNKNOWN
        assert relate(unknown, PhaseEncoding(direction, "")) is Relation.UNKNOWN

    @pytest.mark.parametrize(
        ("as_equal", "as_opposite", "relation"),
        [
            (0.70, 0.95, Relation.OPPOSITE),
            (0.95, 0.96, Relation.EQUAL),  # a field always explains a little
            (0.95, 0.90, Relation.EQUAL),
            (1.0, 1.0, Relation.EQUAL),
            (float("nan"), 0.9, Relation.UNKNOWN),
        ],
    )
    def test_the_better_of_both_ways_is_kept(self, as_equal, as_opposite, relation):
        assert resolve_relation(as_equal, as_opposite) is relation
