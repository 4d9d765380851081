import numpy as np
import pytest

from bids_gevnet.dwi.coherence import CANDIDATES, MARGIN, Coherence, check_coherence
from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl
from bids_gevnet.phantom import simulate

SHAPE = (22, 24, 16)
BVALS = np.array([0.0, *[1000.0] * 20])
MASK = np.ones(SHAPE, bool)


def bundle_affine(sign=1.0):
    affine = np.diag([sign * 2.0, 2.0, 2.5, 1.0])
    affine[:3, 3] = -(affine[:3, :3] @ (np.array(SHAPE) - 1) / 2)
    return affine


def oblique_bundles(affine, seed=0, noise=0.02):
    """Scan of thin oblique bundles: a wrong table leads out of every one of them."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(21, 3))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    gradients[0] = 0
    index = np.moveaxis(np.indices(SHAPE), 0, -1)
    world = index @ affine[:3, :3].T + affine[:3, 3]
    adc = np.full((*SHAPE, 21), 8e-4)
    for fibre, through in (
        ((0.2, 0.5, 0.84), (-12, 0, 0)),
        ((0.75, -0.3, 0.59), (8, 12, 0)),
        ((0.45, 0.87, -0.2), (8, -8, -6)),
    ):
        axis = np.array(fibre) / np.linalg.norm(fibre)
        offset = world - through
        across = np.linalg.norm(np.cross(offset, axis), axis=-1)
        adc[across < 4] = 3e-4 + 1.4e-3 * (gradients @ axis) ** 2
    signal = np.exp(-BVALS * adc) + rng.normal(scale=noise, size=(*SHAPE, 21))
    return np.abs(signal).astype(np.float32), bvecs_ras_to_fsl(gradients, affine)


def test_24_tables_that_differ():
    tables = {
        tuple(np.sign(c.matrix[np.nonzero(c.matrix)][0]) * c.matrix.ravel()) for c in CANDIDATES
    }
    assert len(tables) == 24
    assert str(CANDIDATES[0]) == "as it stands"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_right_table(sign):
    affine = bundle_affine(sign)
    data, bvecs = oblique_bundles(affine)
    found = check_coherence(data, MASK, affine, BVALS, bvecs)
    assert found.outcome == "fits"
    assert found.best == CANDIDATES[0]
    assert "fits the white matter" in str(found)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("wrong", CANDIDATES[1:], ids=str)
def test_wrong_table_is_named_with_its_repair(wrong, sign):
    affine = bundle_affine(sign)
    data, bvecs = oblique_bundles(affine)
    found = check_coherence(data, MASK, affine, BVALS, bvecs @ wrong.matrix.T)
    assert found.outcome == "wrong"
    # The repair undoes the mistake, up to the sign that gradients do not have.
    np.testing.assert_allclose(np.abs(found.best.matrix @ wrong.matrix), np.eye(3))
    undone = found.best.matrix @ wrong.matrix
    assert np.allclose(undone, np.eye(3)) or np.allclose(undone, -np.eye(3))
    assert str(found.best) in str(found)


def test_without_white_matter_nobody_is_alarmed():
    data = np.ones((*SHAPE, 21), np.float32) * np.exp(-BVALS * 8e-4).astype(np.float32)
    _, bvecs = oblique_bundles(bundle_affine())
    found = check_coherence(data, MASK, bundle_affine(), BVALS, bvecs)
    assert found.outcome == "undecided"
    assert found.n_voxels == 0
    assert "could not be checked" in str(found)


def test_voxels_too_coarse_for_bundles_are_not_judged():
    data, bvecs = oblique_bundles(bundle_affine())
    coarse = bundle_affine() @ np.diag([6.0, 6.0, 6.0, 1.0])
    found = check_coherence(data, MASK, coarse, BVALS, bvecs @ np.diag([-1.0, 1.0, 1.0]))
    assert found.n_voxels == 0
    assert found.outcome == "undecided"
    assert "could not be checked" in str(found)


@pytest.mark.parametrize("wrong", [CANDIDATES[0], CANDIDATES[3]], ids=str)
def test_slices_of_five_mm_are_judged(wrong):
    affine = bundle_affine()
    data, bvecs = oblique_bundles(affine)
    thick = data.reshape(*SHAPE[:2], SHAPE[2] // 2, 2, -1).mean(axis=3)
    thick_affine = affine.copy()
    thick_affine[:3, 2] *= 2
    thick_affine[:3, 3] += affine[:3, 2] / 2
    mask = np.ones(thick.shape[:3], bool)
    found = check_coherence(thick, mask, thick_affine, BVALS, bvecs @ wrong.matrix.T)
    assert found.outcome == ("fits" if wrong == CANDIDATES[0] else "wrong")


@pytest.mark.parametrize("wrong", [CANDIDATES[0], CANDIDATES[2], CANDIDATES[9]], ids=str)
def test_smooth_fibres_leave_it_undecided_and_say_so(wrong):
    """Fibres of the phantom hardly bend: a step along any axis meets the same direction."""
    scan = simulate(voxel_mm=5, directions=12, seed=1)
    table = scan.bvecs_fsl @ wrong.matrix.T
    found = check_coherence(scan.data, scan.truth.mask, scan.affine, scan.bvals, table)
    assert found.n_voxels > 1000
    assert found.outcome == "undecided"
    assert "could not be checked" in str(found)


def test_a_margin_over_the_second_decides():
    scores = np.full(24, 0.3)
    scores[5] = 0.3 * MARGIN - 1e-6
    assert Coherence(scores, 100).outcome == "undecided"
    scores[5] = 0.3 * MARGIN + 1e-6
    assert Coherence(scores, 100).outcome == "wrong"
    scores[0] = scores[5] * MARGIN + 1e-6
    assert Coherence(scores, 100).outcome == "fits"
