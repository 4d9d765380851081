"""Training that starts from a trained model: which weights it takes, and when it starts again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.errors import InputError
from bids_gevnet.learn.models.files import WEIGHTS, load_model
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.jobs import TrainJob, read_jobs, write_jobs
from bids_gevnet.learn.train.trainer import Trainer, fit_harmonisation


@pytest.fixture
def started(trained: TrainJob, elsewhere: TrainJob) -> TrainJob:
    """A job that starts from a model of the same classes."""
    return replace(
        elsewhere,
        init_dir=trained.model_dir,
        init_sha256=hash_file(Path(trained.model_dir) / WEIGHTS),
        init_labels=trained.labels,
    )


def start_weights(job: TrainJob) -> dict[str, torch.Tensor]:
    gains = fit_harmonisation(job, Processes())
    return Trainer(job, gains, Processes()).network.state_dict()


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> set[str]:
    assert set(first) == set(second)
    return {name for name in first if not torch.equal(first[name], second[name])}


def test_training_starts_from_all_weights_of_a_model_of_the_same_classes(started):
    model = load_model(Path(started.init_dir)).network.state_dict()
    assert differing(start_weights(started), model) == set()
    assert started.keeps_classifier


def test_the_classifier_starts_anew_for_other_classes(started):
    other = replace(started, init_labels=("AD", "DLB"))
    model = load_model(Path(started.init_dir)).network.state_dict()
    changed = differing(start_weights(other), model)
    assert changed
    assert all(name.startswith("head.") for name in changed)
    fresh = start_weights(replace(other, init_dir="", init_sha256="", init_labels=()))
    assert all(
        name.startswith("head.") is False for name in differing(start_weights(other), fresh)
    )


def test_a_start_decides_the_result_and_its_place_does_not(started, elsewhere, tmp_path):
    assert started.digest != elsewhere.digest
    assert replace(started, init_dir="/somewhere/else").digest == started.digest
    assert replace(started, init_sha256="other weights").digest != started.digest
    assert replace(started, init_labels=("AD", "DLB")).digest != started.digest
    write_jobs(tmp_path / "jobs.json", [started])
    assert read_jobs(tmp_path / "jobs.json") == (started,)


def test_weights_that_changed_meanwhile_are_refused(started):
    with pytest.raises(InputError, match="as they were when the study began"):
        start_weights(replace(started, init_sha256="0" * 64))


def test_a_finished_model_says_what_it_started_from(started, train_here):
    train_here(replace(started, options=replace(started.options, epochs=1)))
    card = load_model(Path(started.model_dir)).card
    assert card.options["init_model"] == started.init_sha256
