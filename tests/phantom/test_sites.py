from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.sites import make_site, ras_to_fsl

SITES = range(4)


@pytest.fixture(scope="module")
def sites():
    return [make_site(PhantomSettings(sites=4), index) for index in SITES]


def test_sites_exercise_every_convention(sites):
    determinants = [np.sign(np.linalg.det(s.affine)) for s in sites]
    assert set(determinants) == {-1.0, 1.0}
    oblique = [bool(nib.affines.obliquity(s.affine).max() > 0.01) for s in sites]
    assert set(oblique) == {False, True}
    assert {s.phase_encoding for s in sites} == {"j", "j-"}
    assert {float(s.bvals.min()) for s in sites} == {0.0, 5.0}


def test_sites_differ_in_what_scanners_differ_in(sites):
    for quantity in (
        lambda s: s.gains,
        lambda s: int((s.bvals > 50).sum()),
        lambda s: tuple(np.round(s.voxel_mm, 6)),
        lambda s: s.snr,
    ):
        assert len({quantity(s) for s in sites}) == 4


def test_without_site_effects_only_the_name_differs():
    settings = PhantomSettings(sites=2, site_effect=False)
    first, second = (make_site(settings, n) for n in (0, 1))
    assert (first.name, second.name) == ("A", "B")
    for field in ("bvals", "bvecs_ras", "affine", "eddy_matrix"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert first.gains == second.gains == (1.0, 1.0, 1.0)


def test_a_site_does_not_depend_on_the_number_of_sites():
    few, many = (make_site(PhantomSettings(sites=n), 1) for n in (2, 5))
    np.testing.assert_array_equal(few.bvecs_ras, many.bvecs_ras)
    np.testing.assert_array_equal(few.bvals, many.bvals)


@pytest.mark.parametrize("count", [6, 16, 32, 64])
def test_directions_are_spread(count):
    site = make_site(PhantomSettings(directions=count), 0)
    directions = site.bvecs_ras[site.bvals > 50]
    assert len(directions) == count
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-12)
    cosines = np.abs(directions @ directions.T)
    nearest = np.rad2deg(np.arccos(np.clip(np.sort(cosines, axis=1)[:, -2], 0, 1)))
    # Caps of this radius would cover the half sphere; good schemes reach 70 % and more.
    covering = 2 * np.rad2deg(np.arccos(1 - 1 / count))
    assert nearest.min() > 0.7 * covering
    # A balanced scheme averages the second-order moments to a third of the identity.
    np.testing.assert_allclose(directions.T @ directions / count, np.eye(3) / 3, atol=0.03)


def test_shells_and_interleaved_b0s():
    site = make_site(PhantomSettings(directions=32, b_values=(1000.0, 2500.0)), 1)
    weighted = site.bvals > 50
    assert not weighted[0]
    assert np.diff(np.flatnonzero(~weighted)).max() <= 17
    assert np.all((np.abs(site.bvals[weighted] - 1000) < 50) | (site.bvals[weighted] > 2400))
    assert len(set(site.bvals[weighted])) > 2  # jitter
    assert np.array_equal(site.bvals, np.rint(site.bvals))


def test_direction_label_says_where_the_phase_encoding_goes(sites):
    for site in sites:
        towards = site.polarity * site.affine[:3, 1]
        assert site.direction_label == ("PA" if towards[1] > 0 else "AP")


def test_centre_and_axes_match_the_affine(sites):
    for site in sites:
        np.testing.assert_allclose(site.voxel_axes.T @ site.voxel_axes, np.eye(3), atol=1e-12)
        middle = nib.affines.apply_affine(site.affine, (np.array(site.shape) - 1) / 2)
        np.testing.assert_allclose(site.centre_mm, middle)


def test_fsl_axes_of_known_affines():
    x, y = np.array([[1.0, 0, 0]]), np.array([[0.0, 1, 0]])
    ras, las = np.diag([2.0, 2, 2, 1]), np.diag([-2.0, 2, 2, 1])
    # FSL's x points left in both: it reverses x exactly when det > 0.
    np.testing.assert_array_equal(ras_to_fsl(x, ras), -x)
    np.testing.assert_array_equal(ras_to_fsl(x, las), -x)
    np.testing.assert_array_equal(ras_to_fsl(y, ras), y)
    swapped = np.array([[0, 2.0, 0, 0], [2.0, 0, 0, 0], [0, 0, 2.0, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(ras_to_fsl(x, swapped), y)  # det < 0: world x is voxel j


def test_voxel_size_does_not_bend_gradients(sites):
    vectors = np.random.default_rng(0).normal(size=(20, 3))
    for site in sites:
        stretched = site.affine @ np.diag([1.0, 2.0, 0.5, 1.0])
        np.testing.assert_allclose(
            ras_to_fsl(vectors, site.affine), ras_to_fsl(vectors, stretched), atol=1e-12
        )


def test_snr_and_eddy_follow_the_settings():
    settings = PhantomSettings()
    doubled = replace(settings, snr=60.0, eddy=2.0)
    one, two = make_site(settings, 1), make_site(doubled, 1)
    assert two.snr == pytest.approx(2 * one.snr)
    np.testing.assert_allclose(two.eddy_matrix, 2 * one.eddy_matrix)
