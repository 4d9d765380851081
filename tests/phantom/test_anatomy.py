import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nilearn import datasets
from scipy import ndimage

from bids_gevnet.phantom.anatomy import TISSUES, atrophy_source, load_template, make_head


def value_at(head, tissue, point):
    index = np.rint((np.array(point) - head.affine[:3, 3]) / np.diag(head.affine)[:3]).astype(int)
    return head.maps[TISSUES.index(tissue)][tuple(index)]


def test_known_places_hold_the_known_tissue():
    head = make_head(4.0)
    assert value_at(head, "fluid", (4, 14, 8)) > 0.8  # frontal horn of a lateral ventricle
    assert value_at(head, "white", (26, -20, 32)) > 0.8  # centrum semiovale
    assert value_at(head, "white", (0, 28, 2)) > 0.5  # genu of the corpus callosum
    assert value_at(head, "grey", (12, 12, 10)) > 0.5  # head of the caudate
    assert sum(value_at(head, t, (94, -18, 6)) for t in TISSUES) < 0.01  # air


def test_template_is_a_partition_with_an_empty_margin():
    maps, _ = load_template(2)
    assert maps.min() >= 0
    assert maps.sum(axis=0).max() <= 1 + 1e-6
    for axis in (1, 2, 3):
        assert not np.take(maps, [0, -1], axis=axis).any()


def test_skull_and_scalp_surround_the_brain_without_touching_it():
    maps, _ = load_template(2)
    brain, scalp = maps[:3].sum(axis=0) > 0, maps[4] > 0
    assert not (brain & scalp).any()
    for axis in range(3):
        neighbours = np.roll(brain, 1, axis) | np.roll(brain, -1, axis)
        assert not (neighbours & scalp).any()  # the dark skull lies between


@pytest.mark.parametrize("voxel_mm", [6.0, 9.0])
def test_atrophy_grows_ventricles_and_thins_grey_matter(voxel_mm):
    heads = [make_head(voxel_mm, a) for a in (0.0, 0.1, 0.2)]
    near = np.linalg.norm(heads[0].points() - [0, -8, 14], axis=-1) < 35
    ventricles = [h.maps[2][near].sum() for h in heads]
    grey = [h.maps[1].sum() for h in heads]
    whole = [h.maps[:3].sum() for h in heads]
    assert ventricles[1] > 1.1 * ventricles[0]
    assert ventricles[2] > 1.1 * ventricles[1]
    assert grey[0] > grey[1] > grey[2]
    # The skull does not shrink with the brain.
    np.testing.assert_allclose(whole, whole[0], rtol=0.01)


@given(
    st.floats(-0.15, 0.6),
    st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda d: np.linalg.norm(d) > 0.1),
)
def test_atrophy_never_folds_tissue(atrophy, direction):
    unit = np.array(direction) / np.linalg.norm(direction)
    radius = np.linspace(0, 120, 500)
    centre = np.array([0.0, -8.0, 14.0])
    source = atrophy_source(centre + radius[:, None] * unit, atrophy)
    along = (source - centre) @ unit
    assert np.all(np.diff(along) > 0)


def test_atrophy_vanishes_far_away_and_at_strength_zero():
    points = np.random.default_rng(0).uniform(-60, 60, (50, 3))
    np.testing.assert_allclose(atrophy_source(points, 0.0), points, atol=1e-12)
    far = np.array([[200.0, 0, 0], [0, 250, 0]])
    np.testing.assert_allclose(atrophy_source(far, 0.3), far, atol=1e-6)


def test_a_fine_grid_keeps_the_volumes_of_a_coarse_one():
    coarse, fine = (make_head(v) for v in (8.0, 4.0))
    volumes = [
        h.maps[:3].sum(axis=(1, 2, 3)) * np.prod(np.diag(h.affine)[:3]) for h in (coarse, fine)
    ]
    np.testing.assert_allclose(*volumes, rtol=0.02)


def test_block_means_keep_white_matter_where_nilearn_has_it():
    image = datasets.load_mni152_wm_template(resolution=1)
    summaries = []
    for white, affine in (
        (image.get_fdata(), image.affine),
        (load_template(2)[0][0], load_template(2)[1]),
    ):
        centre = ndimage.center_of_mass(white.astype(np.float64))
        summaries.append(affine[:3, :3] @ centre + affine[:3, 3])
    np.testing.assert_allclose(*summaries, atol=0.1)
