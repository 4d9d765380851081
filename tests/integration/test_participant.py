"""The participant level as a user runs it, on a tiny phantom cohort."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from bids_gevnet.bids.validation import validate_dataset
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

NO_NETWORK = """\
import socket
_connect = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX:
        raise AssertionError(f'the network was asked for {address}')
    return _connect(self, address)
socket.socket.connect = connect
def getaddrinfo(*args, **kwargs):
    raise AssertionError(f'the network was asked for {args}')
socket.getaddrinfo = getaddrinfo
"""


def command(data: Path, out: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "bids_gevnet.cli.run", str(data), str(out), "participant"),
        *("--output-resolution", "9", "-v", *options),
    ]


def run(data: Path, out: Path, *options: str, **environment: str):
    """Run the app with a HOME that cannot be written to and without a network."""
    guard = data.parent / "guard"
    guard.mkdir(exist_ok=True)
    (guard / "sitecustomize.py").write_text(NO_NETWORK)
    env = os.environ | {"HOME": "/proc", "PYTHONPATH": str(guard)} | environment
    return subprocess.run(
        command(data, out, *options), env=env, capture_output=True, text=True, check=False
    )


def tree_bytes(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in without
    }


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """Two participants of two groups, in a folder whose name is no plain word."""
    folder = tmp_path_factory.mktemp("cohort") / "Köln data"
    write_cohort(folder, tiny_settings(groups=("AD", "PD"), sites=1))
    return folder


@pytest.fixture(scope="module")
def finished(cohort, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out put"
    before = tree_bytes(cohort)
    done = run(cohort, out)
    assert done.returncode == 0, done.stderr
    assert tree_bytes(cohort) == before
    return out


def test_every_derivative_is_there(finished):
    folder = finished / "sub-001" / "dwi"
    names = {path.name for path in folder.iterdir()}
    space = "space-MNI152NLin2009aSym_res-9"
    for ending in (
        "desc-preproc_dwi.nii.gz",
        "desc-preproc_dwi.bval",
        "desc-preproc_dwi.bvec",
        "desc-preproc_dwi.json",
        "desc-brain_mask.nii.gz",
        "dwiref.nii.gz",
        "desc-confounds_timeseries.tsv",
        "from-dwi_to-MNI152NLin2009aSym_mode-image_xfm.txt",
        f"{space}_desc-preproc_dwi.nii.gz",
        f"{space}_desc-brain_mask.nii.gz",
        f"{space}_desc-healpix_dwi.nii.gz",
        f"{space}_desc-healpix_dwi.json",
        *(f"{space}_model-sh_param-rish{degree}_dwimap.nii.gz" for degree in (0, 2, 4, 6)),
    ):
        assert f"sub-001_{ending}" in names
    assert (finished / "sub-001.html").stat().st_size > 10_000
    assert (finished / "logs" / "settings.toml").exists()


def test_the_methods_text_is_that_of_the_default_run(finished):
    text = (finished / "CITATION.md").read_text()
    for sentence in (
        "with its prediction from the others of its shell",
        "Susceptibility distortions were not corrected.",
        "The template was MNI152NLin2009aSym",
        "interpolated once.",
        "The gradient table could not be checked",
    ):
        assert sentence in text
    assert "table was checked" not in text
    assert "could not be read" not in (finished / "sub-001.html").read_text()


def test_the_validator_finds_no_error(finished):
    errors = [issue for issue in validate_dataset(finished) if issue.severity == "error"]
    assert errors == []
    description = json.loads((finished / "dataset_description.json").read_text())
    assert description["GeneratedBy"][0]["Name"] == "bids_gevnet"


def test_only_names_that_bids_lacks_are_hidden_from_the_validator(finished, tmp_path):
    bare = Path(shutil.copytree(finished, tmp_path / "bare"))
    hidden = [
        line for line in (bare / ".bidsignore").read_text().splitlines() if line.startswith("*_")
    ]
    (bare / ".bidsignore").unlink()
    issues = validate_dataset(bare)
    errors = [issue for issue in issues if issue.severity == "error"]
    objected = {Path(issue.location).name for issue in errors}
    for path in bare.glob("sub-*/dwi/*"):
        assert (path.name in objected) == any(path.match(line) for line in hidden), path.name
    # What BIDS does name has all that it recommends.
    wanting = {issue.location for issue in issues if issue.code == "SIDECAR_KEY_RECOMMENDED"}
    assert {location for location in wanting if Path(location).name not in objected} == set()
    assert "README_FILE_MISSING" not in {issue.code for issue in issues}


def test_sidecars_say_what_a_file_is_made_of(finished):
    folder = finished / "sub-001/dwi"
    sidecars = {path: json.loads(path.read_text()) for path in folder.glob("*.json")}
    sources = [source for content in sidecars.values() for source in content.get("Sources", [])]
    own = [source.removeprefix("bids::") for source in sources if source.startswith("bids::")]
    assert len(own) > 6
    assert all((finished / path).is_file() for path in own)
    (transform,) = folder.glob("*_xfm.json")
    assert any(str(transform.with_suffix(".txt").name) in path for path in own)
    series = sidecars[folder / "sub-001_desc-preproc_dwi.json"]
    assert series["Correction"][0]["Method"] == "model"
    assert series["MagneticFieldStrength"] == 3
    assert "PhaseEncodingDirection" not in series


def test_samples_are_signal_fractions_inside_the_brain(finished):
    stem = finished / "sub-001/dwi/sub-001_space-MNI152NLin2009aSym_res-9"
    samples = nib.load(f"{stem}_desc-healpix_dwi.nii.gz")
    mask = np.asarray(nib.load(f"{stem}_desc-brain_mask.nii.gz").dataobj) > 0
    values = samples.get_fdata()
    assert samples.shape == (*mask.shape, 1 + 96)
    assert np.all(values[~mask] == 0)
    assert np.all(values[mask][:, 0] == 1)  # the b0 that the others are a fraction of
    assert np.all((values[mask] > -0.3) & (values[mask] < 1.3))
    about = json.loads(Path(f"{stem}_desc-healpix_dwi.json").read_text())
    assert (about["Nside"], about["Ordering"], about["AntipodalPairs"]) == (4, "NESTED", True)


def test_framewise_displacement_follows_from_the_motion_beside_it(finished, cohort):
    table = pd.read_csv(
        finished / "sub-001/dwi/sub-001_desc-confounds_timeseries.tsv", sep="\t", na_values="n/a"
    )
    truth = pd.read_csv(cohort / "sourcedata/truth/sub-001/sub-001_motion.tsv", sep="\t")
    assert len(table) == len(truth)
    changes = table.diff().abs()
    by_hand = changes[["trans_x", "trans_y", "trans_z"]].sum(axis=1) + 50 * changes[
        ["rot_x", "rot_y", "rot_z"]
    ].sum(axis=1)
    np.testing.assert_allclose(table["framewise_displacement"][1:], by_hand[1:], atol=1e-3)
    assert np.isnan(table["framewise_displacement"][0])
    assert table["framewise_displacement"][1:].mean() > 0.1


def test_a_second_run_repeats_nothing(finished, cohort):
    before = tree_bytes(finished, without=("work", "logs"))
    done = run(cohort, finished)
    assert done.returncode == 0
    assert "registration" not in done.stderr
    assert tree_bytes(finished, without=("work", "logs")) == before


@pytest.mark.slow
def test_killed_at_every_stage_it_ends_with_the_same_bytes(finished, cohort, tmp_path):
    """Kill -9 as soon as each stage has ended, then let it finish."""
    out = tmp_path / "out put"
    seen: list[str] = []
    for stage in ("conform", "motion correction", "brain mask", "registration", "derivatives"):
        process = subprocess.Popen(
            command(cohort, out, "--participant-label", "001", "--nprocs", "1"),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for line in process.stderr:
            if " INFO sub-001" in line:
                name = line.split("sub-001", 1)[1].strip().rsplit("  ", 1)[0].strip()
                assert name not in seen, f"{name} ran twice"
                seen.append(name)
            if stage in line:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    done = run(cohort, out)
    assert done.returncode == 0, done.stderr
    same = tree_bytes(finished, without=("work", "logs"))
    assert tree_bytes(out, without=("work", "logs")) == same


def test_one_broken_participant_is_named_and_the_other_done(cohort, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(cohort, data)
    image = data / "sub-001/dwi/sub-001_dwi.nii.gz"
    loaded = nib.load(image)
    # All voxels equal: every header is right and there is no brain in it.
    nib.save(nib.Nifti1Image(np.full(loaded.shape, 7, np.int16), loaded.affine), image)
    done = run(data, tmp_path / "out")
    assert done.returncode == 1
    assert "sub-001: " in done.stderr
    assert "1 of 2 participants done" in done.stdout
    assert (tmp_path / "out/sub-002.html").exists()
    assert not (tmp_path / "out/sub-001/dwi").exists()


def test_nan_voxels_and_missing_metadata_are_reported_not_fatal(cohort, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(cohort, data)
    stem = data / "sub-001/dwi/sub-001_dwi"
    loaded = nib.load(f"{stem}.nii.gz")
    values = loaded.get_fdata(dtype=np.float32)
    values[3, 3, 3, :2] = [np.nan, np.inf]
    nib.save(nib.Nifti1Image(values, loaded.affine), f"{stem}.nii.gz")
    Path(f"{stem}.json").unlink()
    label = ("--participant-label", "001", "--skip-bids-validation", "--correction", "none")
    done = run(data, tmp_path / "out", *label)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "out/sub-001/dwi/sub-001_desc-report_facts.json").read_text())
    assert facts["conform"][0]["not_finite"] == 2
    assert facts["acquisition"][0]["readout_is_dummy"]
    assert "dummy" in (tmp_path / "out/sub-001.html").read_text()


def test_two_runs_on_one_participant_do_not_mix(cohort, tmp_path):
    out = tmp_path / "out"
    first = subprocess.Popen(
        command(cohort, out, "--participant-label", "001"), stderr=subprocess.PIPE, text=True
    )
    for line in first.stderr:
        if "conform" in line:
            break
    second = run(cohort, out, "--participant-label", "001")
    first.kill()
    first.wait()
    first.stderr.close()
    assert second.returncode == 2
    assert "one that is still going" in second.stderr


def test_output_that_cannot_be_written(cohort):
    done = run(cohort, Path("/proc/out"))
    assert done.returncode == 2
    assert "a folder that can be written to for OUTPUT_DIR" in done.stderr


FAST = ("--output-resolution", "12", "--correction", "none", "--skip-bids-validation")
ONE = ("--participant-label", "001", *FAST)


def run_after(mounts: str, data: Path, out: Path, *options: str):
    """Run the app in a mount namespace of its own, prepared by a line of shell."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount file systems")
    script = f'{mounts} && exec "$@"'
    wrapped = ["unshare", "--mount", "sh", "-c", script, "sh", *command(data, out, *options)]
    return subprocess.run(wrapped, capture_output=True, text=True, check=False)


