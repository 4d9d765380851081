import numpy as np
import pytest

from bids_gevnet.dwi.mask import brain_mask, dice, grow_mask, refine_mask, shading_of_head
from bids_gevnet.dwi.shading import estimate_shading


@pytest.fixture(scope="module")
def head(scan, conformed):
    """Mean b0 and mean weighted volume of the phantom."""
    weighted = scan.bvals > 50
    return tuple(conformed.data[..., some].mean(axis=-1) for some in (~weighted, weighted))


def world_mm(shape, affine):
    return np.moveaxis(np.indices(shape), 0, -1) @ affine[:3, :3].T + affine[:3, 3]


@pytest.fixture(scope="module")
def dark_middle(head, conformed, true_mask):
    """Shading of a coil that hardly sees the base of the brain, (X, Y, Z)."""
    place = world_mm(head[0].shape, conformed.affine)
    brain = place[true_mask]
    base = brain.mean(axis=0) - [0, 0, 0.3 * np.ptp(brain[:, 2])]
    return 1 - 0.75 * np.exp(-np.sum((place - base) ** 2, axis=-1) / (2 * 30.0**2))


def test_a_good_part_of_a_ramp_is_found():
    shape, affine = (40, 40, 40), np.diag([4.0, 4.0, 4.0, 1.0])
    place = world_mm(shape, affine) - 78
    inside = np.linalg.norm(place, axis=-1) < 65
    truth = np.exp(0.6 * place[..., 0] / 65)
    noise = np.random.default_rng(0).normal(scale=0.02, size=shape)
    # Two tissues, so that N4 has a histogram to sharpen.
    tissue = np.where(np.sin(place[..., 1] / 16) > 0, 1.0, 0.6)
    image = (truth * tissue + noise).clip(0) * inside
    found = estimate_shading(image, affine, inside)
    np.testing.assert_array_equal(estimate_shading(image, affine, inside), found)
    left = np.log(truth[inside] / found[inside])
    assert np.std(left) < 0.75 * np.std(np.log(truth[inside]))


def test_nothing_to_estimate_from_leaves_the_image_alone():
    image = np.ones((10, 10, 10))
    found = estimate_shading(image, np.diag([2.0, 2, 2, 1]), np.zeros(image.shape, bool))
    np.testing.assert_array_equal(found, 1)


def test_a_shaded_base_of_the_brain_comes_back(head, conformed, true_mask, dark_middle):
    b0, weighted = (volume * dark_middle for volume in head)
    dark = true_mask & (dark_middle < 0.35)
    plain = brain_mask(b0, conformed.affine, weighted)
    assert plain[dark].mean() < 0.6  # or the phantom would show nothing
    refined = refine_mask(b0, conformed.affine, true_mask, weighted)
    assert refined[dark].mean() > 0.9
    assert dice(refined, true_mask) > max(0.95, dice(plain, true_mask))


def test_a_prior_some_mm_off_does_not_pull_the_mask_along(head, conformed, true_mask):
    shift = np.eye(4)
    shift[:3, 3] = [3, -4, 4]
    index = np.rint(shift[:3, 3] / np.diag(conformed.affine)[:3]).astype(int)
    prior = np.roll(true_mask, index, axis=(0, 1, 2))
    refined = refine_mask(head[0], conformed.affine, prior, head[1])
    assert dice(refined, true_mask) > 0.95
    assert dice(refined, true_mask) > dice(prior, true_mask)


def test_the_mask_does_not_run_down_the_cord(head, conformed, true_mask):
    """A sagittal scan sees the neck: cord and cisterns as bright as brain, as wide as 16 mm."""
    low = 25
    b0, weighted, brain = (
        np.pad(volume, ((0, 0), (0, 0), (low, 0))) for volume in (*head, true_mask)
    )
    affine = conformed.affine.copy()
    affine[:3, 3] -= low * affine[:3, 2]
    place = world_mm(brain.shape, affine)
    bottom = place[brain][np.argsort(place[brain][:, 2])[:50]].mean(axis=0)
    away = np.linalg.norm((place - bottom)[..., :2], axis=-1)
    cord = (away < 9) & (place[..., 2] < bottom[2] + 10) & ~brain
    for volume in (b0, weighted):
        volume[cord] = np.median(volume[brain])
    plain = brain_mask(b0, affine, weighted)
    neck = cord & ~grow_mask(brain, affine, 12.0)
    assert plain[neck].mean() > 0.5  # or the phantom would show nothing
    refined = refine_mask(b0, affine, brain, weighted)
    assert not refined[neck].any()
    assert dice(refined, brain) > 0.95


def test_shading_of_a_head_needs_no_mask(head, conformed, true_mask, dark_middle):
    shaded = tuple(volume * dark_middle for volume in head)
    found = shading_of_head(shaded[0], conformed.affine, shaded[1])
    assert np.corrcoef(found[true_mask], dark_middle[true_mask])[0, 1] > 0.5
