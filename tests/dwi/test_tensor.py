import numpy as np
from scipy.spatial.transform import Rotation

from bids_gevnet.dwi.gradients import direction_angle_deg
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.dwi.tensor import SCALARS, choose_tensor_shell, fit_tensor, tensor_maps

RNG = np.random.default_rng(0)
BVALS = np.array([0.0, 5.0, *[1000.0] * 30])
BVECS = RNG.normal(size=(32, 3))
BVECS /= np.linalg.norm(BVECS, axis=1, keepdims=True)


def test_known_tensors_come_back():
    turns = Rotation.random(50, rng=1).as_matrix()
    tensors = turns @ np.diag([1.7e-3, 4e-4, 2e-4]) @ np.swapaxes(turns, 1, 2)
    weights = np.where(BVALS > 50, BVALS, 0)
    signal = 800 * np.exp(-weights * np.einsum("ni,vij,nj->vn", BVECS, tensors, BVECS))
    found = fit_tensor(signal, BVALS, BVECS)
    np.testing.assert_allclose(found.md, 2.3e-3 / 3, rtol=1e-6)
    values = np.array([1.7, 0.4, 0.2])
    fa = np.sqrt(1.5 * np.sum((values - values.mean()) ** 2) / np.sum(values**2))
    np.testing.assert_allclose(found.fa, fa, rtol=1e-6)
    assert np.all(direction_angle_deg(found.direction, turns[:, :, 0]) < 1e-3)
    assert np.all(found.residual < 1e-6)


def test_residual_is_the_noise():
    signal = 1000 * np.exp(-np.where(BVALS > 50, 0.8, 0.0))[None].repeat(2000, axis=0)
    noisy = signal + np.random.default_rng(2).normal(scale=20, size=signal.shape)
    found = fit_tensor(noisy, BVALS, BVECS)
    # 7 of 32 degrees of freedom go into the fit.
    assert 0.75 * 0.02 < np.median(found.residual) < 1.0 * 0.02


def test_zeros_and_negative_values_stay_finite():
    signal = np.zeros((3, 32))
    signal[1] = -5
    signal[2, 0] = 100
    found = fit_tensor(signal, BVALS, BVECS)
    assert np.all(np.isfinite(found.fa))
    assert np.all(np.isfinite(found.residual))


def test_maps_hold_known_tensors_inside_the_mask_and_zero_outside(monkeypatch):
    monkeypatch.setattr("bids_gevnet.dwi.tensor._VOXELS_AT_ONCE", 7)
    turns = Rotation.random(24, rng=3).as_matrix()
    tensors = turns @ np.diag([1.7e-3, 4e-4, 2e-4]) @ np.swapaxes(turns, 1, 2)
    high = np.array([*BVALS, *[3000.0] * 10])
    bvecs = np.concatenate([BVECS, BVECS[2:12]])
    exponent = np.where(high > 50, high, 0) * np.einsum("ni,vij,nj->vn", bvecs, tensors, bvecs)
    signal = 800 * np.exp(-exponent)
    signal[:, high > 2000] = 700.0  # no exponential decay there: must not be used
    mask = np.zeros((4, 3, 4), bool)
    mask[:2] = True
    data = np.zeros((4, 3, 4, len(high)))
    data[mask] = signal
    data[~mask] = 500
    maps = tensor_maps(data, mask, high, bvecs)
    for name, wanted in {"md": 2.3e-3 / 3, "ad": 1.7e-3, "rd": 3e-4}.items():
        np.testing.assert_allclose(maps[name][mask], wanted, rtol=1e-5)
    colours = np.abs(turns[:, :, 0]) * maps["fa"][mask][:, None]
    np.testing.assert_allclose(maps["dec"][mask], colours, atol=1e-5)
    assert not any(maps[name][~mask].any() for name in (*SCALARS, "dec"))


def test_a_low_shell_is_preferred_and_a_high_one_taken_where_there_is_no_other():
    low_and_high = find_shells([0, *[800] * 8, *[3000] * 60])
    assert choose_tensor_shell(low_and_high).b_value == 800
    too_few_low = find_shells([0, *[800] * 5, *[3000] * 60])
    assert choose_tensor_shell(too_few_low).b_value == 3000
