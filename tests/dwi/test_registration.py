from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.registration import (
    brain_box,
    flatten_shading,
    register_rigid,
    register_to_template,
)
from bids_gevnet.dwi.registration_quality import (
    LEAST_EDGES,
    MOST_RIVAL,
    POOR_DICE,
    Overlay,
    Registration,
    Volume,
    judge,
    normalised_information,
)
from bids_gevnet.errors import ParticipantError


@pytest.fixture(scope="module")
def template():
    from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

    image, mask = load_mni152_template(resolution=2), load_mni152_brain_mask(resolution=2)
    return Volume(
        np.asarray(image.dataobj, dtype=np.float32), image.affine, np.asarray(mask.dataobj) > 0
    )


@pytest.fixture(scope="module")
def b0(conformed, true_mask):
    return Volume(conformed.data[..., 0], conformed.affine, true_mask)


@pytest.fixture(scope="module")
def true_to_mni(scan, conformed):
    return np.linalg.inv(conformed.old_to_new @ scan.truth.pose)


def error_mm(found, truth, points):
    return np.linalg.norm((points @ (found - truth).T)[:, :3], axis=1).mean()


@pytest.fixture(scope="module")
def found(b0, template):
    return register_to_template(b0, template)


class TestTemplate:
    def test_pose_and_size_are_found(self, found, true_to_mni, brain_points):
        start = error_mm(np.eye(4), true_to_mni, brain_points)
        error = error_mm(found.moving_to_fixed, true_to_mni, brain_points)
        assert start > 5
        assert error < 1.5

    def test_quality_is_good_and_says_so(self, found):
        assert not found.is_poor
        assert found.dice > 0.93
        assert "good" in str(found)

    def test_a_wrong_transform_is_poor(self, found, b0, template):
        turned = np.diag([1.0, -1.0, -1.0, 1.0]) @ found.moving_to_fixed
        wrong = judge(turned, b0, template)
        assert wrong.is_poor
        assert wrong.information < found.information
        assert "POOR" in str(wrong)

    @pytest.mark.slow
    def test_a_cut_brain_is_not_stretched(self, b0, template, true_to_mni, brain_points):
        cut = b0.data.shape[2] // 4
        affine = b0.affine.copy()
        affine[:3, 3] += affine[:3, 2] * cut
        part = Volume(b0.data[:, :, cut:], affine, b0.mask[:, :, cut:])
        found = register_to_template(part, template).moving_to_fixed
        seen = brain_points[brain_points[:, 2] > affine[2, 3]]
        assert error_mm(found, true_to_mni, seen) < 3.0

    def test_an_empty_mask_is_an_error(self, b0, template):
        with pytest.raises(ParticipantError, match="empty"):
            register_to_template(Volume(b0.data, b0.affine, b0.mask & ~b0.mask), template)


@pytest.fixture(scope="module")
def t1w(scan):
    found = conform(scan.t1w, scan.t1w_affine)
    volume = Volume(found.data, found.affine, np.ones(found.data.shape, bool))
    return volume, found.old_to_new


class TestRigid:
    def test_a_right_header_is_kept_or_bettered(self, b0, conformed, t1w, brain_points):
        header = t1w[1] @ np.linalg.inv(conformed.old_to_new)
        found = register_rigid(b0, t1w[0], [header])
        assert error_mm(found.moving_to_fixed, header, brain_points) < 1.5

    def test_a_wrong_header_is_overruled(self, b0, conformed, t1w, brain_points):
        truth = t1w[1] @ np.linalg.inv(conformed.old_to_new)
        wrong = truth.copy()
        wrong[:3, 3] += [8, -10, 12]
        found = register_rigid(b0, t1w[0], [wrong])
        assert error_mm(found.moving_to_fixed, truth, brain_points) < 2.5


class TestInformation:
    def test_from_one_to_two(self):
        rng = np.random.default_rng(0)
        x, noise = rng.uniform(size=(2, 100_000))
        assert normalised_information(x, noise) < 1.002
        assert normalised_information(x, 1 - x) == pytest.approx(2, abs=0.02)
        assert 1.05 < normalised_information(x, x + noise) < 1.9

    def test_contrast_may_be_turned(self):
        x = np.random.default_rng(1).uniform(size=10_000)
        first = normalised_information(x, x**2)
        assert normalised_information(x, -(x**2)) == pytest.approx(first, rel=1e-3)

    @pytest.mark.parametrize("values", [np.ones(10), np.zeros(0), np.ones(1)])
    def test_nothing_to_learn(self, values):
        assert normalised_information(values, values) == 1


