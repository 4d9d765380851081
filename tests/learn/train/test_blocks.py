"""Training on blocks: every region in turn, the same blocks in any run, and whole scans after."""

import csv
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file

from bids_gevnet.learn.models.files import build_network, load_model
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.blocks import BlockReader, count_boxes, plan_blocks
from bids_gevnet.learn.train.distributed import (
    Processes,
    StopRequest,
    TrainingInterrupted,
    join_processes,
)
from bids_gevnet.learn.train.held_out import score_held_out
from bids_gevnet.learn.train.jobs import TrainJob
from bids_gevnet.learn.train.mixup import Mixture, plan_epoch
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.trainer import Trainer, fit_harmonisation, train_job
from bids_gevnet.nn.compound import ScanNetwork

BOXES = 5


def make_job(make_jobs: Any, root: Path, **options: Any) -> TrainJob:
    """A job without pooling, so that the small brain of the tests has many coarse voxels."""
    job: TrainJob = make_jobs(root, strides=(1, 1, 1, 1), **options)[0]
    return replace(job, options=replace(job.options, voxels_per_step=1 / BOXES))


@pytest.fixture(scope="session")
def in_blocks(tmp_path_factory: pytest.TempPathFactory, make_jobs: Any) -> TrainJob:
    return make_job(make_jobs, tmp_path_factory.mktemp("blocks"))


@pytest.fixture(scope="session")
def trained_in_blocks(in_blocks: TrainJob, train_here: Any) -> TrainJob:
    train_here(in_blocks)
    return in_blocks


def elsewhere(job: TrainJob, folder: Path) -> TrainJob:
    return replace(job, model_dir=str(folder / "model"), work_dir=str(folder / "work"))


def epoch(number: int = 0) -> list[Mixture]:
    return plan_epoch([0, 0, 0, 1, 1, 1], samples_per_class=20, seed=1, epoch=number)


# --- plan ---------------------------------------------------------------------------------------


def test_every_region_comes_once_a_round_and_classes_see_the_same_one() -> None:
    planned = plan_blocks(epoch(), classes=2, boxes=BOXES, seed=1, epoch=0)
    assert [sample.mixture for sample in planned] == epoch()
    for start in range(0, len(planned), 2 * BOXES):
        turns = planned[start : start + 2 * BOXES]
        assert Counter(sample.number for sample in turns) == dict.fromkeys(range(BOXES), 2)
        assert len({sample.round_seed for sample in turns}) == 1
    for first, second in zip(planned[::2], planned[1::2], strict=True):
        assert first.number == second.number
        assert {first.mixture.label, second.mixture.label} == {0, 1}


