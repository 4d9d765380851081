"""Means before correction: of the right volumes, on the grid of the corrected scan."""

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.uncorrected import AverageUncorrected

AXES = [
    np.diag([2.0, 2, 3, 1]),
    np.array([[0, -2.0, 0, 9], [-2, 0, 0, 5], [0, 0, 3, 1], [0, 0, 0, 1]]),
]


@pytest.mark.parametrize("affine", AXES)
def test_means_lie_on_the_conformed_grid(tmp_path, monkeypatch, affine):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    bvals = np.array([0, *[1000] * 4, 5, *[2000] * 3])
    bvecs = rng.normal(size=(3, len(bvals)))
    bvecs /= np.linalg.norm(bvecs, axis=0)
    data = rng.uniform(10, 20, (4, 5, 6, len(bvals))).astype(np.float32)
    nib.save(nib.Nifti1Image(data, affine), "dwi.nii.gz")
    np.savetxt("dwi.bval", bvals[None], fmt="%d")
    np.savetxt("dwi.bvec", bvecs)
    files = {name: str(tmp_path / f"dwi.{name}") for name in ("bval", "bvec")}
    image = str(tmp_path / "dwi.nii.gz")
    found = nib.load(AverageUncorrected(image=image, **files).run().outputs.means)
    conformed = nib.load(Conform(image=image, **files).run().outputs.image)
    np.testing.assert_allclose(found.affine, conformed.affine, atol=1e-5)
    volumes = np.asarray(conformed.dataobj)
    np.testing.assert_allclose(found.dataobj[..., 0], volumes[..., [0, 5]].mean(-1), rtol=1e-5)
    weighted = volumes[..., bvals > 50].mean(-1)
    np.testing.assert_allclose(found.dataobj[..., 1], weighted, rtol=1e-5)
