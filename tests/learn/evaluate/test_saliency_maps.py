"""Saliency of held-out scans: who is explained by whom, the known region, and bounded cost."""

import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bids_gevnet.facts.saliency import SaliencyFacts
from bids_gevnet.learn.evaluate.saliency_evidence import mean_correlation
from bids_gevnet.learn.evaluate.saliency_maps import (
    REGION_COLUMNS,
    spread_scans,
    write_saliency_maps,
)
from bids_gevnet.settings import ExecutionSettings, LearningSettings

places = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=40)


@given(places, st.integers(0, 30))
def test_scans_are_spread_over_folds_and_classes(candidates, cap):
    chosen = spread_scans(candidates, cap)
    assert len(chosen) == min(cap, len(candidates))
    assert chosen == sorted(set(chosen))
    counts = dict.fromkeys(candidates, 0)
    for index in chosen:
        counts[candidates[index]] += 1
    left = {place: candidates.count(place) - n for place, n in counts.items()}
    # Nobody gets two more than somebody who still has one to give.
    for place, n in counts.items():
        for other, m in counts.items():
            if left[other]:
                assert n <= m + 1, (place, other)


def test_agreement_of_alike_and_of_unrelated_maps():
    rng = np.random.default_rng(0)
    pattern = rng.normal(size=1000)
    assert mean_correlation([pattern, 3 * pattern + 1]) == pytest.approx(1)
    assert abs(mean_correlation([pattern, rng.normal(size=1000)])) < 0.2
    assert mean_correlation([pattern]) is None
    assert mean_correlation([pattern, np.zeros(1000)]) is None


@pytest.fixture(scope="module")
def halves(trained, tmp_path_factory):
    """An atlas of two halves: in the conftest's study, classes differ in the second alone."""
    middle = trained.shape[0] // 2
    labels = np.ones(trained.shape, np.int16)
    labels[middle:] = 2
    path = tmp_path_factory.mktemp("atlas") / "halves.nii.gz"
    nib.save(nib.Nifti1Image(labels, np.array(trained.affine)), path)
    path.with_name("halves.tsv").write_text("index\tname\n1\tsame\n2\tdiffers\n")
    return path


@pytest.fixture(scope="module")
def written(trained):
    (path,) = write_saliency_maps([trained])
    return path


def read(path):
    facts, unread = SaliencyFacts.from_json(json.loads(path.read_text()))
    assert not unread
    return facts


@pytest.fixture(scope="module")
def studies(study_class, plan_jobs, train_here, halves, tmp_path_factory):
    """Facts of a study whose classes differ in one half of the brain, and of one without."""
    found = {}
    for name, effect in (("effect", 0.8), ("none", 0.0)):
        root = tmp_path_factory.mktemp(name)
        study = study_class(root, per_class=12, classes=("AD", "PD"), effect=effect)
        settings = LearningSettings(
            folds=2,
            epochs=6,
            samples_per_class=16,
            batch_size=4,
            network="ckn2",
            learning_rate=3e-3,
            leave_site_out=False,
        )
        jobs = plan_jobs(study, settings, ExecutionSettings(nprocs=1)).jobs[:2]
        for job in jobs:
            train_here(job)
        (path,) = write_saliency_maps(jobs, atlas=halves)
        found[name] = path
    return found


def test_the_half_that_differs_comes_first_and_is_significant(studies):
    facts = read(studies["effect"])
    first, second = facts.regions
    assert first.region == "differs"
    assert first.p < 0.05 < second.p
    assert first.share > 0.7
    assert 0 < facts.significant_voxels == first.significant_voxels + second.significant_voxels
    z = nib.load(studies["effect"].with_name("saliency.nii.gz")).get_fdata()
    p = nib.load(studies["effect"].with_name("saliency_p.nii.gz")).get_fdata()
    assert (p < 0.05).sum() == facts.significant_voxels
    # Voxels of 6 mm, smoothed by 8: the difference reaches one voxel into the other half.
    assert not (p[: p.shape[0] // 2 - 1] < 0.05).any()
    assert z.max() == pytest.approx(facts.largest_z, rel=1e-5)
    assert facts.fold_agreement > facts.untrained_agreement


def test_without_a_difference_nothing_is_significant(studies):
    facts = read(studies["none"])
    assert facts.significant_voxels == 0
    assert all(region.p > 0.05 for region in facts.regions)
    assert all(angle.p > 0.05 for angle in facts.angles)


def test_gradients_alone_look_alike_in_a_network_that_was_not_trained(studies):
    """Why maps of plain gradients mislead: they show the architecture and the anatomy."""
    facts = read(studies["none"])
    assert facts.sensitivity_untrained_agreement > 0.5
    assert facts.sensitivity_fold_agreement > 0.5
    assert abs(facts.untrained_agreement) < 0.5


def test_regions_are_written_as_a_table_too(studies):
    facts = read(studies["effect"])
    head, *rows = studies["effect"].with_name("saliency_regions.tsv").read_text().splitlines()
    assert tuple(head.split("\t")) == REGION_COLUMNS
    assert [row.split("\t")[0] for row in rows] == [r.region for r in facts.regions]
    assert float(rows[0].split("\t")[4]) == pytest.approx(facts.regions[0].z, rel=1e-5)


def test_too_few_people_are_said_and_not_tested(written):
    facts = read(written)
    assert "too few" in facts.reason
    assert facts.significant_voxels is None
    assert facts.regions == ()


def test_only_people_who_were_not_trained_on_are_explained(written, trained):
    explained = {entry.scan: entry for entry in read(written).scans}
    assert set(explained) == {scan.scan for scan in trained.testing}
    for scan in trained.testing:
        assert explained[scan.scan].label == trained.labels[scan.label]


def test_finished_maps_are_left_and_those_of_other_models_made_again(written, trained, halves):
    before = written.stat().st_mtime_ns
    write_saliency_maps([trained])
    assert written.stat().st_mtime_ns == before
    content = json.loads(written.read_text())
    written.write_text(json.dumps(content | {"models": {"1": "other"}}))
    write_saliency_maps([trained])
    assert json.loads(written.read_text()) == content
    write_saliency_maps([trained], atlas=halves)
    assert json.loads(written.read_text())["atlas"] == "halves.nii.gz"
    write_saliency_maps([trained])


def test_cost_is_bounded(written, trained):
    write_saliency_maps([trained], max_scans=1)
    facts = read(written)
    assert len(facts.scans) == facts.people == 1
    assert facts.held_out_scans == len(trained.testing)
    write_saliency_maps([trained])


def test_final_models_and_other_schemes_are_left_out(trained, tmp_path):
    final = replace(trained, fold=None, testing=())
    left_out = replace(trained, model_dir=str(tmp_path / "leave-site-A"))
    assert write_saliency_maps([final, left_out]) == ()


def test_a_missing_model_costs_the_picture_only(trained, tmp_path, caplog):
    gone = replace(trained, model_dir=str(tmp_path / "task" / f"fold-{trained.fold}"))
    assert write_saliency_maps([gone]) == ()
    assert "No saliency" in caplog.text