def test_blocks_follow_from_seed_and_epoch() -> None:
    plans = [
        plan_blocks(epoch(), classes=2, boxes=BOXES, seed=seed, epoch=number)
        for seed, number in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert plans[0] != plans[3]


class MeanSignal(ScanNetwork):
    """A network of another package, which says nothing of its reach."""


@pytest.mark.parametrize(
    ("part", "boxes"),
    [("all", 1), (1.0, 1), (0.25, 4), (0.1, 10), (20_000, 10), (500_000, 1), (1e-6, 390)],
)
def test_boxes_of_a_brain(part: float | str, boxes: int) -> None:
    network = build_network("ckn2+gevnet", 2, 4)  # 3,125 coarse voxels, at least 8 in a box
    assert count_boxes(part, 200_000, network) == boxes
    assert count_boxes(part, 200_000, MeanSignal()) == 1


# --- reading ------------------------------------------------------------------------------------


def test_a_block_is_a_part_of_the_mixture(in_blocks: TrainJob) -> None:
    """Signal of both scans, harmonised and mixed, as in the whole; boxes hold it once."""
    gains = fit_harmonisation(in_blocks, Processes())
    assert gains is not None
    reader = ScanReader(in_blocks.training, gains)
    mixture = Mixture(0, 1, 0.3, 0)
    (whole,), (mask,), _ = reader.batch([mixture])
    seen = torch.zeros_like(mask, dtype=torch.int)
    samples = plan_blocks([mixture] * BOXES, classes=1, boxes=BOXES, seed=3, epoch=0)
    for sample in samples:
        batch, labels = BlockReader(reader, 1, 2).batch([sample])
        (signal,), (own,), (cells,), (brain,) = (
            batch.signals,
            batch.masks,
            batch.cells,
            batch.brains,
        )
        assert labels.tolist() == [0]
        np.testing.assert_array_equal(brain, np.flatnonzero(mask))
        torch.testing.assert_close(signal[:, own], whole.flatten(1)[:, cells])
        seen.view(-1)[cells] += 1
    assert torch.equal(seen, mask.int())


class StopAt(StopRequest):
    """A signal that comes after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    @property
    def asked(self) -> bool:
        self.left -= 1
        return self.left == 0


def _work(rank: int, port: int, job: TrainJob) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    values = (rank, rank, 2, "127.0.0.1", port)
    os.environ |= dict(zip(names, map(str, values), strict=True)) | {"BIDS_GEVNET_DEVICE": "cpu"}
    torch.set_num_threads(1)
    with join_processes() as processes:
        train_job(job, processes, StopRequest(), TrainingProgress(1, active=False))
        score_held_out(job, processes)


def losses(job: TrainJob) -> list[float]:
    text = (Path(job.model_dir) / "learning_curve.csv").read_text()
    return [float(row["train_loss"]) for row in csv.DictReader(text.splitlines())]


# --- training -----------------------------------------------------------------------------------


def test_training_takes_blocks_and_leaves_an_ordinary_model(trained_in_blocks: TrainJob) -> None:
    trainer = Trainer(elsewhere(trained_in_blocks, Path("none")), None, Processes())
    assert trainer.boxes == BOXES
    network, card, _ = load_model(Path(trained_in_blocks.model_dir))
    assert not any(name.startswith("regions") for name in network.state_dict())
    assert card.options["voxels_per_step"] == 1 / BOXES


def test_an_interruption_leaves_no_trace(
    trained_in_blocks: TrainJob, tmp_path: Path, train_here: Any
) -> None:
    """Within the second round of boxes: equal weights, bit by bit."""
    job = elsewhere(trained_in_blocks, tmp_path)
    with pytest.raises(TrainingInterrupted, match="step 4 of 9"):
        train_here(job, StopAt(4))
    train_here(job)
    for name in ("model.safetensors", "learning_curve.csv", "held_out.json", "model.json"):
        texts = [(Path(j.model_dir) / name).read_bytes() for j in (trained_in_blocks, job)]
        assert texts[0] == texts[1], name


def test_two_processes_take_the_same_steps(trained_in_blocks: TrainJob, tmp_path: Path) -> None:
    together = elsewhere(trained_in_blocks, tmp_path)
    mp.spawn(_work, (20_000 + (os.getpid() + 7) % 20_000, together), nprocs=2)
    np.testing.assert_allclose(losses(together), losses(trained_in_blocks), rtol=5e-4)
    one, two = (read_held_out(Path(job.model_dir)) for job in (trained_in_blocks, together))
    for scan, scores in one.items():
        np.testing.assert_allclose(two[scan], scores, atol=5e-3)


def test_statistics_in_the_model_are_those_of_whole_scans(trained_in_blocks: TrainJob) -> None:
    """Settling anew on whole training scans changes nothing."""
    job = trained_in_blocks
    saved = load_file(Path(job.model_dir) / "model.safetensors")
    trainer = Trainer(job, load_model(Path(job.model_dir)).gains, Processes())
    trainer.network.load_state_dict(trainer.network.state_dict() | saved)
    trainer.settle_statistics(trainer._some_training_scans())
    for name, value in trainer.network.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(value, saved[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_blocks_learn_what_is_there_to_learn(
    tmp_path: Path, make_jobs: Any, train_here: Any
) -> None:
    job = make_job(make_jobs, tmp_path, per_class=8)
    job = replace(job, options=replace(job.options, epochs=16, samples_per_class=8))
    train_here(job)
    scores = read_held_out(Path(job.model_dir))
    right = [np.argmax(scores[scan.scan]) == scan.label for scan in job.testing]
    assert all(right)
