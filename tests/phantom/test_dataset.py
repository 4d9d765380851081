import hashlib
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.phantom import PhantomSettings, tiny_settings
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.dataset import INCOMPLETE_MARKER, is_phantom, write_cohort
from bids_gevnet.phantom.simulation import simulate_participant

SETTINGS = tiny_settings(directions=8)
EVERYTHING = tiny_settings(directions=8, reverse_b0=True, t1w=True, outliers=0.5, sites=3)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    out = tmp_path_factory.mktemp("plain") / "cohort"
    write_cohort(out, SETTINGS, threads=2)
    return out


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("everything") / "a folder with spaces ü"
    write_cohort(out, EVERYTHING)
    return out


def digests(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def validate(folder):
    """Issues of the offline BIDS validator."""
    command = shutil.which("bids-validator-deno", path=str(Path(sys.executable).parent))
    assert command is not None
    done = subprocess.run(
        [command, str(folder), "--format", "json"], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    assert report["summary"]["totalFiles"] > 0
    return report["issues"]["issues"]


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_validator_finds_no_error(name, request):
    issues = validate(request.getfixturevalue(name))
    assert [i for i in issues if i["severity"] == "error"] == []
    # What is left are recommended fields that a simulation has no value for.
    codes = {i["code"] for i in issues}
    assert codes <= {"SIDECAR_KEY_RECOMMENDED", "JSON_KEY_RECOMMENDED", "TOO_FEW_AUTHORS"}


def test_validator_would_find_one(plain, tmp_path):
    """Negative control: the same dataset with a broken gradient file."""
    broken = tmp_path / "broken"
    shutil.copytree(plain, broken)
    (broken / "sub-001" / "dwi" / "sub-001_dwi.bval").write_text("0 1000\n")
    assert any(i["severity"] == "error" for i in validate(broken))


def test_same_seed_same_bytes_whatever_the_threads(plain, tmp_path):
    write_cohort(tmp_path / "again", SETTINGS, threads=1)
    assert digests(tmp_path / "again") == digests(plain)


def test_another_seed_gives_other_images(plain, tmp_path):
    write_cohort(tmp_path / "other", replace(SETTINGS, seed=1, groups=("AD",)))
    name = "sub-001/dwi/sub-001_dwi.nii.gz"
    assert digests(tmp_path / "other")[name] != digests(plain)[name]
    # Labels are the same in every cohort; by its name a model knows that these are other people.
    about = "dataset_description.json"
    assert digests(tmp_path / "other")[about] != digests(plain)[about]


def test_members_keep_their_bytes_when_the_cohort_grows(plain, tmp_path):
    write_cohort(tmp_path / "larger", replace(SETTINGS, per_group=2))
    small, large = digests(plain), digests(tmp_path / "larger")
    members = [name for name in small if "sub-" in name]
    assert len(members) > 30
    assert all(large[name] == small[name] for name in members)


def test_files_hold_what_was_simulated(plain):
    spec = plan_cohort(SETTINGS)[1]
    scan = simulate_participant(SETTINGS, spec)
    stem = plain / "sub-002" / "dwi" / "sub-002_dwi"
    image = nib.load(f"{stem}.nii.gz")
    np.testing.assert_allclose(image.affine, scan.affine, atol=1e-4)
    np.testing.assert_allclose(image.get_qform(), image.get_sform(), atol=1e-3)
    np.testing.assert_allclose(image.get_fdata(), scan.data, atol=0.51)
    np.testing.assert_array_equal(np.loadtxt(f"{stem}.bval"), scan.bvals)
    np.testing.assert_allclose(np.loadtxt(f"{stem}.bvec").T, scan.bvecs_fsl, atol=1e-7)
    sidecar = json.loads(Path(f"{stem}.json").read_text())
    assert sidecar["PhaseEncodingDirection"] == scan.site.phase_encoding
    assert sidecar["TotalReadoutTime"] == pytest.approx(
        sidecar["EffectiveEchoSpacing"] * (image.shape[1] - 1)
    )
    for key in ("Manufacturer", "ManufacturersModelName", "MagneticFieldStrength", "EchoTime"):
        assert sidecar[key]


def test_truth_files_hold_the_truth(everything):
    spec = plan_cohort(EVERYTHING)[0]
    scan = simulate_participant(EVERYTHING, spec)
    stem = everything / "sourcedata" / "truth" / "sub-001" / "sub-001"
    motion = pd.read_csv(f"{stem}_motion.tsv", sep="\t")
    assert list(motion) == ["trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z"]
    np.testing.assert_allclose(motion, scan.truth.motion, atol=1e-7)
    eddy = pd.read_csv(f"{stem}_eddy.tsv", sep="\t")
    np.testing.assert_allclose(eddy, scan.truth.eddy, atol=1e-7)
    dropped = pd.read_csv(f"{stem}_dropped.tsv", sep="\t")
    np.testing.assert_allclose(dropped, scan.truth.dropped)
    pose = json.loads(Path(f"{stem}_pose.json").read_text())["TemplateToScanner"]
    np.testing.assert_allclose(pose, scan.truth.pose)
    gains = json.loads(Path(f"{stem}_site.json").read_text())["Gains"]
    assert gains == {"0": 1.0, "2": 1.0, "4": 1.0}
    fibres = nib.load(f"{stem}_fibres.nii.gz").get_fdata()
    np.testing.assert_allclose(fibres.reshape(scan.truth.fibres.shape), scan.truth.fibres)
    mask = nib.load(f"{stem}_mask.nii.gz").get_fdata() > 0
    np.testing.assert_array_equal(mask, scan.truth.mask)
    for name in ("tissue", "fractions", "regions", "fieldhz"):
        assert nib.load(f"{stem}_{name}.nii.gz").shape[:3] == mask.shape
    assert "Conventions" in (everything / "sourcedata" / "truth" / "README").read_text()


def test_reverse_b0_is_a_fieldmap_of_its_run(everything):
    for label in ("001", "002", "003"):
        (run,) = (everything / f"sub-{label}" / "dwi").glob("*.nii.gz")
        (pair,) = (everything / f"sub-{label}" / "fmap").glob("*_epi.json")
        forward = json.loads(run.with_name(run.name.replace(".nii.gz", ".json")).read_text())
        reverse = json.loads(pair.read_text())
        directions = {forward["PhaseEncodingDirection"], reverse["PhaseEncodingDirection"]}
        assert directions == {"j", "j-"}
        assert reverse["IntendedFor"] == [f"bids::sub-{label}/dwi/{run.name}"]
        labels = {p.name.split("_dir-")[1][:2] for p in (run, pair)}
        assert labels == {"AP", "PA"}


def test_participants_table(plain):
    table = pd.read_csv(plain / "participants.tsv", sep="\t", dtype={"participant_id": str})
    assert list(table) == ["participant_id", "diagnosis", "site", "age", "sex"]
    assert list(table.diagnosis) == ["AD", "DLB", "PD"]
    assert set(table.site) == {"A", "B"}
    assert set(json.loads((plain / "participants.json").read_text())) == set(table) - {
        "participant_id"
    }


def test_settings_are_kept_with_the_truth(plain, tmp_path):
    stored = json.loads((plain / "sourcedata" / "truth" / "settings.json").read_text())
    assert PhantomSettings(**{**stored, "groups": tuple(stored["groups"])}) == replace(
        SETTINGS, b_values=stored["b_values"]
    )
    noiseless = replace(SETTINGS, groups=("X",), snr=math.inf)
    write_cohort(tmp_path / "noiseless", noiseless)
    text = (tmp_path / "noiseless" / "sourcedata" / "truth" / "settings.json").read_text()
    assert json.loads(text)["snr"] is None  # JSON has no infinity


def test_images_carry_no_time_stamp(plain):
    header = (plain / "sub-001" / "dwi" / "sub-001_dwi.nii.gz").read_bytes()[:10]
    assert header[4:8] == b"\0\0\0\0"


def test_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"thesis\.txt"):
            write_cohort(tmp_path, SETTINGS, overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_bids_dataset_is_not_taken_for_a_phantom(tmp_path):
    for content in ('{"Name": "x", "GeneratedBy": [{"Name": "fmriprep"}]}', "[1]", "{", "null"):
        (tmp_path / "dataset_description.json").write_text(content)
        assert not is_phantom(tmp_path)


def test_earlier_phantom_needs_overwrite(plain, tmp_path):
    out = tmp_path / "cohort"
    shutil.copytree(plain, out)
    with pytest.raises(InputError, match="--overwrite"):
        write_cohort(out, SETTINGS)
    assert digests(out) == digests(plain)
    smaller = replace(SETTINGS, groups=("X",))
    write_cohort(out, smaller, overwrite=True)
    assert sorted(p.name for p in out.glob("sub-*")) == ["sub-001"]
    assert [p.name for p in (out / "sourcedata" / "truth").glob("sub-*")] == ["sub-001"]


@pytest.mark.parametrize("foreign", ["derivatives/result.txt", "sourcedata/raw/scan.dcm"])
def test_overwrite_never_deletes_what_the_phantom_did_not_write(plain, tmp_path, foreign):
    out = tmp_path / "cohort"
    shutil.copytree(plain, out)
    (out / foreign).parent.mkdir(parents=True)
    (out / foreign).write_text("mine")
    before = digests(out)
    with pytest.raises(InputError, match=foreign.rsplit("/", 1)[0]):
        write_cohort(out, SETTINGS, overwrite=True)
    assert digests(out) == before


def test_interrupted_cohort_is_no_dataset_and_can_be_overwritten(plain, tmp_path):
    out = tmp_path / "cohort"

    def stop(spec):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_cohort(out, SETTINGS, progress=stop)
    assert not (out / "dataset_description.json").exists()
    assert (out / INCOMPLETE_MARKER).exists()
    with pytest.raises(InputError, match="--overwrite"):
        write_cohort(out, SETTINGS)
    write_cohort(out, SETTINGS, overwrite=True)
    assert digests(out) == digests(plain)


def test_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="a file at"):
        write_cohort(tmp_path / "file", SETTINGS)
    with pytest.raises(InputError, match="can be written"):
        write_cohort(tmp_path / "file" / "below", SETTINGS)
