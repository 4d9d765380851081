"""Regions of the template: known places, sums, and atlases of users."""

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.learn.evaluate.regions import (
    Regions,
    name_lobes,
    names_file,
    read_regions,
    template_regions,
)

AFFINE = np.array([[-4.0, 0, 0, 90], [0, 4, 0, -126], [0, 0, 4, -72], [0, 0, 0, 1]])
SHAPE = (46, 55, 46)


@pytest.fixture(scope="module")
def lobes():
    return template_regions(SHAPE, AFFINE)


def region_at(regions, *mm):
    place = np.rint(np.linalg.inv(AFFINE) @ [*mm, 1])[:3].astype(int)
    number = regions.labels[tuple(place)]
    return regions.names[number - 1] if number else ""


# Coordinates of structures in MNI space that no atlas disputes.
@pytest.mark.parametrize(
    ("mm", "name"),
    [
        ((-38, 44, 14), "Left frontal grey matter"),  # middle frontal gyrus
        ((20, 36, 20), "Right frontal white matter"),
        ((-58, -22, -12), "Left temporal grey matter"),  # middle temporal gyrus
        ((46, -56, 46), "Right parietal grey matter"),  # angular gyrus
        ((-10, -86, 4), "Left occipital grey matter"),  # calcarine sulcus
        ((12, -18, 8), "Right central grey matter"),  # thalamus
        ((0, -28, -34), "Brainstem"),  # pons
        ((-26, -64, -34), "Left cerebellar grey matter"),
        ((-8, 12, 12), "Ventricles and CSF"),  # frontal horn
        ((0, 0, 104), ""),
    ],
)
def test_well_known_places_are_in_their_lobe(lobes, mm, name):
    assert region_at(lobes, *mm) == name


def test_both_sides_have_the_same_regions_of_like_size(lobes):
    counts = dict(zip(lobes.names, np.bincount(lobes.labels.ravel())[1:], strict=True))
    left = {name.removeprefix("Left ") for name in counts if name.startswith("Left")}
    right = {name.removeprefix("Right ") for name in counts if name.startswith("Right")}
    assert left == right
    for name in left:
        assert counts[f"Left {name}"] == pytest.approx(counts[f"Right {name}"], rel=0.35), name


def test_lobes_do_not_depend_on_the_side():
    points = np.random.default_rng(0).uniform(-80, 80, (500, 3))
    assert (name_lobes(points) == name_lobes(points * [-1, 1, 1])).all()


def test_sums_are_over_the_voxels_of_each_region():
    labels = np.array([[[0, 1, 2], [2, 2, 1]]])
    regions = Regions("x", labels, ("a", "b"))
    maps = np.arange(12.0).reshape(2, 1, 2, 3)
    np.testing.assert_allclose(regions.sums(maps), [[1 + 5, 2 + 3 + 4], [7 + 11, 8 + 9 + 10]])


def write_atlas(path, values, affine=AFFINE):
    nib.save(nib.Nifti1Image(values, affine), path)
    return path


def test_an_atlas_on_another_grid_is_brought_to_the_scans(tmp_path):
    fine = AFFINE @ np.diag([0.5, 0.5, 0.5, 1])
    values = np.zeros(np.array(SHAPE) * 2, np.int16)
    values[:40], values[50:] = 3, 7
    path = write_atlas(tmp_path / "my.atlas.nii.gz", values, fine)
    names_file(path).write_text("index\tname\n3\tRight  side\n9\tunused\n")
    regions = read_regions(path, SHAPE, AFFINE)
    assert names_file(path).name == "my.atlas.tsv"
    assert set(regions.names) == {"Right side", "label 7"}
    number = regions.names.index("Right side") + 1
    assert (regions.labels[:20] == number).all()
    assert not (regions.labels[21:] == number).any()


def test_the_digest_changes_with_labels_and_names():
    labels = np.array([[[0, 1, 1]]])
    first = Regions("x", labels, ("a",))
    assert first.digest == Regions("y", labels.copy(), ("a",)).digest
    assert first.digest != Regions("x", labels, ("b",)).digest
    assert first.digest != Regions("x", np.array([[[1, 1, 0]]]), ("a",)).digest


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.full(SHAPE, 0.5, np.float32), "one whole number per voxel"),
        (np.ones((*SHAPE, 2), np.int16), "one whole number per voxel"),
        (np.zeros(SHAPE, np.int16), "one whole number per voxel"),
    ],
)
def test_what_is_no_atlas_is_refused(tmp_path, values, words):
    with pytest.raises(InputError, match=words):
        read_regions(write_atlas(tmp_path / "atlas.nii.gz", values), SHAPE, AFFINE)


def test_an_atlas_elsewhere_in_space_and_damaged_files_are_refused(tmp_path):
    far = AFFINE.copy()
    far[:3, 3] += 1000
    path = write_atlas(tmp_path / "atlas.nii.gz", np.ones(SHAPE, np.int16), far)
    with pytest.raises(InputError, match="on the grid of the scans"):
        read_regions(path, SHAPE, AFFINE)
    path.write_bytes(b"no image")
    with pytest.raises(InputError, match="a label image"):
        read_regions(path, SHAPE, AFFINE)
    with pytest.raises(InputError, match="a label image"):
        read_regions(tmp_path / "missing.nii.gz", SHAPE, AFFINE)


def test_a_table_of_names_without_its_columns_is_refused(tmp_path):
    path = write_atlas(tmp_path / "atlas.nii.gz", np.ones(SHAPE, np.int16))
    names_file(path).write_text("number\tregion\n1\tx\n")
    with pytest.raises(InputError, match="columns index and name"):
        read_regions(path, SHAPE, AFFINE)
