import pickle

import pytest

from bids_gevnet.errors import InputError, ParticipantError, WorkflowBuildError


@pytest.mark.parametrize(
    ("kind", "code"), [(InputError, 2), (ParticipantError, 1), (WorkflowBuildError, 70)]
)
def test_sentence_and_exit_code_survive_a_process_boundary(kind, code):
    error = pickle.loads(pickle.dumps(kind(expected="a", found="b", remedy="c")))
    assert isinstance(error, kind)
    assert str(error) == "Expected a; found b. What to do: c."
    assert error.exit_code == code