def test_a_full_disk_is_said(cohort, tmp_path):
    out = tmp_path / "small"
    out.mkdir()
    done = run_after(f"mount -t tmpfs -o size=2m tmpfs '{out}'", cohort, out, *ONE)
    assert done.returncode == 1
    assert "room on the disk" in done.stderr
    assert "run the same command again" in done.stderr


def test_input_on_a_read_only_mount(cohort, tmp_path):
    out = tmp_path / "out"
    done = run_after(
        f"mount --bind '{cohort}' '{cohort}' && mount -o remount,bind,ro '{cohort}' "
        f"&& ! touch '{cohort}/written' 2>/dev/null",
        *(cohort, out, *ONE),
    )
    assert done.returncode == 0, done.stderr
    assert (out / "sub-001.html").exists()


def test_two_equal_runs_are_joined_and_give_what_one_gives(cohort, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(cohort, data)
    folder = data / "sub-001/dwi"
    for path in list(folder.glob("sub-001_dwi.*")):
        for number in (1, 2):
            name = path.name.replace("_dwi", f"_run-{number}_dwi")
            shutil.copy(path, folder / name)
        path.unlink()
    alone, joined = tmp_path / "alone", tmp_path / "joined"
    assert run(cohort, alone, *ONE).returncode == 0
    done = run(data, joined, *ONE)
    assert done.returncode == 0, done.stderr
    samples, masks, tables = [], [], []
    for out in (alone, joined):
        (image,) = (out / "sub-001/dwi").glob("*desc-healpix_dwi.nii.gz")
        samples.append(nib.load(image).get_fdata())
        (mask,) = (out / "sub-001/dwi").glob("*_res-12_desc-brain_mask.nii.gz")
        masks.append(nib.load(mask).get_fdata() > 0)
        (table,) = (out / "sub-001/dwi").glob("*_res-12_desc-preproc_dwi.bval")
        tables.append(table.read_text().split())
    # The runs are laid on each other once more, which may move an edge by a fraction of a voxel.
    both = masks[0] & masks[1]
    assert both.sum() > 0.98 * max(mask.sum() for mask in masks)
    assert np.abs(samples[1] - samples[0])[both].mean() < 5e-3
    assert len(tables[1]) == 2 * len(tables[0])
