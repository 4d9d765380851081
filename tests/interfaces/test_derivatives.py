"""Transforms, grids and samples as files, against truth and against ANTs' own reading."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from bids_gevnet.bids.templates import template_label
from bids_gevnet.dwi.ants_linear import load_ants
from bids_gevnet.errors import InputError
from bids_gevnet.interfaces.derivative_files import to_itk_text, write_samples
from bids_gevnet.interfaces.quality import to_raw_axes
from bids_gevnet.interfaces.series import (
    Series,
    read_gradients,
    read_mask,
    write_gradients,
    write_series,
)
from bids_gevnet.interfaces.sphere import SampleSphere
from bids_gevnet.interfaces.template_grid import load_template, output_grid
from bids_gevnet.settings import PreprocessingSettings


@pytest.mark.parametrize("centre", [(0.0, 0.0, 0.0), (1.0, -18.0, 7.5)])
def test_itk_text_takes_template_points_to_the_scan(tmp_path, centre):
    to_template = np.eye(4)
    to_template[:3, :3] = 1.1 * Rotation.from_euler("xyz", [0.1, 0.2, -0.3]).as_matrix()
    to_template[:3, 3] = [3, -4, 5]
    path = tmp_path / "xfm.txt"
    path.write_text(to_itk_text(to_template, np.array(centre)))
    flip = np.array([-1, -1, 1])
    ants = load_ants()
    np.testing.assert_allclose(ants.read_transform(str(path)).fixed_parameters, flip * centre)
    scan_point = np.array([10.0, -20, 30])
    template_point = to_template[:3, :3] @ scan_point + to_template[:3, 3]
    found = ants.read_transform(str(path)).apply_to_point((flip * template_point).tolist())
    np.testing.assert_allclose(flip * np.array(found), scan_point, atol=1e-9)


def test_gradients_survive_the_file_exactly(tmp_path):
    rng = np.random.default_rng(0)
    bvals, bvecs = rng.uniform(0, 3000, 7), rng.normal(size=(7, 3))
    found = read_gradients(write_gradients(tmp_path / "g.tsv", bvals, bvecs))
    np.testing.assert_array_equal(found[0], bvals)
    np.testing.assert_array_equal(found[1], bvecs)


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 1), (3, 4, 5, 2)])
def test_masks_of_three_and_four_axes(tmp_path, shape):
    data = np.zeros(shape, np.uint8)
    data[1, 2, 3] = 1
    nib.save(nib.Nifti1Image(data, np.eye(4)), tmp_path / "m.nii.gz")
    mask, _ = read_mask(tmp_path / "m.nii.gz")
    assert mask.shape == (3, 4, 5)
    assert np.argwhere(mask).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, -1), (-1, -1, -1)])
def test_raw_axes_come_back(order, signs):
    from bids_gevnet.dwi.conform import reorder_axes

    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[:, list(order)] * np.array(signs)
    raw = np.random.default_rng(0).random((3, 4, 5)) > 0.5
    turned, _ = reorder_axes(raw, affine)
    np.testing.assert_array_equal(to_raw_axes(turned, affine), raw)


def test_template_grid_holds_the_brain():
    settings = PreprocessingSettings(output_resolution=4, crop_margin=0)
    grid, template = output_grid(settings), load_template(None)
    brain = nib.affines.apply_affine(template.affine, np.argwhere(template.mask))
    index = nib.affines.apply_affine(np.linalg.inv(grid.affine), brain)
    assert index.min() >= 0
    assert (index <= np.array(grid.shape) - 1).all()
    assert grid.n_voxels < np.prod(template.mask.shape)
    assert grid.label == "MNI152NLin2009aSym"


def test_the_papers_grid_has_about_563_thousand_voxels():
    grid = output_grid(PreprocessingSettings())
    assert grid.n_voxels == pytest.approx(563_000, rel=0.2)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("tpl-MNIPediatricAsym_res-1_T1w.nii.gz", "MNIPediatricAsym"),
        ("my brain (new).nii", "mybrainnew"),
    ],
)
def test_a_template_is_labelled_as_what_it_is(name, label):
    assert template_label(Path(name)) == label


def test_own_template_with_a_mask_beside_it(tmp_path):
    data = np.ones((5, 5, 5), np.float32)
    brain = np.zeros((5, 5, 5), np.uint8)
    brain[2, 2, 2] = 1
    nib.save(nib.Nifti1Image(data, np.eye(4)), tmp_path / "tpl-X_T1w.nii.gz")
    assert load_template(tmp_path / "tpl-X_T1w.nii.gz").mask.all()
    nib.save(nib.Nifti1Image(brain, np.eye(4)), tmp_path / "tpl-X_desc-brain_mask.nii.gz")
    assert load_template(tmp_path / "tpl-X_T1w.nii.gz").mask.sum() == 1


@pytest.mark.parametrize("shape", [None, (3, 3, 3, 2)])
def test_unusable_template_is_named(tmp_path, shape):
    path = tmp_path / "template.nii.gz"
    if shape is not None:
        nib.save(nib.Nifti1Image(np.ones(shape, np.float32), np.eye(4)), path)
    with pytest.raises(InputError, match="--template"):
        load_template(path)


@pytest.mark.parametrize("nside", [2, 4])
def test_a_tensor_signal_is_sampled_to_its_closed_form(tmp_path, monkeypatch, nside):
    from bids_gevnet.sphere.resampling import distinct_directions

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(90, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    fibre = np.array([0.6, 0.0, 0.8])

    def signal(g):
        return np.exp(-1000 * (0.3e-3 + 1.4e-3 * (g @ fibre) ** 2))

    bvals = np.array([0.0, *[1000.0] * 90])
    data = np.zeros((4, 4, 4, 91), np.float32)
    data[1:3, 1:3, 1:3] = 500 * np.array([1.0, *signal(directions)])
    bvecs = np.vstack([np.zeros(3), directions])
    image, gradients = write_series(tmp_path, Series(data, np.eye(4), bvals, bvecs))
    mask = tmp_path / "mask.nii"
    nib.save(nib.Nifti1Image((data[..., 0] > 0).astype(np.uint8), np.eye(4)), mask)
    outputs = SampleSphere(
        image=str(image), gradients=str(gradients), mask=str(mask), nside=nside
    ).run().outputs  # fmt: skip
    samples = nib.load(outputs.samples).get_fdata()
    expected = signal(distinct_directions(nside))
    assert np.sqrt(np.mean((samples[1, 1, 1] - expected) ** 2)) < 0.02
    assert np.all(samples[0] == 0)


AXES = [
    np.diag([2.0, 2, 2, 1]),  # right-handed: the first component of a bvec is flipped
    np.diag([-2.0, 2, 2, 1]),
    np.array([[0, 2.0, 0, 3], [-2, 0, 0, 1], [0, 0, 2.5, 0], [0, 0, 0, 1]]),
]


@pytest.mark.parametrize("affine", AXES)
@pytest.mark.parametrize("fibre", [(1.0, 0.0, 0.0), (0.48, 0.6, 0.64), (0.0, -0.6, 0.8)])
def test_samples_open_in_dipy_as_an_ordinary_diffusion_series(tmp_path, affine, fibre):
    from dipy.core.gradients import gradient_table
    from dipy.io.gradients import read_bvals_bvecs
    from dipy.io.image import load_nifti
    from dipy.reconst.dti import TensorModel

    from bids_gevnet.sphere.resampling import distinct_directions

    signal = np.exp(-1.0 * (0.3 + 1.4 * (distinct_directions(4) @ np.array(fibre)) ** 2))
    source, mask = tmp_path / "samples.nii", tmp_path / "mask.nii"
    nib.save(nib.Nifti1Image(np.tile(signal, (2, 2, 2, 1)).astype(np.float32), affine), source)
    nib.save(nib.Nifti1Image(np.ones((2, 2, 2), np.uint8), affine), mask)
    target = tmp_path / "sub-1_desc-healpix_dwi.nii.gz"
    write_samples(target, str(source), str(mask), {}, nside=4, b_values=[1000.0])

    stem = str(target).removesuffix(".nii.gz")
    data, found_affine = load_nifti(str(target))
    bvals, bvecs = read_bvals_bvecs(f"{stem}.bval", f"{stem}.bvec")
    fit = TensorModel(gradient_table(bvals, bvecs=bvecs, b0_threshold=50)).fit(data)
    truth = np.sqrt(0.5 * 3) * np.linalg.norm([1.7 - 2.3 / 3, *[0.3 - 2.3 / 3] * 2])
    np.testing.assert_allclose(fit.fa, truth / np.linalg.norm([1.7, 0.3, 0.3]), atol=2e-3)
    np.testing.assert_allclose(fit.md, 2.3e-3 / 3, atol=5e-6)
    # As MRtrix reads bvec files: flip the first component if the axes are right-handed, then
    # turn from image axes to the world with the direction cosines.
    axis = fit.directions[0, 0, 0, 0] * [-1 if np.linalg.det(affine[:3, :3]) > 0 else 1, 1, 1]
    cosines = found_affine[:3, :3] / np.linalg.norm(found_affine[:3, :3], axis=0)
    assert abs(cosines @ axis @ np.array(fibre)) > 0.9999
