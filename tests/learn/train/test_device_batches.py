"""Batches made on a device are those made on the host, and leave the host little to do."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from bids_gevnet.fake_gpu import fake_gpu
from bids_gevnet.harmonisation.device_gains import DeviceGains
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.learn.train.batches import ScanReader, read_ahead
from bids_gevnet.learn.train.device_batches import DeviceReader, HostBatch, HostScan
from bids_gevnet.learn.train.device_pieces import POINT_BYTES, VOXEL_BYTES, device_pieces
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.jobs import TrainJob
from bids_gevnet.learn.train.mixup import Mixture
from bids_gevnet.learn.train.pieces import choose_pieces
from bids_gevnet.learn.train.trainer import Trainer
from bids_gevnet.nn.compound import Pieces

CPU = torch.device("cpu")
PLAN = [Mixture(2, 2, 1.0, 1), Mixture(0, 1, 0.3, 0), Mixture(1, 2, 0.9, 1)]


@pytest.fixture(params=[False, True], ids=["raw", "harmonised"])
def reader(request: Any, jobs: Any) -> ScanReader:
    job = jobs[0]
    gains = None
    if request.param:
        sites = tuple(sorted({scan.site for scan in job.training}))[:1]  # the other is unknown
        rng = np.random.default_rng(0)
        shape = (len(sites), *job.shape, 2)
        values = rng.uniform(0.7, 1.4, shape).astype(np.float32)
        gains = RishGains(values, sites, degrees=(0, 2), nside=job.nside)
    return ScanReader(job.training, gains)


def test_a_batch_of_the_device_is_that_of_the_host(reader: ScanReader) -> None:
    device = DeviceReader(reader, CPU)
    for here, there in zip(reader.batch(PLAN), device.place(device.batch(PLAN)), strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=2e-6)


def test_mixtures_of_scans_with_other_brains_keep_what_both_have(reader: ScanReader) -> None:
    class Cut(ScanReader):
        """The first scan lost a slab of its brain."""

    class Stored:
        def __init__(self, stored: Any) -> None:
            kept = stored.mask.copy()
            kept[:3] = False
            self.mask, self.samples = kept, stored.samples[kept[stored.mask]]

    cut = Cut(reader.scans, reader.gains)
    cut.stored = (Stored(reader.stored[0]), *reader.stored[1:])  # type: ignore[assignment]
    device = DeviceReader(cut, CPU)
    volumes, masks, _ = device.place(device.batch(PLAN))
    expected = cut.batch(PLAN)
    torch.testing.assert_close(volumes, expected[0], rtol=0, atol=2e-6)
    assert torch.equal(masks, expected[1])
    assert not masks[1, :3].any()
    assert masks[0, :3].any()


def test_only_half_precision_of_the_brain_is_copied(reader: ScanReader) -> None:
    batch = DeviceReader(reader, CPU).batch(PLAN[:1])
    samples = reader.stored[2].samples
    assert batch.nbytes == samples.nbytes + 4 * len(samples)
    assert batch.nbytes < reader.batch(PLAN[:1])[0].nbytes / 2


def test_several_workers_keep_the_order_and_pass_errors_on(reader: ScanReader) -> None:
    plans = [[Mixture(i % 3, i % 3, 1.0, i % 2)] for i in range(11)]
    found = list(DeviceReader(reader, CPU).batches(plans))
    for plan, (volumes, _, labels) in zip(plans, found, strict=True):
        torch.testing.assert_close(volumes, reader.batch(plan)[0], rtol=0, atol=2e-6)
        assert labels.tolist() == [plan[0].label]
    with pytest.raises(IndexError):
        list(read_ahead(reader, [[Mixture(99, 99, 1.0, 0)]], workers=3))


def test_the_device_works_alone_and_nobody_waits() -> None:
    gains = RishGains(np.full((1, 5, 6, 7, 2), 1.2, np.float32), ("A",), degrees=(0, 2), nside=1)
    with fake_gpu() as gpu:
        scans = [
            HostScan(
                torch.empty(70, 6, dtype=torch.float16),
                torch.empty(70, dtype=torch.int32),
                torch.empty(60, dtype=torch.int32),
                site,
                0.5,
            )
            for site in ("A", "unknown")
        ]
        masks = torch.empty(1, 5, 6, 7, dtype=torch.bool)
        reader = ScanReader([], gains)
        device = DeviceReader(reader, gpu.device)
        before = gpu.counts.to_device
        batch = HostBatch([tuple(scans)], masks, torch.empty(1, dtype=torch.long))
        volumes, kept, labels = device.place(batch)
        assert volumes.shape == (1, 6, 5, 6, 7)
        assert (volumes.device, kept.device.type, labels.device) == (
            gpu.device,
            "cpu",
            gpu.device,
        )
        copied = gpu.counts.to_device - before - 4 * 5 * 6 * 7 * 2  # without the gains of A
    assert gpu.counts.waits == 0
    assert copied == batch.nbytes + 8


def test_gains_of_a_device_are_those_of_the_host() -> None:
    rng = np.random.default_rng(1)
    values = rng.uniform(0.5, 2, (1, 3, 4, 5, 4)).astype(np.float32)
    gains = RishGains(values, ("A",), degrees=(0, 2), nside=2, b_values=(1000.0, 3000.0))
    mask = rng.random((3, 4, 5)) < 0.6
    samples = rng.random((int(mask.sum()), 48)).astype(np.float32)
    places = torch.from_numpy(np.flatnonzero(mask))
    for site in ("A", "elsewhere"):
        there = DeviceGains(gains, CPU).apply(torch.from_numpy(samples), site, places)
        np.testing.assert_allclose(there.numpy(), gains.apply(samples, site, mask), atol=1e-5)


def test_training_by_the_device_path_gives_the_same_losses(elsewhere: TrainJob) -> None:
    class OnDevice(Trainer):
        def read(self, parts: Any) -> Any:
            return self._device_reader.batches(parts)

    losses = []
    for kind in (Trainer, OnDevice):
        trainer = kind(elsewhere, None, Processes())
        trainer.model.train()
        plan = trainer.plan(0)[:4]
        incoming = trainer.read([plan[:2], plan[2:]])
        losses.append(trainer._gradients(incoming, 2, 4)[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_scores_by_the_device_path_are_the_same(elsewhere: TrainJob) -> None:
    trainer = Trainer(elsewhere, None, Processes())
    expected = trainer.score(elsewhere.testing)
    reader = ScanReader(elsewhere.testing, None)
    indices = range(len(reader.scans))
    made = DeviceReader(reader, CPU, masks_on_host=False).singles(indices)
    with torch.no_grad():
        found = [trainer.network(v, m)[0].tolist() for v, m, _ in made]
    np.testing.assert_allclose(found, expected, atol=1e-5)


# --- pieces -------------------------------------------------------------------------------------

PAPER = {"voxels": 96 * 563_255, "points": 192 * 3_100, "points_per_sphere": 192}


def test_pieces_grow_with_free_memory_and_never_exceed_it() -> None:
    found = [device_pieces(Pieces(), free=gb * 10**9, **PAPER) for gb in (1, 4, 6, 12, 40)]
    for smaller, larger in pairwise(found):
        assert smaller.volume_voxels <= larger.volume_voxels
        assert smaller.sphere_voxels <= larger.sphere_voxels
        assert smaller.whole <= larger.whole
    assert [pieces.whole for pieces in found] == [False, False, False, True, True]
    for gb, pieces in zip((4, 6, 12, 40), found[1:], strict=True):
        assert pieces.volume_voxels * VOXEL_BYTES <= gb * 10**9
        assert pieces.sphere_voxels * POINT_BYTES * 192 <= gb * 10**9


def test_a_gpu_without_room_gets_the_pieces_of_a_cpu() -> None:
    assert device_pieces(Pieces(), free=0, **PAPER) == Pieces()


def test_free_memory_decides_where_there_is_a_gpu(elsewhere: TrainJob) -> None:
    job = replace(elsewhere, options=replace(elsewhere.options, batch_size=10**5))
    trainer = Trainer(elsewhere, None, Processes())
    on_cpu, on_gpu = (
        choose_pieces(job, trainer.compound, trainer.reader.largest, 10**5, free=free)
        for free in (None, 80 * 10**9)
    )
    assert on_cpu.sphere_voxels == Pieces().sphere_voxels
    assert on_gpu.sphere_voxels > 100 * on_cpu.sphere_voxels
