"""Training: same seed same model, interruptions leave no trace, nothing sees the test fold."""

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bids_gevnet.learn.models.files import read_card
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.distributed import Processes, StopRequest, TrainingInterrupted
from bids_gevnet.learn.train.jobs import TrainJob, read_jobs, write_jobs
from bids_gevnet.learn.train.loop import TrainingDiverged
from bids_gevnet.learn.train.outputs import curve_columns, is_trained, read_held_out
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.trainer import Trainer, choose_for_curve, fit_harmonisation, train_job


def assert_same_model(first: TrainJob, second: TrainJob) -> None:
    one, other = (load_file(Path(job.model_dir) / "model.safetensors") for job in (first, second))
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    for name in ("learning_curve.csv", "held_out.json", "model.json"):
        texts = [(Path(job.model_dir) / name).read_bytes() for job in (first, second)]
        assert texts[0] == texts[1], name


class StopAt(StopRequest):
    """A signal that comes after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    @property
    def asked(self) -> bool:
        self.left -= 1
        return self.left == 0


def test_same_job_same_model(trained: TrainJob, elsewhere: TrainJob, train_here: Any) -> None:
    train_here(elsewhere)
    assert_same_model(trained, elsewhere)


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_interrupted_run_ends_with_the_same_weights(
    trained: TrainJob, elsewhere: TrainJob, train_here: Any, steps: int
) -> None:
    """Within the first epoch, at its end and within the second: equal weights, bit by bit."""
    with pytest.raises(TrainingInterrupted, match=f"step {steps} of 9"):
        train_here(elsewhere, StopAt(steps))
    assert not is_trained(elsewhere)
    train_here(elsewhere)
    assert_same_model(trained, elsewhere)


def test_checkpoint_of_another_job_is_not_taken(elsewhere: TrainJob, train_here: Any) -> None:
    with pytest.raises(TrainingInterrupted):
        train_here(elsewhere, StopAt(2))
    other = replace(elsewhere, options=replace(elsewhere.options, seed=7))
    trainer = Trainer(other, None, Processes())
    assert not trainer.resume()
    assert trainer.steps_done == 0


def test_large_batches_are_cut_up_small_ones_are_held(elsewhere: TrainJob) -> None:
    """Least memory first: the larger a batch, the less of it is held; nothing if it is huge."""
    brain = max(len(s.samples) for s in ScanReader(elsewhere.training, None).stored)
    points = 12 * elsewhere.nside**2 * brain  # of the spheres of one scan
    found = []
    for batch_size in (10**9, 10**6 // points, 4):
        options = replace(elsewhere.options, network="gevnet", batch_size=batch_size)
        pieces = Trainer(replace(elsewhere, options=options), None, Processes()).compound.pieces
        found.append((pieces.keep_sphere, pieces.whole))
    assert found == [(False, False), (True, False), (True, True)]


def test_finished_job_is_left_alone(trained: TrainJob, train_here: Any) -> None:
    path = Path(trained.model_dir) / "model.safetensors"
    before = path.stat().st_mtime_ns
    assert is_trained(trained)
    train_here(trained)
    assert path.stat().st_mtime_ns == before


def test_curve_has_a_row_per_epoch(trained: TrainJob) -> None:
    with (Path(trained.model_dir) / "learning_curve.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == list(curve_columns())
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    rates = [float(row["learning_rate"]) for row in rows]
    # Exponential: equal ratios, and a tenth of the start after the last epoch.
    assert rates[1] / rates[0] == pytest.approx(rates[2] / rates[1])
    assert rates[2] == pytest.approx(0.1 * trained.options.learning_rate)


def test_filters_stay_on_the_sphere(trained: TrainJob) -> None:
    weights = load_file(Path(trained.model_dir) / "model.safetensors")
    filters = [value for name, value in weights.items() if name.endswith("filters")]
    assert filters
    for value in filters:
        np.testing.assert_allclose(value.flatten(1).norm(dim=1), 1, atol=1e-5)


def test_held_out_people_and_training_people_are_apart(trained: TrainJob) -> None:
    card = read_card(Path(trained.model_dir))
    tested = {scan.participant for scan in trained.testing}
    assert tested
    assert not tested & set(card.participants)
    assert set(read_held_out(Path(trained.model_dir))) == {s.scan for s in trained.testing}


def test_nothing_depends_on_the_test_fold(
    trained: TrainJob, elsewhere: TrainJob, train_here: Any
) -> None:
    """Other people to be tested, with other labels: the same weights and gains, bit by bit."""
    swapped = [replace(scan, label=1 - scan.label) for scan in elsewhere.testing[:1]]
    other = replace(elsewhere, testing=tuple(swapped))
    train_here(other)
    for name in ("model.safetensors", "harmonisation.npz"):
        texts = [(Path(job.model_dir) / name).read_bytes() for job in (trained, other)]
        assert texts[0] == texts[1], name


def test_harmonised_scans_are_what_the_network_sees(trained: TrainJob) -> None:
    gains = fit_harmonisation(trained, Processes())
    assert gains is not None
    raw, harmonised = ScanReader(trained.training, None), ScanReader(trained.training, gains)
    samples, mask = raw.read(0)
    expected = gains.apply(samples.astype(np.float16), trained.training[0].site, mask)
    np.testing.assert_allclose(harmonised.read(0)[0], expected, atol=1e-6)


def test_head_starts_with_standardised_inputs(trained: TrainJob) -> None:
    job = replace(trained, work_dir=trained.work_dir + "-head")
    trainer = Trainer(job, None, Processes())
    before = torch.tensor(trainer.score(job.training)).std(0)
    trainer.start()
    layer: Any = trainer.network.get_submodule("head.0")
    features = torch.tensor(trainer._features(job.training))
    start = torch.nn.Linear(8, 50)  # what the layer's weights were drawn for
    spread = (features @ layer.weight.T).std(0).mean()
    reference = (torch.randn(1000, 8) @ start.weight.T).std(0).mean()
    assert 0.3 < spread / reference < 3
    assert (torch.tensor(trainer.score(job.training)).std(0) > before).all()


def test_running_statistics_are_those_of_the_training_scans(trained: TrainJob) -> None:
    """After settling, a batch of all scans looks the same in training and evaluation."""
    job = replace(trained, options=replace(trained.options, batch_size=100))
    trainer = Trainer(job, None, Processes())
    trainer.settle_statistics(range(len(job.training)))
    from bids_gevnet.learn.train.mixup import Mixture

    batch = trainer.reader.batch([Mixture(i, i, 1.0, 0) for i in range(len(job.training))])
    with torch.no_grad():
        trainer.network.eval()
        settled = trainer.network(*batch[:2])
        trainer.network.train()
        now = trainer.network(*batch[:2])
    torch.testing.assert_close(settled, now, rtol=1e-3, atol=5e-4)


def test_accumulation_takes_the_same_samples(elsewhere: TrainJob, train_here: Any) -> None:
    """Two parts per batch: other statistics, so other numbers, but near."""
    job = replace(elsewhere, options=replace(elsewhere.options, accumulate=2))
    trainer = Trainer(job, None, Processes())
    step = list(range(5))
    parts = trainer._parts(step)  # type: ignore[arg-type]
    assert [item for part in parts for item in part] == step
    assert len(parts) == 2
    train_here(job)
    assert is_trained(job)


def test_impossible_numbers_end_the_training(elsewhere: TrainJob) -> None:
    trainer = Trainer(elsewhere, None, Processes())
    with torch.no_grad():
        trainer.network.get_parameter("head.2.bias").fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="nan at step 0"):
        trainer.fit(StopRequest(), TrainingProgress(1, active=False))


def test_learns_what_is_there_to_learn(tmp_path: Path, make_jobs: Any, train_here: Any) -> None:
    """A plain difference between classes is found in people who were not trained on."""
    job = make_jobs(tmp_path, per_class=8)[0]
    job = replace(job, options=replace(job.options, epochs=16, samples_per_class=8))
    train_here(job)
    scores = read_held_out(Path(job.model_dir))
    right = [np.argmax(scores[scan.scan]) == scan.label for scan in job.testing]
    assert all(right)


def test_jobs_file_brings_jobs_back(jobs: Any, tmp_path: Path) -> None:
    write_jobs(tmp_path / "jobs.json", jobs)
    loaded = read_jobs(tmp_path / "jobs.json")
    assert loaded == tuple(jobs)
    assert [a.digest for a in loaded] == [b.digest for b in jobs]


def test_the_learning_curve_of_very_many_is_that_of_a_part(jobs: Any) -> None:
    testing = [replace(jobs[0].testing[0], scan=f"{number}") for number in range(10)]
    assert [scan.scan for scan in choose_for_curve(testing, most=4)] == ["0", "2", "5", "7"]
    assert choose_for_curve(testing) == testing
    assert choose_for_curve([]) == []


def test_a_scan_stands_in_the_jobs_file_once(jobs: Any, tmp_path: Path) -> None:
    """However many models use it: the file and its memory grow with the scans alone."""
    path = tmp_path / "jobs.json"
    write_jobs(path, jobs)
    everybody = {scan.scan for job in jobs for scan in (*job.training, *job.testing)}
    assert len(json.loads(path.read_text())["scans"]) == len(everybody)
    loaded = read_jobs(path)
    kept = {id(scan) for job in loaded for scan in (*job.training, *job.testing)}
    assert len(kept) == len(everybody)
    other = [replace(jobs[0], training=tuple(replace(s, label=1) for s in jobs[0].training))]
    write_jobs(path, [jobs[0], *other])  # the same scan with another label is another
    assert read_jobs(path) == (jobs[0], *other)


def test_digest_follows_what_decides_the_result(jobs: Any) -> None:
    job = jobs[0]
    assert replace(job, model_dir="x", work_dir="y", name="z").digest == job.digest
    assert replace(job, options=replace(job.options, epochs=4)).digest != job.digest
    assert replace(job, training=job.training[1:]).digest != job.digest


def run_alone(jobs_file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bids_gevnet.learn.train.process", str(jobs_file)]
    return subprocess.Popen(command)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_killed_process_goes_on(jobs: Any, tmp_path: Path, number: signal.Signals) -> None:
    """A process that is killed after its first checkpoint, then started again."""
    longer = replace(jobs[0], options=replace(jobs[0].options, epochs=6))
    whole, broken = (
        replace(longer, model_dir=str(tmp_path / n / "model"), work_dir=str(tmp_path / n / "work"))
        for n in ("whole", "broken")
    )
    write_jobs(tmp_path / "whole.json", [whole])
    write_jobs(tmp_path / "broken.json", [broken])
    with run_alone(tmp_path / "whole.json") as process:
        assert process.wait() == 0
    with run_alone(tmp_path / "broken.json") as process:
        wait_for(Path(broken.work_dir) / "checkpoint.safetensors", process)
        process.send_signal(number)
        code = process.wait()
    assert code == (-9 if number == signal.SIGKILL else 1)
    assert not is_trained(broken)
    with run_alone(tmp_path / "broken.json") as process:
        assert process.wait() == 0
    assert_same_model(whole, broken)


def test_error_is_left_for_the_caller(tmp_path: Path) -> None:
    from bids_gevnet.learn.train.process import error_file, main

    path = tmp_path / "jobs.json"
    path.write_text("{}")
    assert main([str(path)]) == 2
    assert json.loads(error_file(path).read_text())["kind"] == "InputError"
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


def test_training_one_job_after_the_other_speaks_in_lines(
    trained: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        train_job(trained, Processes(), StopRequest(), TrainingProgress(3, active=True))
    assert caplog.messages == [f"[1/3] {trained.name}: already trained"]
