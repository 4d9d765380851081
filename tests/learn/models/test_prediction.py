"""Prediction of new scans, and who is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.learn.cohort.store import StoredScan
from bids_gevnet.learn.models.calibration import softmax
from bids_gevnet.learn.models.files import read_card, write_card
from bids_gevnet.learn.models.prediction import Prediction, predict, write_prediction
from bids_gevnet.learn.train.jobs import TrainJob
from bids_gevnet.learn.train.outputs import read_held_out


def full(scan: Any) -> tuple[np.ndarray, np.ndarray]:
    stored = StoredScan(Path(scan.folder))
    volume = np.zeros((*stored.mask.shape, stored.samples.shape[1]), np.float32)
    volume[stored.mask] = stored.samples
    return volume, stored.mask


def ask(job: TrainJob, scan: Any, **changes: Any) -> Prediction:
    samples, mask = full(scan)
    options = {
        "affine": np.array(job.affine),
        "site": scan.site,
        "participant": scan.participant,
        "dataset": "Study of the tests",
        "motion": scan.motion,
    }
    values = {"samples": samples, "mask": mask} | options | changes
    return predict(Path(job.model_dir), **values)


def test_prediction_is_the_held_out_score(trained: TrainJob) -> None:
    scan = trained.testing[0]
    prediction = ask(trained, scan)
    chances = softmax(np.array(read_held_out(Path(trained.model_dir))[scan.scan]))
    np.testing.assert_allclose(list(prediction.probabilities.values()), chances, atol=1e-5)
    assert list(prediction.probabilities) == ["AD", "PD"]
    assert prediction.label == ("AD", "PD")[int(chances.argmax())]


def test_temperature_of_the_card_is_used(trained: TrainJob) -> None:
    folder, scan = Path(trained.model_dir), trained.testing[0]
    card = read_card(folder)
    warm = ask(trained, scan).probabilities["AD"]
    try:
        write_card(folder, replace(card, temperature=5.0))
        soft = ask(trained, scan).probabilities["AD"]
    finally:
        write_card(folder, card)
    assert np.log(soft / (1 - soft)) == pytest.approx(np.log(warm / (1 - warm)) / 5, abs=1e-4)


def test_training_participant_is_refused(trained: TrainJob) -> None:
    scan = trained.training[0]
    with pytest.raises(ParticipantError, match=f"sub-{scan.participant}, who was in its training"):
        ask(trained, scan)


def test_another_scan_of_a_training_participant_is_refused(trained: TrainJob) -> None:
    scan, person = trained.testing[0], trained.training[0].participant
    for dataset in ("Study of the tests", ""):
        with pytest.raises(ParticipantError, match="who was in its training"):
            ask(trained, scan, participant=f"sub-{person}", dataset=dataset)
    # The same label in another dataset is another person.
    assert ask(trained, scan, participant=person, dataset="Another study").label


def test_renamed_training_scan_is_recognised(trained: TrainJob) -> None:
    with pytest.raises(ParticipantError, match="who was in its training"):
        ask(trained, trained.training[0], participant="alias", dataset="Another study")


def test_ordinary_scan_has_no_warnings(trained: TrainJob) -> None:
    quiet = [scan for scan in trained.testing if ask(trained, scan, motion=0.01).warnings == ()]
    assert len(quiet) == len(trained.testing)


def test_warnings_name_what_is_out_of_range(trained: TrainJob) -> None:
    scan = trained.testing[0]
    samples, _ = full(scan)
    found = ask(trained, scan, site="Z", motion=9.0, samples=0.3 * samples).warnings
    assert any("site Z" in text for text in found)
    assert any("9.00 mm" in text for text in found)
    assert any("degree 0" in text for text in found)


def test_other_grids_are_refused(trained: TrainJob) -> None:
    scan = trained.testing[0]
    samples, mask = full(scan)
    moved = np.array(trained.affine) + np.eye(4)[:, [3, 0, 1, 2]]
    for change in (
        {"samples": samples[..., :12]},
        {"samples": samples[:-1], "mask": mask[:-1]},
        {"affine": moved},
    ):
        with pytest.raises(InputError, match="on the model's grid"):
            ask(trained, scan, **change)
    with pytest.raises(ParticipantError, match="brain mask"):
        ask(trained, scan, mask=np.zeros_like(mask))


def test_file_has_a_row_per_class(trained: TrainJob, tmp_path: Path) -> None:
    prediction = ask(trained, trained.testing[0])
    write_prediction(tmp_path / "p.tsv", prediction)
    rows = [line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines()]
    assert rows[0] == ["task", "network", "label", "probability", "warnings"]
    assert [row[2] for row in rows[1:]] == ["AD", "PD"]
    assert sum(float(row[3]) for row in rows[1:]) == pytest.approx(1, abs=1e-5)
