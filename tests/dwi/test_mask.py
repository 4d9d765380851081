import numpy as np
import pytest

from bids_gevnet.dwi.mask import brain_mask, dice, grow_mask, head_mask
from bids_gevnet.dwi.shells import find_shells, mean_volume
from bids_gevnet.errors import ParticipantError


@pytest.fixture(scope="module")
def means(scan, conformed):
    shells = find_shells(scan.bvals)
    return tuple(
        mean_volume(conformed.data, group) for group in (shells.b0, shells.shells[0].volumes)
    )


def test_phantom_with_dwi(means, conformed, true_mask):
    assert dice(brain_mask(means[0], conformed.affine, means[1]), true_mask) > 0.95


def test_phantom_with_b0_alone(means, conformed, true_mask):
    assert dice(brain_mask(means[0], conformed.affine), true_mask) > 0.95


def test_scale_of_intensities_does_not_matter(means, conformed):
    first = brain_mask(means[0], conformed.affine, means[1])
    second = brain_mask(means[0] * 1e-4, conformed.affine, means[1] * 1e-4)
    assert dice(first, second) > 0.999


def test_not_finite_voxels(means, conformed, true_mask):
    b0 = means[0].copy()
    b0[::9, ::7, ::5] = np.nan
    b0[0, 0, 0] = np.inf
    assert dice(brain_mask(b0, conformed.affine, means[1]), true_mask) > 0.9


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_an_empty_scan_is_an_error(value):
    with pytest.raises(ParticipantError, match="same value everywhere"):
        brain_mask(np.full((20, 20, 20), value), np.diag([3.0, 3, 3, 1]))


def test_a_small_thing_is_not_a_brain():
    volume = np.zeros((30, 30, 30))
    volume[10:20, 10:20, 10:20] = 100
    with pytest.raises(ParticipantError, match=r"a mask of 1[0-9] ml"):
        brain_mask(volume, np.diag([2.0, 2, 2, 1]))


def test_bars_of_a_test_object_are_no_brain():
    volume = np.zeros((120, 120, 9))
    for row in (30, 60, 90):
        volume[5:115, row - 2 : row + 2] = 100
    with pytest.raises(ParticipantError, match=r"thicker than \d+ mm.* test object"):
        brain_mask(volume, np.diag([2.0, 2, 3, 1]))


def test_a_slab_of_a_brain_is_a_brain(means, conformed, true_mask):
    middle = true_mask.shape[2] // 2
    slab = np.s_[:, :, middle - 3 : middle + 3]
    mask = brain_mask(means[0][slab], conformed.affine, means[1][slab])
    assert dice(mask, true_mask[slab]) > 0.95


def ball(size_mm, radius_mm):
    shape = np.round(240 / np.asarray(size_mm)).astype(int)
    offset = (np.moveaxis(np.indices(shape), 0, -1) - (shape - 1) / 2) * size_mm
    return np.linalg.norm(offset, axis=-1) <= radius_mm, np.diag([*size_mm, 1.0])


@pytest.mark.parametrize("size_mm", [(2.0, 2.0, 2.0), (1.75, 1.75, 4.0), (3.0, 3.0, 3.0)])
def test_radii_are_in_mm(size_mm):
    mask, affine = ball(size_mm, 50)
    grown = grow_mask(mask, affine, 10.0)
    np.testing.assert_allclose(grown.sum() / mask.sum(), (60 / 50) ** 3, rtol=0.05)


@pytest.mark.parametrize("size_mm", [(2.0, 2.0, 2.0), (1.75, 1.75, 4.0), (3.0, 3.0, 3.0)])
def test_bridge_to_the_scalp_is_cut(size_mm):
    brain, affine = ball(size_mm, 60)
    shell, inner = ball(size_mm, 90)[0], ball(size_mm, 84)[0]
    head = brain | (shell & ~inner)
    middle = np.array(head.shape) // 2
    width = np.maximum(1, np.round(2 / np.asarray(size_mm)).astype(int))
    head[middle[0] :, middle[1] : middle[1] + width[1], middle[2] : middle[2] + width[2]] |= shell[
        middle[0] :, middle[1] : middle[1] + width[1], middle[2] : middle[2] + width[2]
    ]
    found = brain_mask(head * 100.0, affine)
    assert dice(found, brain) > 0.95


def test_head_mask_holds_the_brain(means, conformed, true_mask):
    assert np.mean(head_mask(means[0], conformed.affine)[true_mask]) > 0.99


def test_dice():
    first, second = np.array([True, True, False]), np.array([True, False, False])
    assert dice(first, second) == pytest.approx(2 / 3)
    assert dice(first, ~first) == 0
    assert dice(first & ~first, first & ~first) == 1
