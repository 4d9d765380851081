"""How long training takes: counts of what is run, and times that follow the size of the work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bids_gevnet.learn.cohort.members import Cohort, read_cohort
from bids_gevnet.learn.train import pace
from bids_gevnet.learn.train.effort import plan_effort
from bids_gevnet.learn.train.mixup import Mixture
from bids_gevnet.learn.train.pace import Pace, RandomScans, forecast, measure_pace
from bids_gevnet.learn.train.planning import plan_study
from bids_gevnet.learn.train.torchrun import Devices
from bids_gevnet.settings import LearningSettings

ONE = Devices(processes=1, gpu=False, threads=1)
SETTINGS = LearningSettings(
    folds=2, epochs=3, samples_per_class=10, batch_size=4, network="ckn2", leave_site_out=False
)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory, study_class: Any) -> Cohort:
    root = tmp_path_factory.mktemp("pace")
    study = study_class(root, per_class=4, classes=("AD", "PD"))
    return read_cohort(study.output_dir, study.bids_dir, folds=2)


def planned(cohort: Cohort, settings: LearningSettings) -> tuple[Any, Any]:
    plan = plan_study(cohort, settings, seed=0)
    return plan, plan_effort(cohort, plan, settings)


def test_scans_that_are_scored_are_counted(cohort: Cohort) -> None:
    _, effort = planned(cohort, SETTINGS)
    # Two folds of 4: all training scans three times, test scans after 3 epochs and in the end.
    assert effort.scored == (3 * 4 + 4 * 4, 3 * 4 + 4 * 4, 3 * 8)


def test_hours_are_steps_times_seconds(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 5 steps of 4 samples an epoch, 3 epochs, three models."""
    monkeypatch.setattr(pace, "measure_pace", lambda *_: Pace(step=100.0, score=10.0))
    plan, effort = planned(cohort, SETTINGS)
    found = forecast(cohort, plan, effort, SETTINGS, ONE, explained=8)
    steps, scored = 3 * 3 * 5 * 4, 28 + 28 + 24
    assert found.hours == pytest.approx((100 * steps + 10 * scored + 3 * 8 * 10) / 3600)
    two = forecast(cohort, plan, effort, SETTINGS, replace(ONE, processes=2), explained=8)
    assert two.hours == pytest.approx((50 * steps + 5 * scored + 3 * 8 * 10) / 3600)


def test_more_than_a_day_is_met_with_fewer_epochs(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "measure_pace", lambda *_: Pace(step=1000.0, score=0.0))
    plan, effort = planned(cohort, SETTINGS)
    found = forecast(cohort, plan, effort, SETTINGS, ONE)
    assert found.hours == pytest.approx(50)
    assert dict(found.others)["--epochs 1"] == pytest.approx(50 / 3)


def test_a_part_of_the_brain_is_timed_beside_all_of_it(cohort: Cohort) -> None:
    settings = replace(SETTINGS, network="gevnet", voxels_per_step="all")
    plan, effort = planned(cohort, settings)
    found = forecast(cohort, plan, effort, settings, ONE)
    (option, hours) = found.others[0]
    assert option == "--voxels-per-step 0.1"
    assert hours > 0
    small = replace(settings, network="ckn2")  # 8 coarse voxels: they are not divided
    assert forecast(cohort, *planned(cohort, small), small, ONE).others == ()


def test_time_is_measured_for_whole_scans_too(cohort: Cohort) -> None:
    found = measure_pace(cohort, "ckn2", 2, SETTINGS, ONE)
    assert found.step > 0
    assert found.score > 0


def test_a_large_scan_is_timed_by_a_part_of_it() -> None:
    brain = np.ones((20, 30, 10), bool)
    brain[:, :2] = False
    reader = RandomScans(brain, 6)
    (scans, masks), scale = reader.whole(10**9)
    assert scans.shape == (1, 6, 20, 30, 10)
    assert scale == 1
    np.testing.assert_array_equal(masks[0], brain)
    (part, mask), scale = reader.whole(1600)
    assert part[0, 0].numel() <= 1600
    assert scale == pytest.approx(np.sqrt(6000 / part[0, 0].numel() * 5600 / int(mask.sum())))
    samples, inside = reader.mix(Mixture(0, 0, 1.0, 0), (slice(0, 3), slice(0, 3), slice(0, 3)))
    assert len(samples) == inside.sum() == 9


def test_nothing_is_written(cohort: Cohort) -> None:
    root = Path(cohort.rows[0].image).parents[3]
    before = sorted(root.rglob("*"))
    plan, effort = planned(cohort, SETTINGS)
    forecast(cohort, plan, effort, SETTINGS, ONE)
    assert sorted(root.rglob("*")) == before
