"""A network of another package: trained, written, read back, used; refused once it is gone."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_package import NAME, installed, write_package

from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.models.files import build_network, load_model
from bids_gevnet.learn.models.prediction import predict
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.jobs import TrainJob
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.nn import registry


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    folder = write_package(tmp_path / "site")
    with installed(folder):
        yield folder


@pytest.fixture
def job(package: Path, make_jobs: Any, train_here: Any, tmp_path: Path) -> TrainJob:
    planned: TrainJob = make_jobs(tmp_path, network=NAME)[0]
    train_here(planned)
    return planned


def test_it_is_trained_and_read_back_as_it_was(job: TrainJob) -> None:
    network, card, gains = load_model(Path(job.model_dir))
    assert card.network == NAME
    expected = read_held_out(Path(job.model_dir))
    reader = ScanReader(job.testing, gains)
    for index, scan in enumerate(job.testing):
        with torch.no_grad():
            scores = network(*reader.single(index))[0].numpy()
        assert np.allclose(scores, expected[scan.scan], atol=1e-5)


def test_it_predicts_a_new_scan(job: TrainJob) -> None:
    scan = job.testing[0]
    stored = StoredScan(Path(scan.folder))
    samples = np.zeros((*job.shape, 6 * job.nside**2), np.float32)
    samples[stored.mask] = stored.samples
    prediction = predict(
        Path(job.model_dir), samples, stored.mask, site=scan.site, participant=scan.participant
    )
    assert prediction.network == NAME
    assert sum(prediction.probabilities.values()) == pytest.approx(1)


def test_its_model_is_refused_where_the_package_is_not_installed(
    job: TrainJob, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(package)])
    registry._read.cache_clear()
    with pytest.raises(InputError, match="'mean-signal', which no installed package provides"):
        load_model(Path(job.model_dir))


def test_a_builder_must_give_a_network_that_classifies_scans(tmp_path: Path) -> None:
    source = (
        "from bids_gevnet.nn.registry import Network\n"
        "def build(**options):\n"
        "    import torch\n"
        "    return torch.nn.Linear(2, 2)\n"
        "ENTRY = Network(name='linear', builder=build, classifies_scans=True)\n"
    )
    folder = write_package(
        tmp_path, entry="linear = linear_only:ENTRY", source=source, package="linear_only"
    )
    with installed(folder), pytest.raises(InputError, match="found a Linear"):
        build_network("linear", 2, 4)


def test_it_is_refused_for_more_shells_than_it_takes(package: Path) -> None:
    assert build_network(NAME, 2, 2).shells == 1
    with pytest.raises(InputError, match="one shell for the network mean-signal; found 2 shells"):
        build_network(NAME, 2, 2, shells=2)
