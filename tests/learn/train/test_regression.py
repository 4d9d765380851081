"""Training of a number: samples, scale, interruption, continuation, and what is explained."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.learn.models.files import WEIGHTS, load_model, read_card
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.distributed import Processes, StopRequest, TrainingInterrupted
from bids_gevnet.learn.train.jobs import TrainJob, kept_apart, read_jobs, write_jobs
from bids_gevnet.learn.train.mixup import plan_number_epoch
from bids_gevnet.learn.train.outputs import curve_columns, read_held_out
from bids_gevnet.learn.train.trainer import Trainer, fit_harmonisation, truth_of
from bids_gevnet.nn.attribution import saliency


class StopAt(StopRequest):
    """Asks to stop after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    @property
    def asked(self) -> bool:
        self.steps -= 1
        return self.steps < 1


@pytest.fixture(scope="module")
def ages(jobs: Any, as_regression: Any, tmp_path_factory: Any, train_here: Any) -> TrainJob:
    """A fold that predicts age, trained without interruption."""
    folder = tmp_path_factory.mktemp("ages")
    job = as_regression(jobs[0])
    job = replace(job, model_dir=str(folder / "model"), work_dir=str(folder / "work"))
    train_here(job)
    return job


@pytest.fixture
def again(ages: TrainJob, tmp_path: Path) -> TrainJob:
    """The same job with empty folders of its own."""
    return replace(ages, model_dir=str(tmp_path / "model"), work_dir=str(tmp_path / "work"))


def test_mixtures_have_the_number_between_their_scans() -> None:
    numbers = np.random.default_rng(0).normal(size=30)
    plan = plan_number_epoch(numbers.tolist(), samples_per_half=200, seed=1, epoch=2)
    assert len(plan) == 400
    assert plan == plan_number_epoch(numbers.tolist(), samples_per_half=200, seed=1, epoch=2)
    assert plan != plan_number_epoch(numbers.tolist(), samples_per_half=200, seed=1, epoch=3)
    real = [sample.first for sample in plan if sample.weight == 1.0]
    assert sorted(real) == list(range(30))
    for sample in plan:
        first, second = numbers[sample.first], numbers[sample.second]
        assert sample.label == pytest.approx(sample.weight * first + (1 - sample.weight) * second)
        assert sample.weight == 1.0 or sample.first != sample.second
    mixed = [sample for sample in plan if sample.weight < 1]
    apart = np.mean([abs(numbers[m.first] - numbers[m.second]) for m in mixed])
    blind = np.abs(numbers[:, None] - numbers[None]).mean()
    assert apart < 0.6 * blind  # near numbers are mixed more often than others


def test_halves_take_turns() -> None:
    numbers = np.arange(12.0)
    plan = plan_number_epoch(numbers.tolist(), samples_per_half=6, seed=0, epoch=0)
    lower = [sample.first < 6 for sample in plan]
    assert all(lower[i] != lower[i + 1] for i in range(0, 12, 2))


def test_somebody_far_from_all_others_is_mixed_all_the_same() -> None:
    plan = plan_number_epoch([0.0, 0.1, 1e6], samples_per_half=20, seed=0, epoch=0)
    assert len(plan) == 40
    assert {s.second for s in plan if s.first == 2 and s.weight < 1} == {1}
    assert len(plan_number_epoch([0.0], samples_per_half=2, seed=0, epoch=0)) == 4


def test_numbers_are_standardised_by_training_scans_alone(ages: TrainJob) -> None:
    values = [scan.value for scan in ages.training]
    assert ages.scale == pytest.approx((np.mean(values), np.std(values)))
    truth = np.array(truth_of(ages, ages.training))
    assert truth.mean() == pytest.approx(0, abs=1e-12)
    assert truth.std() == pytest.approx(1)
    strange = [replace(scan, value=1e9) for scan in ages.testing]
    assert replace(ages, testing=tuple(strange)).scale == ages.scale
    card = read_card(Path(ages.model_dir))
    assert (card.kind, card.unit, card.labels) == ("regression", "year", ("age",))
    assert (card.target_mean, card.target_sd) == pytest.approx(ages.scale)
    assert (card.target_low, card.target_high) == (min(values), max(values))


