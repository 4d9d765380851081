"""Mean saliency of held-out scans: known means, who is explained by whom, and bounded cost."""

import json
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bids_gevnet.learn.evaluate.saliency_maps import (
    MeanMap,
    agreement,
    spread_scans,
    write_saliency_maps,
)
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.nn.attribution import saliency

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


def test_every_scan_counts_alike_whatever_its_scale():
    rng = np.random.default_rng(0)
    mask = np.ones((3, 4, 5), bool)
    maps, directions = rng.uniform(1, 2, (4, 3, 4, 5)), rng.uniform(1, 2, (4, 6))
    one, other = MeanMap((3, 4, 5), 6), MeanMap((3, 4, 5), 6)
    for scale, voxels, d in zip((1.0, 1e3, 1e-6, 7.0), maps, directions, strict=True):
        one.add(voxels, d, mask)
        other.add(scale * voxels, scale * d, mask)
    np.testing.assert_allclose(one.brain(), other.brain())
    np.testing.assert_allclose(one.sphere(), other.sphere())


def test_means_are_over_scans_that_have_the_voxel():
    total = MeanMap((2, 1, 1), 6)
    flat, directions = np.ones((2, 1, 1)), np.ones(6)
    both, first = np.array([True, True]).reshape(2, 1, 1), np.array([True, False]).reshape(2, 1, 1)
    total.add(flat, directions, both)
    total.add(flat, directions, first)
    np.testing.assert_allclose(total.brain().ravel(), [1, 1])
    total.add(flat, directions, first)
    np.testing.assert_allclose(total.brain().ravel(), [1, 0])  # in a third of the scans only
    np.testing.assert_allclose(total.sphere(), 1)


def test_agreement_of_alike_and_of_unrelated_folds():
    rng = np.random.default_rng(0)
    mask = np.ones((8, 8, 8), bool)
    pattern = rng.uniform(1, 2, mask.shape)

    def part(voxels):
        made = MeanMap(mask.shape, 6)
        made.add(voxels, np.ones(6), mask)
        return made

    assert agreement([part(pattern), part(3 * pattern)]) == pytest.approx(1)
    assert abs(agreement([part(pattern), part(rng.uniform(1, 2, mask.shape))])) < 0.2
    assert agreement([part(pattern)]) is None


@pytest.fixture(scope="module")
def written(trained):
    (path,) = write_saliency_maps([trained])
    return path


def test_map_is_the_mean_over_held_out_scans_of_the_folds_own_network(written, trained):
    network, _, gains = load_model(Path(trained.model_dir))
    reader = ScanReader(trained.testing, gains)
    expected, targets = [], []
    for index in range(len(trained.testing)):
        volume, mask = (tensor[0] for tensor in reader.single(index))
        found = saliency(network, volume, mask)
        voxels = np.where(mask, found.voxels, 0)
        expected.append(voxels / np.sqrt(np.mean(voxels[mask.numpy()] ** 2)))
        targets.append(trained.labels[found.target])
    image = nib.load(written.with_name("saliency.nii.gz"))
    np.testing.assert_allclose(image.get_fdata(), np.mean(expected, axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(image.affine, trained.affine)
    content = json.loads(written.read_text())
    assert [entry["scan"] for entry in content["scans"]] == [s.scan for s in trained.testing]
    assert [entry["explained"] for entry in content["scans"]] == targets
    assert len(content["directions"]) == 6 * trained.nside**2


def test_nobody_who_was_trained_on_is_explained(written, trained):
    explained = {entry["scan"] for entry in json.loads(written.read_text())["scans"]}
    assert not explained & {scan.scan for scan in trained.training}


def test_finished_maps_are_left_and_those_of_other_models_made_again(written, trained):
    before = written.stat().st_mtime_ns
    write_saliency_maps([trained])
    assert written.stat().st_mtime_ns == before
    content = json.loads(written.read_text())
    written.write_text(json.dumps(content | {"models": {"1": "other"}}))
    write_saliency_maps([trained])
    assert json.loads(written.read_text()) == content


def test_cost_is_bounded(written, trained):
    write_saliency_maps([trained], max_scans=1)
    content = json.loads(written.read_text())
    assert len(content["scans"]) == 1
    assert content["held_out_scans"] == len(trained.testing)
    write_saliency_maps([trained])


def test_final_models_and_other_schemes_are_left_out(trained, tmp_path):
    final = replace(trained, fold=None, testing=())
    left_out = replace(trained, model_dir=str(tmp_path / "leave-site-A"))
    assert write_saliency_maps([final, left_out]) == ()


def test_a_missing_model_costs_the_picture_only(trained, tmp_path, caplog):
    gone = replace(trained, model_dir=str(tmp_path / "task" / f"fold-{trained.fold}"))
    assert write_saliency_maps([gone]) == ()
    assert "No saliency" in caplog.text
