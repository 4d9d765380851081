"""A minimal BIDS dataset that tests may break in every way they like."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import settings

# The same examples every time, so that a change and not chance turns a test red;
# HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("steady", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

N_B0, N_DIRECTIONS = 2, 8
SHAPE = (6, 7, 5, N_B0 + N_DIRECTIONS)


@dataclass(frozen=True)
class TinyDataset:
    """Paths of a dataset of two participants with one diffusion series each."""

    root: Path

    def dwi(self, extension: str, *, subject: str = "01") -> Path:
        return self.root / f"sub-{subject}" / "dwi" / f"sub-{subject}_dwi{extension}"

    def add_participant(self, subject: str) -> None:
        rng = np.random.default_rng(int(subject))
        self.dwi("", subject=subject).parent.mkdir(parents=True)
        image = nib.Nifti1Image(
            rng.integers(1, 1000, SHAPE).astype(np.int16), np.diag([2.0, 2, 2, 1])
        )
        nib.save(image, self.dwi(".nii.gz", subject=subject))
        directions = rng.normal(size=(3, N_DIRECTIONS))
        bvecs = np.hstack([np.zeros((3, N_B0)), directions / np.linalg.norm(directions, axis=0)])
        np.savetxt(self.dwi(".bvec", subject=subject), bvecs, fmt="%.6f")
        bvals = [[0.0] * N_B0 + [1000.0] * N_DIRECTIONS]
        np.savetxt(self.dwi(".bval", subject=subject), bvals, fmt="%g")
        sidecar = {"PhaseEncodingDirection": "j", "TotalReadoutTime": 0.05}
        self.dwi(".json", subject=subject).write_text(json.dumps(sidecar))


def make_tiny_dataset(root: Path) -> TinyDataset:
    """Write a dataset of two participants, sub-01 and sub-02."""
    root.mkdir()
    description = {"Name": "Tiny", "BIDSVersion": "1.10.0", "DatasetType": "raw"}
    (root / "dataset_description.json").write_text(json.dumps(description))
    (root / "README").write_text("A dataset for tests.\n")
    (root / "participants.tsv").write_text("participant_id\tdiagnosis\nsub-01\tAD\nsub-02\tPD\n")
    tiny = TinyDataset(root)
    for subject in ("01", "02"):
        tiny.add_participant(subject)
    return tiny


@pytest.fixture
def dataset(tmp_path: Path) -> TinyDataset:
    return make_tiny_dataset(tmp_path / "data")
