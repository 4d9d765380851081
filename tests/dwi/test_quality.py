from dataclasses import astuple

import numpy as np
import pytest

from bids_gevnet.dwi.quality import assess_quality, b0_snr, neighbour_correlation, shell_snrs
from bids_gevnet.dwi.shells import find_shells

BVALS = np.array([0.0, 0.0, *[1000.0] * 20])
SHAPE = (16, 16, 12)


def make_scan(noise, seed=0):
    rng = np.random.default_rng(seed)
    bvecs = rng.normal(size=(22, 3))
    bvecs /= np.linalg.norm(bvecs, axis=1, keepdims=True)
    bvecs[:2] = 0
    mask = np.zeros(SHAPE, bool)
    mask[4:12, 4:12, 2:10] = True
    adc = 3e-4 + 1.4e-3 * (bvecs @ [0.0, 0.6, 0.8]) ** 2
    signal = 1000 * mask[..., None] * np.exp(-BVALS * adc)
    real, imaginary = rng.normal(scale=noise, size=(2, *signal.shape))
    return np.hypot(signal + real, imaginary), mask, bvecs


def quality(noise):
    data, mask, bvecs = make_scan(noise)
    shells = find_shells(BVALS)
    return assess_quality(data, mask, BVALS, bvecs, shells, shells.shells[0])


def test_known_noise_of_repeated_b0s():
    found = quality(25.0)
    assert found.snr_b0 == pytest.approx(40, rel=0.1)
    assert found.tensor_residual == pytest.approx(0.025, rel=0.25)


def test_signal_to_noise_of_a_shell_falls_as_the_signal_does():
    data, mask, bvecs = make_scan(25.0)
    (of_b0, of_shell), measured = shell_snrs(data, mask, find_shells(BVALS), None)
    adc = 3e-4 + 1.4e-3 * (bvecs[2:] @ [0.0, 0.6, 0.8]) ** 2
    assert measured
    assert of_b0 == pytest.approx(40, rel=0.1)
    assert of_shell / of_b0 == pytest.approx(np.exp(-1000 * adc).mean(), rel=0.02)


def test_without_repeated_b0s_the_misfit_stands_for_the_noise():
    data, mask, _ = make_scan(25.0)
    alone = find_shells(BVALS[1:])  # one b0, and too little air
    (of_b0, of_shell), measured = shell_snrs(data[..., 1:], mask, alone, 0.025)
    assert not measured
    assert of_b0 == pytest.approx(40, rel=0.01)
    assert of_shell < of_b0
    assert shell_snrs(data[..., 1:], mask, alone, None)[0] == [None, None]


def test_known_noise_from_air():
    data, mask, _ = make_scan(25.0)
    assert b0_snr(data, mask, np.array([0])) is None  # too little air to tell
    wide = np.abs(np.random.default_rng(1).normal(scale=25, size=(60, 60, 12, 1)) + 0)
    wide = np.hypot(wide, np.random.default_rng(2).normal(scale=25, size=wide.shape))
    head = np.zeros((60, 60, 12), bool)
    head[20:40, 20:40] = True
    wide[head] += 1000
    assert b0_snr(wide, head, np.array([0])) == pytest.approx(41, rel=0.05)


def test_air_set_to_zero_tells_nothing():
    data = np.zeros((60, 60, 12, 1))
    head = np.zeros((60, 60, 12), bool)
    head[20:40, 20:40] = True
    data[head] = 1000
    assert b0_snr(data, head, np.array([0])) is None


def test_more_noise_is_worse_in_every_number():
    good, bad = quality(10.0), quality(60.0)
    assert good.snr_b0 > bad.snr_b0
    assert good.cnr > bad.cnr
    assert good.tensor_residual < bad.tensor_residual


def test_dropped_slices_lower_the_neighbour_correlation():
    data, mask, bvecs = make_scan(10.0)
    data += 500 * np.random.default_rng(3).uniform(size=SHAPE)[..., None]
    whole = neighbour_correlation(data[mask][:, 2:], bvecs[2:])
    data[:, :, 5, 7] = 0
    assert neighbour_correlation(data[mask][:, 2:], bvecs[2:]) < whole - 0.01


def test_what_cannot_be_told_is_missing():
    data, mask, bvecs = make_scan(10.0)
    shells = find_shells(BVALS[1:5])
    few = assess_quality(data[..., 1:5], mask, BVALS[1:5], bvecs[1:5], shells, shells.shells[0])
    assert few.cnr is None
    empty = assess_quality(
        data, mask & ~mask, BVALS, bvecs, find_shells(BVALS), find_shells(BVALS).shells[0]
    )
    assert astuple(empty) == (None,) * 5
    assert neighbour_correlation(data[mask][:, :1], bvecs[:1]) is None


def test_air_set_to_zero_by_the_scanner_tells_no_noise_after_resampling():
    data = np.full((40, 40, 20, 1), 1e-15)
    head = np.zeros((40, 40, 20), bool)
    head[10:30, 10:30] = True
    data[head] = 500.0
    assert b0_snr(data, head, np.array([0])) is None
