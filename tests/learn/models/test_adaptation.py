"""Sites a model was not trained on: adapted to without labels, tested, and refused where few."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.learn.models.adaptation import UnlabelledScan, adapt_sites, without_labels
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.distributed import Processes
from bids_gevnet.learn.train.held_out import score_held_out
from bids_gevnet.learn.train.outputs import is_tested, read_adaptation, read_held_out
from bids_gevnet.settings import ExecutionSettings, LearningSettings


@pytest.fixture(scope="module")
def trained(study_class, plan_jobs, train_here, tmp_path_factory):
    """A fold with enough people for the harmonisation to know how much they vary."""
    study = study_class(tmp_path_factory.mktemp("adapt"), per_class=8, classes=("AD", "PD"))
    settings = LearningSettings(
        folds=2,
        epochs=1,
        samples_per_class=4,
        batch_size=4,
        network="ckn2",
        leave_site_out=False,
    )
    job = plan_jobs(study, settings, ExecutionSettings(nprocs=1)).jobs[0]
    train_here(job)
    return job


@pytest.fixture(scope="module")
def gains(trained):
    return load_model(Path(trained.model_dir)).gains


@pytest.fixture
def left_out(trained, tmp_path):
    """The trained model, tested on the people of one site as if it had never seen that site."""
    folder = Path(shutil.copytree(trained.model_dir, tmp_path / "leave-site-C"))
    (folder / "held_out.json").unlink()
    people = (*trained.testing, *trained.training)
    scans = tuple(replace(scan, site="C") for scan in people if scan.site == "B")
    return replace(
        trained,
        model_dir=str(folder),
        testing=scans,
        held_out_site="C",
        options=replace(trained.options, adapt=True),
    )


def test_adaptation_sees_no_labels(trained, gains):
    scans = without_labels(replace(s, site="C") for s in (*trained.testing, *trained.training))
    assert {field for scan in scans for field in vars(scan)} == {
        "folder",
        "participant",
        "site",
        "covariates",
    }
    found = adapt_sites(gains, scans)
    assert [facts.site for facts in found.adaptations] == ["C"]
    assert found.gains.knows("C")


def test_known_sites_are_left_alone_and_small_ones_named(trained, gains):
    scans = without_labels(trained.testing)
    lone = UnlabelledScan(folder=scans[0].folder, participant="x", site="D", covariates={})
    found = adapt_sites(gains, [*scans, lone])
    assert found.adaptations == ()
    assert found.gains is gains
    (sentence,) = found.refusals
    assert "Site D" in sentence
    assert "needs 3 people of a site, and there is 1" in sentence


def test_a_model_without_harmonisation_cannot_adapt(trained):
    with pytest.raises(InputError, match="trained without harmonisation"):
        adapt_sites(None, without_labels(trained.testing))


def test_a_left_out_site_is_scored_as_it_is_and_adapted(left_out):
    assert left_out.tests_adapted
    assert not is_tested(left_out)
    score_held_out(left_out, Processes())
    folder = Path(left_out.model_dir)
    plain, adapted = read_held_out(folder), read_held_out(folder, adapted=True)
    assert set(plain) == set(adapted) == {scan.scan for scan in left_out.testing}
    assert any(not np.allclose(plain[scan], adapted[scan]) for scan in plain)
    assert "unlabelled scans of 8 people" in read_adaptation(folder)
    assert is_tested(left_out)
    assert not is_tested(replace(left_out, options=replace(left_out.options, adapt=False)))


def test_labels_do_not_change_what_a_site_is_adapted_to(left_out, tmp_path):
    score_held_out(left_out, Processes())
    folder = Path(shutil.copytree(left_out.model_dir, tmp_path / "again"))
    swapped = tuple(replace(scan, label=1 - scan.label) for scan in left_out.testing)
    other = replace(left_out, model_dir=str(folder), testing=swapped)
    score_held_out(other, Processes())
    first = read_held_out(Path(left_out.model_dir), adapted=True)
    assert read_held_out(folder, adapted=True) == first


def test_asking_for_adaptation_does_not_train_anything_again(trained):
    asked = replace(trained, options=replace(trained.options, adapt=True))
    assert asked.digest == trained.digest
    assert not asked.tests_adapted  # nobody's site is left out


def test_too_few_people_of_a_left_out_site_are_said(left_out):
    few = replace(left_out, testing=left_out.testing[:2])
    score_held_out(few, Processes())
    folder = Path(few.model_dir)
    assert read_held_out(folder, adapted=True) == {}
    assert "there are 2" in read_adaptation(folder)
    assert is_tested(few)