def test_harmonisation_keeps_the_number_apart_from_the_site(ages: TrainJob) -> None:
    groups, covariates = kept_apart(ages.training, ages.labels)
    assert groups is None
    assert list(covariates) == ["age", "sex"]
    assert covariates["age"] == [scan.value for scan in ages.training]
    score = [replace(scan, value=float(i)) for i, scan in enumerate(ages.training)]
    assert list(kept_apart(score, ("MMSE",))[1]) == ["MMSE", "age", "sex"]


def test_the_curve_shows_errors_in_the_unit(ages: TrainJob) -> None:
    with (Path(ages.model_dir) / "learning_curve.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == list(curve_columns("error"))
    scores = read_held_out(Path(ages.model_dir))
    mean, spread = ages.scale
    errors = [abs(mean + spread * scores[s.scan][0] - (s.value or 0)) for s in ages.testing]
    # The last row is before the final statistics are settled: near, not equal.
    assert float(rows[-1]["held_out_error"]) == pytest.approx(np.mean(errors), rel=0.5)


def test_interruption_leaves_no_trace(ages: TrainJob, again: TrainJob, train_here: Any) -> None:
    with pytest.raises(TrainingInterrupted, match="step 4 of 9"):
        train_here(again, StopAt(4))
    train_here(again)
    first, second = (load_file(Path(job.model_dir) / WEIGHTS) for job in (ages, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_held_out(Path(ages.model_dir)) == read_held_out(Path(again.model_dir))


def test_a_job_is_written_and_read_and_its_numbers_decide(ages: TrainJob, tmp_path: Path) -> None:
    write_jobs(tmp_path / "jobs.json", [ages])
    assert read_jobs(tmp_path / "jobs.json") == (ages,)
    first = replace(ages.training[0], value=1.0)
    assert replace(ages, training=(first, *ages.training[1:])).digest != ages.digest
    assert replace(ages, kind="classification").digest != ages.digest


def test_a_model_to_start_from_predicts_the_same_at_first(ages: TrainJob, again: TrainJob) -> None:
    """In another study, with another mean and spread of age, the same number comes out."""
    older = tuple(replace(s, value=2 * (s.value or 0) + 7) for s in again.training)
    started = replace(
        again,
        training=older,
        init_dir=ages.model_dir,
        init_sha256=hash_file(Path(ages.model_dir) / WEIGHTS),
        init_labels=ages.labels,
    )
    trainer = Trainer(started, fit_harmonisation(started, Processes()), Processes())
    before = load_model(Path(ages.model_dir))
    volume, mask = ScanReader(ages.testing, None).single(0)
    with torch.no_grad():
        expected = before.card.number(float(before.network(volume, mask)[0, 0]))
        score = float(trainer.network.eval()(volume, mask)[0, 0])
    mean, spread = started.scale
    assert mean + spread * score == pytest.approx(expected, rel=1e-4)
    other = replace(started, init_labels=("MMSE",))
    assert not other.keeps_classifier


def test_saliency_explains_the_predicted_number(ages: TrainJob) -> None:
    """The gradient foretells what a small change of the scan does to the number."""
    network = load_model(Path(ages.model_dir)).network
    volume, mask = (t[0] for t in ScanReader(ages.testing, None).single(0))
    explained = saliency(network, volume, mask)
    assert explained.target == 0
    step = 1e-2 * explained.attribution / explained.attribution.norm()
    with torch.no_grad():
        change = network((volume + step)[None], mask[None]) - network(volume[None], mask[None])
    assert float(change) == pytest.approx(1e-2 * float(explained.attribution.norm()), rel=0.1)
