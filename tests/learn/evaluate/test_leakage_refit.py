"""The refit of a fold's harmonisation: the same gains, from its training scans alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.learn.evaluate import leakage_refit as refit
from bids_gevnet.learn.evaluate.leakage_refit import check_harmonisation


@pytest.fixture
def answer(trained):
    """Run the check on a job and read what it wrote."""
    path = Path(trained.model_dir).parent / "harmonisation_check.json"

    def check(job):
        path.unlink(missing_ok=True)
        assert check_harmonisation(job) == path
        return json.loads(path.read_text())

    yield check
    path.unlink(missing_ok=True)


def test_training_scans_alone_give_the_stored_gains(answer, trained):
    found = answer(trained)
    assert found["largest_difference"] == 0
    assert found["digest"] == trained.digest
    assert found["scans"] == len(trained.training)


def test_a_fit_that_saw_the_test_scans_is_told_apart(answer, trained):
    leaky = replace(trained, training=(*trained.training, *trained.testing))
    assert answer(leaky)["largest_difference"] > 1e-5


def test_changed_gains_are_noticed(answer, trained):
    path = Path(trained.model_dir) / "harmonisation.npz"
    kept = path.read_bytes()
    gains = load_gains(path)
    try:
        replace(gains, gains=gains.gains * np.float32(1.01)).save(path)
        assert answer(trained)["largest_difference"] > 0.005
        path.unlink()
        assert "reason" in answer(trained)
    finally:
        path.write_bytes(kept)


def test_too_large_a_fit_is_not_made(answer, trained, monkeypatch):
    monkeypatch.setattr(refit, "MOST_VALUES", 10)
    assert "too many" in answer(trained)["reason"]


def test_a_job_without_harmonisation_says_so(answer, trained):
    options = replace(trained.options, harmonise=False)
    assert "does not harmonise" in answer(replace(trained, options=options))["reason"]


def test_an_answer_is_kept_for_the_same_job_only(answer, trained):
    path = Path(trained.model_dir).parent / "harmonisation_check.json"
    answer(trained)
    path.write_text(json.dumps({"digest": trained.digest, "mark": 1}))
    check_harmonisation(trained)
    assert json.loads(path.read_text())["mark"] == 1
    check_harmonisation(replace(trained, training=trained.training[1:]))
    assert "mark" not in json.loads(path.read_text())
