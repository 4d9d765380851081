"""The model-based correction on a GPU in name: no call mixes devices, and the numbers stay."""

from typing import Any

import numpy as np
import pytest
import torch
from shadow_gpu import SHADOW, ShadowGpu

import bids_gevnet
from bids_gevnet.compiled.library import NONE, use
from bids_gevnet.dwi.model_corrector.corrector import LEVELS
from bids_gevnet.fake_gpu import MixedDevicesError


@pytest.fixture(scope="module")
def scan() -> Any:
    return bids_gevnet.phantom.simulate(directions=8, voxel_mm=12, snr=50)


def correct(scan: Any, device: Any) -> Any:
    return bids_gevnet.dwi.correct(
        scan.data,
        scan.affine,
        scan.bvals,
        scan.bvecs_fsl,
        phase_encoding="j",
        levels=LEVELS[:1],
        device=device,
    )


def test_correction_stays_on_its_device_and_finds_the_same(scan: Any) -> None:
    with ShadowGpu() as gpu:
        there = correct(scan, SHADOW)
    assert gpu.calls > 100  # it was the device that worked
    with use(NONE):  # the same code on both: a kernel's roundings would move the last step
        here = correct(scan, "cpu")
    np.testing.assert_allclose(there.motion, here.motion, atol=1e-4)
    np.testing.assert_allclose(there.data, here.data, rtol=1e-3, atol=1e-3 * here.data.max())


def test_shadow_sees_mixing_and_lets_copies_through() -> None:
    """Negative control: what would fail on a GPU fails here."""
    with ShadowGpu():
        there, here = torch.ones(3, device=SHADOW), torch.ones(3)
        assert there.device == (there + 1).device == SHADOW
        assert here.device.type == there.cpu().device.type == "cpu"
        assert here.to(SHADOW).device == here.to(there).device == SHADOW
        assert (there * 2.0 + torch.tensor(1.0)).device == SHADOW
        with pytest.raises(MixedDevicesError):
            there + here
        with pytest.raises(MixedDevicesError):
            there.numpy()
        there.cpu().numpy()
