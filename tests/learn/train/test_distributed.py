"""Several processes compute what one would on the joined batch."""

import csv
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file

from bids_gevnet.errors import InputError
from bids_gevnet.learn.train import distributed
from bids_gevnet.learn.train.distributed import (
    Processes,
    StopRequest,
    TrainingInterrupted,
    _translate_slurm,
    device_count,
    first_host,
    join_processes,
)
from bids_gevnet.learn.train.held_out import score_held_out
from bids_gevnet.learn.train.jobs import TrainJob, write_jobs
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.torchrun import Devices, train
from bids_gevnet.learn.train.trainer import train_job


def _work(rank: int, size: int, port: int, job: TrainJob) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "BIDS_GEVNET_DEVICE": "cpu",
    }
    torch.set_num_threads(1)
    with join_processes() as processes:
        assert (processes.rank, processes.size) == (rank, size)
        train_job(job, processes, StopRequest(), TrainingProgress(1, active=False))
        score_held_out(job, processes)


def losses(job: TrainJob) -> list[float]:
    with (Path(job.model_dir) / "learning_curve.csv").open() as stream:
        return [float(row["train_loss"]) for row in csv.DictReader(stream)]


@pytest.mark.parametrize(
    ("network", "number"),
    [
        pytest.param("ckn2+deepsphere", False, marks=pytest.mark.slow),
        ("ckn2+gevnet", False),
        ("ckn2", True),
    ],
)
def test_two_processes_equal_one_on_the_joined_batch(
    jobs: Any, tmp_path: Path, train_here: Any, as_regression: Any, network: str, number: bool
) -> None:
    options = replace(jobs[0].options, network=network, epochs=2)
    alone, together = (
        replace(
            as_regression(jobs[0]) if number else jobs[0],
            options=options,
            model_dir=str(tmp_path / name / "model"),
            work_dir=str(tmp_path / name / "work"),
        )
        for name in ("alone", "together")
    )
    train_here(alone)
    mp.spawn(_work, (2, 20_000 + os.getpid() % 20_000, together), nprocs=2)
    np.testing.assert_allclose(losses(together), losses(alone), rtol=2e-4)
    one, two = (read_held_out(Path(job.model_dir)) for job in (alone, together))
    assert one.keys() == two.keys()
    for scan, scores in one.items():
        np.testing.assert_allclose(two[scan], scores, atol=2e-3)
    weights, others = (
        load_file(Path(job.model_dir) / "model.safetensors") for job in (alone, together)
    )
    # A bias before a normalisation has no effect and no gradient but rounding errors.
    names = [name for name in weights if "convs" not in name and "running" not in name]
    flat, other = (torch.cat([w[name].flatten() for name in names]) for w in (weights, others))
    # Adam makes a whole step of any gradient that is a rounding error: a few weights are such,
    # and no further apart than the steps of both runs can lead.
    apart = (other - flat).abs()
    assert (apart > 1e-4 + 1e-3 * flat.abs()).float().mean() < 1e-3
    assert apart.max() < 2 * options.learning_rate * 6  # steps


@pytest.mark.slow
def test_torchrun_trains_all_jobs(jobs: Any, tmp_path: Path) -> None:
    own = [
        replace(
            job,
            model_dir=str(tmp_path / str(i) / "model"),
            work_dir=str(tmp_path / str(i) / "work"),
        )
        for i, job in enumerate(jobs)
    ]
    write_jobs(tmp_path / "jobs.json", own)
    train(tmp_path / "jobs.json", Devices(processes=2, gpu=False, threads=1))
    assert all((Path(job.model_dir) / "model.json").exists() for job in own)


@pytest.mark.slow
def test_error_of_a_process_reaches_the_caller(jobs: Any, tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text("{}")
    with pytest.raises(InputError, match="training jobs written by the group level"):
        train(tmp_path / "jobs.json", Devices(processes=2, gpu=False, threads=1))


def test_shares_cover_everything_once() -> None:
    items = list(range(11))
    shares = [Processes(rank, 3).share(items) for rank in range(3)]
    assert sorted(i for share in shares for i in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_signal_is_remembered_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with StopRequest().listening() as stop:
        assert not stop.agreed(Processes())
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.agreed(Processes())
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_second_signal_does_not_wait_for_the_step() -> None:
    with StopRequest().listening() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        with pytest.raises(TrainingInterrupted, match="a second signal"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_the_program_learns_of_a_signal_that_stopped_a_training() -> None:
    """Or it would begin with the next model."""
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with StopRequest().listening():
                signal.raise_signal(number)
                assert len(received) == (number == signal.SIGUSR1)
        assert received == [signal.SIGTERM, signal.SIGTERM]
        with StopRequest().listening():
            pass
        assert len(received) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_step_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "PATIENCE_S", 0.05)
    with StopRequest().listening():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(TrainingInterrupted, match="a step that took more than"):
            time.sleep(5)
    time.sleep(0.1)  # the alarm is off


@pytest.mark.parametrize(("devices", "expected"), [("auto", (4, False)), ("cpu:3", (3, False))])
def test_devices_without_gpu(
    devices: str, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_count(devices, cpus=4) == expected


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_count("auto", cpus=4) == (2, True)
    assert device_count("2", cpus=4) == (2, True)
    with pytest.raises(InputError, match=r"3 GPUs.*found 2"):
        device_count("3", cpus=4)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("a1", "a1"), ("a1,b2", "a1"), ("gpu[07-09]", "gpu07"), ("gpu[3,5-6],x", "gpu3")],
)
def test_first_host(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_slurm_tasks_become_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in {
        "SLURM_NTASKS": "6",
        "SLURM_PROCID": "4",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "123456",
        "SLURM_STEP_NODELIST": "gpu[07-09]",
    }.items():
        monkeypatch.setenv(name, value)
    _translate_slurm()
    assert os.environ["RANK"] == "4"
    assert os.environ["WORLD_SIZE"] == "6"
    assert os.environ["MASTER_ADDR"] == "gpu07"
