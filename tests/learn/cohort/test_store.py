"""The store: right values, right key, bounded memory."""

import tracemalloc
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.writing import write_image
from bids_gevnet.errors import ParticipantError
from bids_gevnet.harmonisation.features import log_rish_maps
from bids_gevnet.learn.cohort.store import LogRishMaps, fingerprint, store_scan, to_half


def write(folder: Path, *, seed: int = 0, shape: Any = (6, 7, 5)) -> tuple[Path, Path]:
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) > 0.3
    values = np.where(mask[..., None], rng.uniform(0.1, 1.2, (*shape, 24)), 0)
    write_image(folder / "i.nii.gz", values, np.diag([6.0, 6, 6, 1]), scale=1 / 16384)
    write_image(folder / "m.nii.gz", mask, np.diag([6.0, 6, 6, 1]))
    return folder / "i.nii.gz", folder / "m.nii.gz"


def test_values_are_those_of_the_image(tmp_path: Path) -> None:
    image, mask = write(tmp_path)
    scan = store_scan(tmp_path / "store", image, mask, nside=2, voxel_mm=6)
    brain = np.asarray(nib.load(mask).dataobj) > 0
    truth = np.asarray(nib.load(image).dataobj)[brain]
    np.testing.assert_array_equal(scan.mask, brain)
    assert scan.samples.dtype == np.float16
    np.testing.assert_allclose(scan.samples, truth, rtol=6e-4)
    maps = log_rish_maps(scan.samples, brain, voxel_mm=6, nside=2)
    np.testing.assert_allclose(scan.log_rish, maps, rtol=2e-3)
    assert scan.fingerprint == fingerprint(to_half(truth), brain)


def test_same_content_same_folder_other_content_other_folder(tmp_path: Path) -> None:
    image, mask = write(tmp_path / "a")
    copy, copied_mask = write(tmp_path / "b")
    other, other_mask = write(tmp_path / "c", seed=1)
    store = tmp_path / "store"
    first = store_scan(store, image, mask, nside=2, voxel_mm=6)
    assert store_scan(store, copy, copied_mask, nside=2, voxel_mm=6) == first
    assert store_scan(store, other, other_mask, nside=2, voxel_mm=6) != first


def test_interrupted_folder_is_made_again(tmp_path: Path) -> None:
    image, mask = write(tmp_path)
    scan = store_scan(tmp_path / "store", image, mask, nside=2, voxel_mm=6)
    (scan.folder / "facts.json").unlink()
    (scan.folder / "samples.npy").write_bytes(b"half a file")
    again = store_scan(tmp_path / "store", image, mask, nside=2, voxel_mm=6)
    assert again.samples.shape[1] == 24


def test_empty_mask_is_named(tmp_path: Path) -> None:
    image, mask = write(tmp_path)
    write_image(mask, np.zeros((6, 7, 5), bool), np.eye(4))
    with pytest.raises(ParticipantError, match="empty mask"):
        store_scan(tmp_path / "store", image, mask, nside=2, voxel_mm=6)


def test_impossible_values_stay_finite(tmp_path: Path) -> None:
    values = to_half(np.array([np.nan, np.inf, -np.inf, 1e9, 0.5]))
    assert np.isfinite(values).all()
    assert values[-1] == 0.5


def test_memory_does_not_grow_with_the_number_of_scans(tmp_path: Path) -> None:
    """Fitting the harmonisation reads one scan's maps at a time."""
    from bids_gevnet.harmonisation.glm import fit_rish_glm

    scans = []
    for seed in range(12):
        image, mask = write(tmp_path / str(seed), seed=seed, shape=(24, 24, 24))
        scans.append(store_scan(tmp_path / "store", image, mask, nside=2, voxel_mm=6))

    def peak(n: int) -> int:
        tracemalloc.start()
        sites = ["A", "B"] * (n // 2)
        maps = LogRishMaps(scans[:n])
        fit_rish_glm(maps, participants=sites, sites=sites, nside=2, degrees=(0, 2, 4))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(4)
    assert peak(12) < 1.1 * peak(4)
