"""--use-syn-sdc from BIDS to spheres: nearer to a head without a field, and said everywhere."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from phantom_scan import write_still_cohort

from bids_gevnet.cli.run import main

COHORT = {"groups": ("AD",), "sites": 1, "voxel_mm": 6.0, "directions": 8, "seed": 11, "t1w": True}
OPTIONS = ("--correction", "model", "--denoise", "none", "--unring", "none", "--nprocs", "1")
OPTIONS = (*OPTIONS, "--output-resolution", "8", "--nside", "1", "--skip-bids-validation")


def samples(out):
    path = out / "sub-001/dwi/sub-001_space-MNI152NLin2009aSym_res-8_desc-healpix_dwi.nii.gz"
    return np.asarray(nib.load(path).dataobj)[..., 1:]  # after a b0 of 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One head without a field, and with one that is left alone or estimated from the T1w."""
    folder = tmp_path_factory.mktemp("syn")
    plain = write_still_cohort(folder / "plain", **COHORT)
    distorted = write_still_cohort(folder / "distorted", **COHORT, reverse_b0=True)
    shutil.rmtree(distorted / "sub-001" / "fmap")
    for name, data, more in (
        ("truth", plain, ()),
        ("left", distorted, ()),
        ("estimated", distorted, ("--use-syn-sdc",)),
    ):
        assert main([str(data), str(folder / name), "participant", *OPTIONS, *more]) == 0
    return folder


@pytest.mark.slow
def test_spheres_come_nearer_to_those_of_a_head_without_a_field(folder):
    truth, left, estimated = (samples(folder / name) for name in ("truth", "left", "estimated"))
    inside = (truth[..., 0] != 0) & (left[..., 0] != 0) & (estimated[..., 0] != 0)
    before, after = (np.sqrt(np.mean((x - truth)[inside] ** 2)) for x in (left, estimated))
    assert after < 0.9 * before


@pytest.mark.slow
def test_facts_report_and_methods_say_where_the_field_came_from(folder):
    for name, outcome, from_t1w in (
        ("left", "no_opposite_b0", False),
        ("estimated", "corrected", True),
    ):
        out = folder / name
        facts = json.loads((out / "sub-001/dwi/sub-001_desc-report_facts.json").read_text())
        assert facts["correction"][0]["susceptibility"] == outcome
        assert facts["correction"][0]["field_from_t1w"] == from_t1w
        page = (out / "sub-001.html").read_text()
        assert ("Displacement by susceptibility" in page) == from_t1w
        assert ("intensity-inverted" in (out / "CITATION.md").read_text()) == from_t1w
