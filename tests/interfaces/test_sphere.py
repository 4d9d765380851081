"""Two shells of a tensor on the sphere, from files to files."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.harmonisation.rish import rish_features
from bids_gevnet.interfaces.series import Series, write_series
from bids_gevnet.interfaces.sphere import SampleSphere
from bids_gevnet.sphere.resampling import distinct_directions

FIBRE = np.array([0.6, 0.0, 0.8])


def signal(b, directions):
    return np.exp(-b * (0.3e-3 + 1.2e-3 * (directions @ FIBRE) ** 2))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directions = np.random.default_rng(1).normal(size=(60, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    bvals = np.array([0.0, *[2000.0] * 60, *[1000.0] * 60])
    bvecs = np.vstack([np.zeros(3), directions, directions])
    data = np.zeros((3, 3, 3, 121), np.float32)
    data[1:] = 500 * np.array([1.0, *signal(2000, directions), *signal(1000, directions)])
    image, gradients = write_series(tmp_path, Series(data, np.eye(4), bvals, bvecs))
    mask = tmp_path / "mask.nii"
    nib.save(nib.Nifti1Image((data[..., 0] > 0).astype(np.uint8), np.eye(4)), mask)
    return {"image": str(image), "gradients": str(gradients), "mask": str(mask), "nside": 2}


@pytest.mark.parametrize(
    ("choice", "b_values"),
    [({"all_shells": True}, [1000, 2000]), ({"shells": [2000.0]}, [2000]), ({}, [1000])],
)
def test_shells_follow_each_other_by_their_b_value(files, choice, b_values):
    outputs = SampleSphere(**files, **choice).run().outputs
    samples = nib.load(outputs.samples).get_fdata()[1, 1, 1]
    expected = [signal(b, distinct_directions(2)) for b in b_values]
    assert np.sqrt(np.mean((samples - np.concatenate(expected)) ** 2)) < 0.02
    facts = json.loads(Path(outputs.facts).read_text(encoding="utf-8"))
    assert [shell["b_value"] for shell in facts["sampled"]] == b_values
    assert [shell["b_value"] for shell in facts["shells"]] == [1000, 2000]
    maps = [nib.load(path) for path in outputs.rish]
    several = len(b_values) > 1
    assert {image.shape for image in maps} == {(3, 3, 3, *([2] if several else []))}
    for number, part in enumerate(np.split(samples, len(b_values))):
        energy = [image.get_fdata()[(1, 1, 1, *([number] if several else []))] for image in maps]
        degrees = tuple(outputs.degrees)
        wanted = rish_features(part[None], nside=2, degrees=degrees, lmax=max(degrees))[0]
        np.testing.assert_allclose(energy[:2], wanted[:2], rtol=0.01)
