"""Training on two shells: all that is fitted, written, read back and predicted with them."""

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.evaluate.saliency_maps import write_saliency_maps
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.models.prediction import predict
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.jobs import TrainJob, read_jobs, write_jobs
from bids_gevnet.learn.train.outputs import read_held_out
from bids_gevnet.settings import ExecutionSettings, LearningSettings

LEARNING = LearningSettings(
    folds=2, epochs=1, samples_per_class=4, batch_size=4, network="ckn2", leave_site_out=False
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: Any, study_class: Any, plan_jobs: Any, train_here: Any) -> TrainJob:
    """The first fold of a study with a second shell, the square of the first; trained."""
    study = study_class(tmp_path_factory.mktemp("two"), per_class=4, classes=("AD", "PD"))
    for path in study.output_dir.rglob("*_desc-healpix_dwi.nii.gz"):
        image = nib.load(path)
        first = image.get_fdata()
        both = np.concatenate([first, first**2], axis=3)
        write_image(path, both, image.affine, scale=1 / 16384)
        sidecar = path.with_name(path.name.replace(".nii.gz", ".json"))
        write_json(sidecar, json.loads(sidecar.read_text()) | {"BValue": [1000, 2000]})
    planned: TrainJob = plan_jobs(study, LEARNING, ExecutionSettings(nprocs=1)).jobs[0]
    train_here(planned)
    return planned


def test_the_model_is_of_two_shells_and_comes_back_as_it_was(job: TrainJob) -> None:
    network, card, gains = load_model(Path(job.model_dir))
    assert card.b_values == job.b_values == (1000, 2000)
    assert network.shells == card.shells == 2
    assert gains is not None
    assert gains.shells == 2
    assert len(card.rish_low) == 2 * len(gains.degrees)
    expected = read_held_out(Path(job.model_dir))
    reader = ScanReader(job.testing, gains)
    for index, scan in enumerate(job.testing):
        with torch.no_grad():
            scores = network(*reader.single(index))[0].numpy()
        assert np.allclose(scores, expected[scan.scan], atol=1e-5)


def test_a_volume_holds_one_direction_of_both_shells(job: TrainJob) -> None:
    reader = ScanReader(job.training, None)
    volume = next(reader.random_volumes(0, 2))
    assert volume.shape == (2, *job.shape)
    torch.testing.assert_close(volume[1], volume[0] ** 2, atol=2e-3, rtol=2e-3)


def test_a_new_scan_needs_both_shells(job: TrainJob) -> None:
    stored = StoredScan(Path(job.testing[0].folder))
    assert stored.shells == 2
    samples = np.zeros((*job.shape, stored.samples.shape[1]), np.float32)
    samples[stored.mask] = stored.samples
    model = Path(job.model_dir)
    prediction = predict(model, samples, stored.mask, site="A", participant="new")
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    with pytest.raises(InputError, match="shells"):
        predict(model, np.split(samples, 2, -1)[0], stored.mask, site="A", participant="new")


def test_an_unusual_energy_names_its_shell(job: TrainJob) -> None:
    stored = StoredScan(Path(job.testing[0].folder))
    samples = np.zeros((*job.shape, stored.samples.shape[1]), np.float32)
    samples[stored.mask] = stored.samples
    samples[..., samples.shape[-1] // 2 :] *= 3
    found = predict(Path(job.model_dir), samples, stored.mask, site="A", participant="new")
    energies = [text for text in found.warnings if text.startswith("The energy")]
    assert energies
    assert all("at b = 2000" in text for text in energies)


def test_saliency_tells_the_shares_of_the_shells(job: TrainJob) -> None:
    (path,) = write_saliency_maps([job], max_scans=2)
    content = json.loads(path.read_text())
    assert content["b_values"] == [1000, 2000]
    assert sum(content["shell_shares"]) == pytest.approx(1)
    assert min(content["shell_shares"]) > 0


def test_jobs_file_keeps_the_shells(job: TrainJob, tmp_path: Path) -> None:
    write_jobs(tmp_path / "jobs.json", [job])
    assert read_jobs(tmp_path / "jobs.json") == (job,)
