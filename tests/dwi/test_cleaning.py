"""Cleaning against known noise, ringing and shading, with data where it must fail."""

import numpy as np
import pytest

from bids_gevnet.dwi.cleaning import (
    Denoised,
    bias_field,
    denoise_mppca,
    denoise_patch2self,
    judge_residual,
    patch_radius,
    remove_ringing,
)

SIGMA = 20.0
AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
ALL = np.ones((14, 13, 12), bool)


@pytest.fixture(scope="module")
def clean():
    """Signal of rank three that varies smoothly in space, (14, 13, 12, 24)."""
    rng = np.random.default_rng(0)
    grid = np.meshgrid(*(np.linspace(0, 3, n) for n in ALL.shape), indexing="ij")
    maps = np.stack([1 + 0.3 * np.sin(sum(grid) + k) for k in range(3)], axis=-1)
    return (300 * maps @ rng.uniform(0.3, 1, (3, 24))).astype(np.float32)


@pytest.fixture(scope="module")
def noisy(clean):
    noise = np.random.default_rng(1).normal(scale=SIGMA, size=clean.shape)
    return (clean + noise).astype(np.float32)


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def test_mppca_removes_noise_and_finds_its_level(clean, noisy):
    found = denoise_mppca(noisy, ALL)
    assert rms(found.data - clean) < 0.6 * SIGMA
    assert np.median(found.noise) == pytest.approx(SIGMA, rel=0.1)
    np.testing.assert_allclose(
        found.residual, np.sqrt(np.mean((noisy - found.data) ** 2, axis=3)), rtol=1e-4
    )


def test_mppca_does_not_depend_on_threads_and_leaves_the_rest_alone(noisy):
    region = ALL.copy()
    region[:4] = False
    one, three = (denoise_mppca(noisy, region, n_threads=n) for n in (1, 3))
    np.testing.assert_allclose(one.data, three.data, rtol=1e-5)
    np.testing.assert_array_equal(one.data[:4], noisy[:4])
    assert not one.noise[:4].any()


def test_mppca_survives_empty_space():
    data = np.zeros((7, 7, 7, 16), np.float32)
    found = denoise_mppca(data, np.ones((7, 7, 7), bool))
    assert np.isfinite(found.data).all()


def test_patches_have_more_voxels_than_volumes():
    for volumes in (6, 26, 27, 64, 300):
        assert (2 * patch_radius(volumes) + 1) ** 3 > volumes


def test_patch2self_keeps_the_level_of_the_signal(clean, noisy):
    bvals = np.array([0.0, 0.0, *[1000.0] * 22])
    found = denoise_patch2self(noisy, bvals, b0_threshold=50)
    assert rms((found.data - clean)[..., 2:]) < SIGMA
    np.testing.assert_allclose(
        found.data.mean(axis=(0, 1, 2)), noisy.mean(axis=(0, 1, 2)), rtol=1e-3
    )


@pytest.fixture(scope="module")
def blocks():
    """Tissue with sharp edges."""
    rng = np.random.default_rng(2)
    coarse = rng.uniform(200, 1000, (5, 5, 4))
    return np.kron(coarse, np.ones((4, 4, 4)))


def test_noise_alone_is_not_taken_for_anatomy(blocks):
    rng = np.random.default_rng(3)
    residual = np.sqrt(rng.chisquare(24, blocks.shape) / 24) * SIGMA
    data = np.repeat(blocks[..., None], 24, axis=3)
    brain, noise = np.ones(blocks.shape, bool), np.full(blocks.shape, SIGMA)
    verdict = judge_residual(Denoised(data, noise, residual), brain, AFFINE)
    assert not verdict.holds_anatomy
    assert abs(verdict.correlation) < 0.1


def test_removed_edges_are_anatomy_even_if_the_noise_map_follows_them(blocks):
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(4)
    lost = blocks - gaussian_filter(blocks, 1.0)
    residual = np.sqrt(SIGMA**2 * rng.chisquare(24, blocks.shape) / 24 + lost**2)
    data = np.repeat(gaussian_filter(blocks, 1.0)[..., None], 24, axis=3)
    verdict = judge_residual(
        Denoised(data, residual, residual), np.ones(blocks.shape, bool), AFFINE
    )
    assert verdict.holds_anatomy


def test_nothing_is_said_where_nothing_was_removed(blocks):
    data = np.repeat(blocks[..., None], 3, axis=3)
    zero = np.zeros(blocks.shape)
    assert judge_residual(Denoised(data, zero, zero), zero == 0, AFFINE) is None


@pytest.mark.parametrize("axis", [0, 2])
def test_ringing_shrinks_within_slices(axis):
    fine = np.zeros((96, 96))
    fine[30:66, 24:72] = 1000
    space = np.fft.fftshift(np.fft.fft2(fine))[32:64, 32:64]
    ringing = np.abs(np.fft.ifft2(np.fft.ifftshift(space))) / 9
    data = np.moveaxis(np.repeat(ringing[..., None], 3, axis=2), 2, axis)[..., None]
    found = remove_ringing(data.repeat(2, axis=3), axis, n_threads=2)
    flat = np.moveaxis(found[..., 0], axis, 2)[..., 1]
    inside = slice(12, 20), slice(10, 22)
    assert rms(flat[inside] - 1000) < 0.5 * rms(ringing[inside] - 1000)


def test_bias_field_is_found_and_leaves_ratios_alone():
    shape = (10, 10, 9)
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    brain = (grid**2).sum(axis=0) < 0.8
    rng = np.random.default_rng(5)
    true = np.exp(0.5 * grid[0] - 0.4 * grid[1] ** 2)
    b0 = np.where(brain, 1000, 0) * true * rng.normal(1, 0.02, shape)
    affine = np.diag([14.0, 14.0, 14.0, 1.0])
    field = bias_field(b0, brain, affine)
    assert np.median(field[brain]) == pytest.approx(1)
    assert np.log(field / true)[brain].std() < 0.4 * np.log(true)[brain].std()
