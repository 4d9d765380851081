"""`dwi.correct` against known motion, and in every orientation the voxels can be stored in."""

import numpy as np
import pytest

from bids_gevnet.dwi.correction import correct
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, bvecs_ras_to_fsl
from bids_gevnet.dwi.model_corrector.corrector import LEVELS
from bids_gevnet.errors import InputError
from bids_gevnet.phantom import simulate

QUICK = LEVELS[:2]


@pytest.fixture(scope="module")
def scan():
    return simulate(
        groups=("AD",), sites=1, voxel_mm=8.0, directions=12, snr=40.0, outliers=0.4,
        reverse_b0=True, motion_mm=4.0, seed=4,
    )  # fmt: skip


def run(scan, **changes):
    given = {
        "data": scan.data,
        "affine": scan.affine,
        "bvals": scan.bvals,
        "bvecs": scan.bvecs_fsl,
        "phase_encoding": scan.site.phase_encoding,
        "opposite_b0": scan.reverse_b0,
        "levels": QUICK,
    }
    return correct(**(given | changes))


@pytest.fixture(scope="module")
def corrected(scan):
    return run(scan)


def displacement(transforms, scan):
    """RMS over the brain of how far each volume's true pose is from the estimated one, mm."""
    index = np.argwhere(scan.truth.mask)[::5]
    points = np.c_[index, np.ones(len(index))] @ scan.affine.T
    back = np.einsum("nij,njk,vk->nvi", transforms, scan.truth.motion_matrices, points)
    return np.sqrt(np.square(back - points).sum(axis=2).mean(axis=1))


def test_transforms_undo_the_motion_in_the_world_of_the_image(corrected, scan):
    still = np.tile(np.eye(4), (len(scan.bvals), 1, 1))
    before, after = displacement(still, scan), displacement(corrected.transforms, scan)
    assert after.mean() < 0.35 * before.mean()


def test_gradients_turn_with_the_head(corrected, scan):
    rotations = scan.truth.motion_matrices[:, :3, :3]
    true = np.einsum("nji,nj->ni", rotations, scan.bvecs_ras)  # R^T g
    turned = bvecs_fsl_to_ras(corrected.bvecs, scan.affine)
    weighted = scan.bvals > 50

    def mean_angle(vectors):
        cosine = np.abs(np.einsum("ni,ni->n", vectors, true)[weighted])
        return np.degrees(np.arccos(np.minimum(cosine, 1))).mean()

    assert mean_angle(turned) < 0.5 * mean_angle(scan.bvecs_ras)


def test_dropped_slices_are_found(corrected, scan):
    dropped = {(volume, k) for volume, k, factor in scan.truth.dropped if factor < 0.5}
    reported = {(int(volume), int(k)) for volume, k in np.argwhere(corrected.outlier_slices)}
    assert len(dropped & reported) >= 0.5 * len(dropped)
    assert len(reported - {(v, k) for v, k, _ in scan.truth.dropped}) <= 1


def test_the_field_has_the_sign_of_the_voxel_axis(corrected, scan):
    polarity = -1 if scan.site.phase_encoding.endswith("-") else 1
    voxel_mm = np.linalg.norm(scan.affine[:3, 1])
    true = polarity * scan.truth.field_hz * scan.site.readout_s * voxel_mm
    mask = scan.truth.mask
    assert np.corrcoef(corrected.field_mm[mask], true[mask])[0, 1] > 0.7


def test_how_the_voxels_are_stored_does_not_matter(corrected, scan):
    """The same scan with its axes permuted and flipped gives the same result, so stored."""
    axes, flipped = (2, 0, 1), (0, 2)  # slices and phase encoding run the other way
    step = np.zeros((4, 4))  # voxel of the new array to voxel of the old one
    step[3, 3] = 1
    for new, old in enumerate(axes):
        step[old, new] = -1 if new in flipped else 1
        step[old, 3] = scan.data.shape[old] - 1 if new in flipped else 0

    def store(array):
        return np.flip(np.transpose(array, (*axes, *range(3, array.ndim))), flipped)

    def rename(direction):
        new = axes.index("ijk".index(direction[0]))
        return "ijk"[new] + ("-" if direction.endswith("-") != (new in flipped) else "")

    affine = scan.affine @ step
    other = run(
        scan,
        data=store(scan.data),
        affine=affine,
        bvecs=bvecs_ras_to_fsl(scan.bvecs_ras, affine),
        phase_encoding=rename(scan.site.phase_encoding),
        slice_encoding=rename("k"),
        opposite_b0=store(scan.reverse_b0),
    )
    np.testing.assert_allclose(other.data, store(corrected.data), rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(other.transforms, corrected.transforms, atol=1e-6)
    turned = bvecs_fsl_to_ras(other.bvecs, affine)
    np.testing.assert_allclose(turned, bvecs_fsl_to_ras(corrected.bvecs, scan.affine), atol=1e-9)
    sign = -1 if axes.index(1) in flipped else 1
    np.testing.assert_allclose(other.field_mm, sign * store(corrected.field_mm), atol=1e-5)
    lost = corrected.outlier_slices
    expected = lost[:, ::-1] if axes.index(2) in flipped else lost
    np.testing.assert_array_equal(other.outlier_slices, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bvecs": np.zeros((3, 13))}, "transpose the gradients"),
        ({"bvals": np.zeros(4)}, "n b-values"),
        ({"affine": np.eye(3)}, "an affine"),
        ({"phase_encoding": "AP"}, "BIDS spelling"),
        ({"slice_encoding": ""}, "BIDS spelling"),
        ({"data": np.zeros((4, 4, 4))}, "a series"),
    ],
)
def test_unusable_input_is_answered_with_a_sentence(scan, change, words):
    with pytest.raises(InputError, match=words):
        run(scan, **change)