def test_shading_is_flattened():
    rng = np.random.default_rng(2)
    shape = (40, 40, 40)
    mask = np.zeros(shape, bool)
    mask[5:35, 5:35, 5:35] = True
    tissue = 1 + 0.3 * (gaussian_filter(rng.normal(size=shape), 2) > 0)
    shading = np.linspace(1, 4, 40)[:, None, None]
    affine = np.diag([4.0, 4, 4, 1])
    flat = flatten_shading(Volume(tissue * shading, affine, mask)).data
    correlation = np.corrcoef(flat[mask], tissue[mask])[0, 1]
    assert correlation > 0.75
    assert correlation > np.corrcoef((tissue * shading)[mask], tissue[mask])[0, 1] + 0.2
    assert not flat[~mask].any()


class TestBox:
    @pytest.mark.parametrize("resolution", [1.5, 2.0, 4.0])
    def test_holds_the_brain_on_whole_multiples(self, template, resolution):
        shape, affine = brain_box(template.mask, template.affine, resolution, 4.0)
        kept = resample_volume(template.mask, template.affine, np.eye(4), shape, affine, order=0)
        volume = kept.sum() * resolution**3
        np.testing.assert_allclose(volume, template.mask.sum() * 8, rtol=0.02)
        np.testing.assert_allclose(affine[:3, 3] / resolution % 1, 0, atol=1e-9)

    def test_size_is_that_of_the_paper(self, template):
        shape, _ = brain_box(template.mask, template.affine, 2.0, 4.0)
        assert np.prod(shape) == pytest.approx(563_000, rel=0.1)


@pytest.fixture
def right():
    """A registration without a fault."""
    return Registration(np.eye(4), POOR_DICE + 0.01, 1.01, MOST_RIVAL - 0.1, LEAST_EDGES + 0.1)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dice": POOR_DICE - 0.01}, "overlap"),
        ({"rival": MOST_RIVAL + 0.01}, "nearby"),
        ({"edges": LEAST_EDGES - 0.01}, "borders"),
        ({"moving_to_fixed": np.diag([1.0, 1.0, 2.0, 1.0])}, "stretched"),
    ],
)
def test_each_fault_alone_is_enough_and_is_named(right, change, word):
    assert not right.is_poor
    poor = replace(right, **change)
    assert poor.is_poor
    assert word in str(poor)
    assert right.worth > poor.worth


@pytest.fixture(scope="module")
def pair(b0, template):
    """A phantom with contrast like a real b0's, and the template."""
    brain, middle = b0.mask, np.median(b0.data[b0.mask])
    weak = middle * (np.maximum(b0.data, 1) / middle) ** 0.35 * brain
    noise = np.random.default_rng(0).normal(scale=0.06 * middle, size=weak.shape)
    moving = Volume(np.abs(weak + noise), b0.affine, brain)
    return flatten_shading(moving), flatten_shading(template)


class TestVerdict:
    def test_the_truth_is_good(self, pair, true_to_mni):
        assert not judge(true_to_mni, *pair).is_poor

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_a_shift_is_poor(self, pair, true_to_mni, axis):
        moved = true_to_mni.copy()
        moved[axis, 3] += 12.0
        assert judge(moved, *pair).is_poor

    @pytest.mark.parametrize("flip", [(1, -1, -1), (-1, -1, 1), (-1, 1, -1)])
    def test_a_head_turned_over_is_poor(self, pair, true_to_mni, flip):
        turned = np.diag([*map(float, flip), 1.0]) @ true_to_mni
        assert judge(turned, *pair).is_poor

    def test_the_best_place_nearby_leads_back(self, pair, true_to_mni):
        moved = true_to_mni.copy()
        moved[2, 3] += 8.0
        _, place = Overlay(*pair).nearby(moved)[0]
        np.testing.assert_allclose(place, true_to_mni, atol=1e-6)


@pytest.mark.slow
def test_a_head_far_off_is_found_by_a_second_try(b0, template, true_to_mni, brain_points):
    """A wrong header that turns the head by 90 degrees is beyond the first starts."""
    header = np.eye(4)
    header[:3, :3] = [[1, 0, 0], [0, 0, -1], [0, 1, 0]]
    moved = replace(b0, affine=header @ b0.affine)
    found = register_to_template(moved, template)
    assert found.retried
    assert not found.is_poor
    assert "after more starts" in str(found)
    assert error_mm(found.moving_to_fixed @ header, true_to_mni, brain_points) < 3
