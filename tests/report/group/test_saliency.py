"""What the report says of saliency: a map only where something is distinguishable from chance."""

import json
from dataclasses import replace

import numpy as np
import pytest
from report.group_study import AFFINE, GroupStudy, head

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.facts.saliency import RegionSaliency, SaliencyFacts
from bids_gevnet.report.group.saliency import compare_maps, draw_angles, read_saliency
from bids_gevnet.report.scan_files import Volume


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    study = GroupStudy(tmp_path_factory.mktemp("saliency") / "out", people=8, folds=2)
    study.write()
    return study.folder_of(study.networks[0])


@pytest.fixture
def see(folder, tmp_path):
    """Read the study's saliency with some facts changed."""
    mask, b0 = head()

    def read(p=0.001, *, on_template=True, **changes):
        facts, _ = SaliencyFacts.from_json(json.loads((folder / "saliency.json").read_text()))
        write_json(tmp_path / "saliency.json", replace(facts, **changes).to_json())
        for name in ("saliency.nii.gz", "saliency_p.nii.gz"):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
        template = Volume(b0, AFFINE), Volume(mask.astype(float), AFFINE)
        return read_saliency(
            tmp_path / "saliency.json",
            template if on_template else None,
            title="AD v. PD",
            p=p,
            name="s",
        )

    return read


def test_what_is_significant_is_shown_with_its_regions_and_angles(see):
    view = see()
    assert view.slices
    assert view.glass.startswith("data:image/png")
    assert view.low == pytest.approx(4.5)
    assert view.angles is not None
    assert [row.region for row in view.regions] == [f"Region {i}" for i in range(8)]
    assert len(view.more_regions) == 2
    assert "tell the true class from the others" in view.verdict
    assert "-28, -14, 30" in view.verdict


def test_without_the_template_only_its_slices_are_missing(see):
    view, whole = see(on_template=False), see()
    assert not view.slices
    assert (view.glass, view.verdict, view.regions) == (whole.glass, whole.verdict, whole.regions)


@pytest.mark.parametrize("p", [0.05, 0.6, None])
def test_predictions_at_chance_are_not_explained(see, p):
    view = see(p)
    assert not view.slices
    assert not view.regions
    assert view.angles is None
    assert "not shown" in view.verdict


def test_without_a_significant_voxel_there_is_a_sentence_and_no_map(see):
    view = see(significant_voxels=0, regions=(), angles=())
    assert "no map is shown" in view.verdict
    assert "Nor can those of any region" in view.verdict
    assert view.angles is None


def test_regions_may_tell_what_no_voxel_does(see):
    rows = (RegionSaliency(region="Left here", p=0.01, z=4.0, voxels=3, significant_voxels=0),)
    view = see(significant_voxels=0, regions=rows)
    assert "they can in Left here" in view.verdict
    assert view.regions == list(rows)


def test_what_could_not_be_tested_says_why(see):
    view = see(significant_voxels=None, reason="too few people")
    assert "too few people" in view.verdict
    assert not view.slices


def test_nothing_is_read_from_nothing(tmp_path):
    volume = Volume(np.ones((2, 2, 2)), np.eye(4))
    missing = tmp_path / "saliency.json"
    assert read_saliency(missing, (volume, volume), title="", p=0.01, name="s") is None
    missing.write_text("[3]")
    assert read_saliency(missing, (volume, volume), title="", p=0.01, name="s") is None


def test_agreement_is_over_folds_training_and_tasks(see, folder, tmp_path):
    view = see()
    other = tmp_path / "other"
    rng = np.random.default_rng(0)
    mask, _ = head()
    for name in ("saliency.nii.gz", "sensitivity.nii.gz"):
        write_image(other / name, np.where(mask, rng.normal(size=mask.shape), 0), AFFINE)
    rows = compare_maps([(view, folder), (replace(view, title="Other"), other)])
    values = {row.what: (row.contributions, row.gradients) for row in rows}
    assert values["AD v. PD: two folds"] == (0.71, 0.95)
    assert values["AD v. PD: trained and untrained network"] == (0.05, 0.94)
    assert all(abs(value) < 0.3 for value in values["AD v. PD and Other"])
    again = compare_maps([(view, folder), (replace(view, title="Same"), folder)])
    assert again[-1].contributions == pytest.approx(1)


def test_no_chart_without_angles():
    assert draw_angles((), name="x") is None
