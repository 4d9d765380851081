"""Voxelwise models: the dual form is the primal one, and nothing of a test person gets in."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bids_gevnet.dwi.tensor import fit_tensor
from bids_gevnet.learn.evaluate.voxel_maps import read_voxel_maps, tensor_maps
from bids_gevnet.learn.evaluate.voxelwise import average_people, dual_scores, predict_from_maps
from bids_gevnet.learn.train.jobs import JobScan
from bids_gevnet.sphere.resampling import distinct_directions

VOXELS = 300


def person(number: int, label: int, site: str = "A", session: str | None = None) -> JobScan:
    return JobScan(
        folder="", participant=f"p{number}", session=session, scan=f"s{number}{session}",
        label=label, site=site, motion=None, covariates={"age": 60.0 + number % 7},
    )  # fmt: skip


def cohort(
    effect: float, *, people: int = 60, site_effect: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, list[JobScan]]:
    rng = np.random.default_rng(seed)
    scans = [person(i, i % 2, "AB"[i // 2 % 2]) for i in range(people)]
    maps = rng.normal(size=(people, VOXELS))
    maps[:, :30] += effect * np.array([scan.label for scan in scans])[:, None]
    maps += site_effect * np.array([scan.site == "B" for scan in scans])[:, None]
    return maps.astype(np.float32), scans


def right(maps: np.ndarray, scans: list[JobScan], **options: Any) -> float:
    chances = predict_from_maps(maps, scans[:40], scans[40:], labels=("AD", "PD"), **options)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    return float((chances.argmax(axis=1) == [scan.label for scan in scans[40:]]).mean())


@pytest.mark.parametrize("nside", [1, 2, 4])
def test_tensor_of_samples_is_dipys(nside: int) -> None:
    rng = np.random.default_rng(0)
    directions = distinct_directions(nside)
    factors = rng.normal(0, 0.6, (20, 3, 3))
    tensors = factors @ factors.transpose(0, 2, 1) + 0.2 * np.eye(3)  # b D
    samples = np.exp(-np.einsum("ni,vij,nj->vn", directions, tensors, directions))
    both = np.hstack([samples, samples[::-1]])  # as of two shells
    fa, md = tensor_maps(np.maximum(both, 2e-3), nside=nside)
    np.testing.assert_array_equal(fa[:, 0], fa[::-1, 1])
    fa, md = fa[:, 0], md[:, 0]
    bvals = np.r_[0.0, np.full(len(directions), 1000.0)]
    bvecs = np.vstack([np.zeros(3), directions])
    signal = np.column_stack([np.ones(20), np.maximum(samples, 2e-3)])
    oracle = fit_tensor(signal, bvals, bvecs, weighted=False)
    strong = samples.min(axis=1) > 2e-3  # where the floor plays no part
    assert strong.sum() > 5
    np.testing.assert_allclose(fa[strong], oracle.fa[strong], atol=1e-3)
    np.testing.assert_allclose(md[strong], 1000 * oracle.md[strong], rtol=1e-3)


def test_dual_form_is_the_penalised_regression_on_all_voxels() -> None:
    maps, scans = cohort(0.8)
    truth = np.array([scan.label for scan in scans[:40]])
    train, test = dual_scores(maps[:40], maps[40:])
    dual = LogisticRegression(C=3.0, tol=1e-8, max_iter=5000).fit(train, truth)
    mean, spread = maps[:40].mean(axis=0), maps[:40].std(axis=0)
    primal_train, primal_test = ((part - mean) / spread for part in (maps[:40], maps[40:]))
    length = np.sqrt(np.square(primal_train).sum() / 40)
    primal = LogisticRegression(C=3.0, tol=1e-8, max_iter=5000).fit(primal_train / length, truth)
    np.testing.assert_allclose(
        dual.predict_proba(test), primal.predict_proba(primal_test / length), atol=1e-4
    )


def test_more_people_than_voxels_give_the_same_coordinates() -> None:
    """Inner products, which the regression depends on, do not depend on the form."""
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(30, 12)).astype(np.float32)
    maps[:, 5] = 2.0  # a voxel that is the same in everybody
    few, tested = maps[:24], maps[24:]
    primal = dual_scores(few, tested)
    # Voxels twice over, each half as long: more voxels than people, the same inner products.
    dual = dual_scores(np.tile(few, 3), np.tile(tested, 3))
    assert primal[0].shape[1] == dual[0].shape[1] == 11
    for one, other in zip(primal, dual, strict=True):
        np.testing.assert_allclose(one @ primal[0].T, other @ dual[0].T, atol=1e-5)
    assert np.square(primal[0]).sum() / 24 == pytest.approx(1.0)


@pytest.mark.parametrize("voxels", [12, 90])
def test_of_many_axes_the_widest_are_kept(voxels: int) -> None:
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(40, voxels)).astype(np.float32)
    maps += 3 * rng.normal(size=(40, 1)).astype(np.float32)
    train, test = dual_scores(maps[:30], maps[30:])
    part, part_of_test = dual_scores(maps[:30], maps[30:], most_axes=3)
    assert part.shape[1] == part_of_test.shape[1] == 3
    widest = np.argsort(np.square(train).sum(axis=0))[-3:]
    np.testing.assert_allclose(np.abs(part), np.abs(train[:, np.sort(widest)]), atol=1e-6)
    np.testing.assert_allclose(np.abs(part_of_test), np.abs(test[:, np.sort(widest)]), atol=1e-6)


def test_an_effect_is_found_and_none_is_not_invented() -> None:
    assert right(*cohort(1.5)) >= 0.95
    nothing = [right(*cohort(0.0, seed=seed)) for seed in range(5)]
    assert abs(np.mean(nothing) - 0.5) < 0.17


def test_combat_finds_the_effect_below_a_scanner_difference() -> None:
    """Patients lean on site B in training and on site A among the tested."""
    rng = np.random.default_rng(0)
    scans = [person(i, i % 2, "AB"[i % 2 if i % 10 < 8 else 1 - i % 2]) for i in range(40)]
    scans += [person(i, i % 2, "BA"[i % 2]) for i in range(40, 60)]
    maps = rng.normal(size=(60, VOXELS)).astype(np.float32)
    maps[:, :60] += np.array([scan.label for scan in scans])[:, None]
    maps += 3 * np.array([scan.site == "B" for scan in scans])[:, None]
    assert right(maps, scans) < 0.5
    assert right(maps, scans, combat=True) > 0.8


@pytest.mark.parametrize("combat", [False, True])
def test_a_test_person_changes_nothing_for_the_others(combat: bool) -> None:
    """Neither by map, nor by label, nor by a site nobody else is from."""
    maps, scans = cohort(0.5, site_effect=1.0)
    options: dict[str, Any] = {"labels": ("AD", "PD"), "combat": combat}
    before = predict_from_maps(maps, scans[:40], scans[40:], **options)
    odd = maps.copy()
    odd[-1] = 50.0
    elsewhere = [*scans[:-1], person(99, 1 - scans[-1].label, "elsewhere")]
    after = predict_from_maps(odd, elsewhere[:40], elsewhere[40:], **options)
    np.testing.assert_array_equal(before[:-1], after[:-1])
    assert np.isfinite(after).all()
    other_labels = [person(40 + i, 1 - s.label, s.site) for i, s in enumerate(scans[40:])]
    np.testing.assert_array_equal(
        before, predict_from_maps(maps, scans[:40], other_labels, **options)
    )


def test_voxels_outside_a_brain_are_no_evidence() -> None:
    """Who misses a tenth of the brain is not classified by that."""
    maps, scans = cohort(0.0)
    for number, scan in enumerate(scans):
        if scan.label == 1:
            maps[number, :30] = np.nan
    assert right(maps, scans) < 0.85


def test_scans_of_a_person_count_once() -> None:
    maps, scans = cohort(0.4)
    again = [person(0, scans[0].label, scans[0].site, session=str(i)) for i in range(30)]
    many = np.vstack([np.repeat(maps[:1], 30, axis=0), maps[:40]])
    people, rows = average_people(many, [*again, *scans[:40]])
    assert len(people) == 40
    np.testing.assert_allclose(rows[0], maps[0], rtol=1e-6)
    once = predict_from_maps(maps, scans[:40], scans[40:], labels=("AD", "PD"))
    often = predict_from_maps(
        np.vstack([many, maps[40:]]), [*again, *scans[:40]], scans[40:], labels=("AD", "PD")
    )
    np.testing.assert_allclose(often, once, atol=1e-4)


def test_a_class_missing_in_training_gets_no_chance() -> None:
    maps, scans = cohort(0.5)
    alone = [person(i, 0) for i in range(40)]
    chances = predict_from_maps(maps, alone, scans[40:], labels=("AD", "PD"))
    assert (chances == [1, 0]).all()


def test_maps_of_the_store_are_harmonised_like_the_samples(trained: Any) -> None:
    from pathlib import Path

    from bids_gevnet.learn.cohort.store import StoredScan
    from bids_gevnet.learn.evaluate.baselines import read_gains
    from bids_gevnet.learn.train.batches import ScanReader

    gains = read_gains(Path(trained.model_dir))
    maps = read_voxel_maps(trained, gains)
    assert set(maps.raw) == set(maps.harmonised) == {"fa", "md", "rish"}
    assert len(maps.raw["fa"]) == len(trained.training) + len(trained.testing)
    samples, mask = ScanReader(trained.training, gains).read(0)
    fa, md = tensor_maps(samples, nside=trained.nside)
    shared = StoredScan(Path(trained.training[0].folder)).mask
    assert (shared == mask).all()
    np.testing.assert_allclose(maps.harmonised["fa"][0], fa.ravel(), atol=1e-6)
    np.testing.assert_allclose(maps.harmonised["md"][0], md.ravel(), atol=1e-6)
