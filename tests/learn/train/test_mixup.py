"""Epoch plans, mixtures and batches."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.learn.train.batches import ScanReader, read_ahead
from bids_gevnet.learn.train.mixup import Mixture, plan_epoch, split_batches

LABELS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@settings(deadline=None)
@given(LABELS, st.integers(1, 40), st.integers(0, 1000), st.integers(0, 50))
def test_plan_has_so_many_of_each_class_from_that_class(
    labels: list[int], per_class: int, seed: int, epoch: int
) -> None:
    plan = plan_epoch(labels, samples_per_class=per_class, seed=seed, epoch=epoch)
    assert Counter(m.label for m in plan) == dict.fromkeys(set(labels), per_class)
    for m in plan:
        assert labels[m.first] == labels[m.second] == m.label
        assert 0 <= m.weight <= 1
    assert plan == plan_epoch(labels, samples_per_class=per_class, seed=seed, epoch=epoch)


@settings(deadline=None)
@given(LABELS, st.integers(1, 40), st.integers(1, 12))
def test_every_batch_holds_equally_many_of_each_class(
    labels: list[int], per_class: int, size: int
) -> None:
    plan = plan_epoch(labels, samples_per_class=per_class, seed=3, epoch=1)
    for batch in split_batches(len(plan), size):
        counts = Counter(plan[i].label for i in batch)
        numbers = [counts[label] for label in set(labels)]
        # A batch may begin and end within a turn of the classes.
        assert max(numbers) - min(numbers) <= 2
    turns = [plan[i : i + len(set(labels))] for i in range(0, len(plan), len(set(labels)))]
    assert all({m.label for m in turn} == set(labels) for turn in turns)


def test_every_scan_is_there_once_as_it_is() -> None:
    plan = plan_epoch([0] * 5 + [1] * 3, samples_per_class=20, seed=0, epoch=0)
    real = [m.first for m in plan if m.weight == 1.0 and m.first == m.second]
    assert sorted(real) == list(range(8))
    assert all(m.first != m.second for m in plan if m.weight != 1.0)


def test_mixtures_change_from_epoch_to_epoch() -> None:
    first, second = (
        plan_epoch([0, 0, 1, 1], samples_per_class=9, seed=0, epoch=e) for e in (0, 1)
    )
    assert set(first) != set(second)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 40))
def test_batches_cover_the_epoch_evenly(n: int, size: int) -> None:
    batches = split_batches(n, size)
    assert [i for batch in batches for i in batch] == list(range(n))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


@pytest.fixture
def reader(jobs: Any) -> ScanReader:
    return ScanReader(jobs[0].training, None)


def test_mixture_is_the_weighted_sum_where_both_have_brain(reader: ScanReader) -> None:
    (first, mask), (second, _) = reader.read(0), reader.read(1)
    mixed, both = reader.mix(Mixture(0, 1, 0.3, 0))
    np.testing.assert_array_equal(both, mask)
    np.testing.assert_allclose(mixed, 0.3 * first + 0.7 * second, atol=1e-6)


def test_batch_puts_voxels_back(reader: ScanReader) -> None:
    volumes, masks, labels = reader.batch([Mixture(2, 2, 1.0, 1), Mixture(0, 1, 0.5, 0)])
    samples, mask = reader.read(2)
    np.testing.assert_array_equal(volumes[0].numpy()[:, mask], samples.T)
    assert not volumes[:, :, ~mask].any()
    assert labels.tolist() == [1, 0]
    assert masks.shape == (2, *mask.shape)


def test_reading_ahead_keeps_the_order(reader: ScanReader) -> None:
    plans = [[Mixture(i, i, 1.0, i % 2)] for i in (2, 0, 1)]
    batches = list(read_ahead(reader, plans))
    for plan, (volumes, _, _) in zip(plans, batches, strict=True):
        np.testing.assert_array_equal(volumes.numpy(), reader.batch(plan)[0].numpy())


def test_reading_ahead_passes_errors_on(reader: ScanReader) -> None:
    with pytest.raises(IndexError):
        list(read_ahead(reader, [[Mixture(99, 99, 1.0, 0)]]))


def test_folder_of_a_job_is_the_only_way_to_a_scan(jobs: Any) -> None:
    assert all(Path(scan.folder).is_dir() for scan in jobs[0].training)
