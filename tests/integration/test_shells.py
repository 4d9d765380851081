"""Two shells through both levels and a prediction, on a tiny phantom cohort."""

import json

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from bids_gevnet.cli.run import main
from bids_gevnet.learn.models.files import read_card
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

FAST = ("--output-resolution", "20", "--nside", "1", "--correction", "none")
FAST = (*FAST, "--skip-bids-validation", "--nprocs", "1")
SMALL = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--devices", "cpu:1")
TRAINED = ("001", "002", "003", "004")
STEM = "dwi/sub-{0}_space-MNI152NLin2009aSym_res-20"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Five participants with two shells, all of them processed, four of them trained on."""
    folder = tmp_path_factory.mktemp("shells")
    cohort, out = folder / "cohort", folder / "out"
    settings = tiny_settings(
        groups=("AD", "PD"), per_group=3, b_values=(1000.0, 3000.0), directions=8, shell_effect=1.0
    )
    write_cohort(cohort, settings)
    assert main([str(cohort), str(out), "participant", *FAST, "--shell", "all"]) == 0
    label = ("--participant-label", *TRAINED)
    assert main([str(cohort), str(out), "group", *SMALL, *label]) == 0
    return folder


def test_samples_of_both_shells_are_in_one_file(study):
    stem = study / "out/sub-001" / STEM.format("001")
    image = nib.load(f"{stem}_desc-healpix_dwi.nii.gz")
    about = json.loads(stem.with_name(f"{stem.name}_desc-healpix_dwi.json").read_text())
    assert np.allclose(about["BValue"], [1000, 3000], atol=20)
    assert image.shape[3] == 1 + 2 * 6  # after a b0
    bvals = np.loadtxt(f"{stem}_desc-healpix_dwi.bval")
    np.testing.assert_allclose(bvals, [0, *np.repeat(about["BValue"], 6)], atol=1)
    inside = np.asarray(nib.load(f"{stem}_desc-brain_mask.nii.gz").dataobj) > 0
    low, high = np.split(image.get_fdata()[inside][:, 1:], 2, axis=1)
    assert 1.3 * high.mean() < low.mean() < 1  # the stronger weighting leaves less signal
    rish = nib.load(f"{stem}_model-sh_param-rish0_dwimap.nii.gz")
    energy = rish.get_fdata()[inside]
    assert energy.shape[1] == 2
    assert (energy[:, 0] > energy[:, 1]).mean() > 0.9


def test_the_model_knows_its_shells(study):
    card = read_card(study / "out/models/AD-v-PD/final")
    assert np.allclose(card.b_values, [1000, 3000], atol=20)
    report = (study / "out/group_report.html").read_text()
    assert "channels of the network's input" in report.replace("&#39;", "'")
    assert "saw them decorrelated over training volumes" in report
    weights = load_file(study / "out/models/AD-v-PD/final/model.safetensors")
    assert weights["whitening.mean"][0] > 1.3 * weights["whitening.mean"][1] > 0
    saliency = json.loads((study / "out/models/AD-v-PD/saliency.json").read_text())
    assert sum(saliency["shell_shares"]) == pytest.approx(1)
    assert len(saliency["shell_shares"]) == 2
    subject = (study / "out/sub-001.html").read_text()
    assert "Shells on the sphere" in subject
    assert "b = 3000, degree 2" in subject


def test_a_new_scan_is_sampled_on_the_shells_of_the_model(study):
    out = study / "new"
    options = ("--participant-label", "006", "--model", str(study / "out/models/AD-v-PD/final"))
    assert main([str(study / "cohort"), str(out), "participant", *FAST, *options]) == 0
    table = pd.read_csv(out / "sub-006/dwi/sub-006_model-ckn2gevnet_prediction.tsv", sep="\t")
    assert table["probability"].sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--shell", "1000"), 2, "the shells of the model, b = "),
        ((), 1, "a shell near b = 300"),
    ],
)
def test_a_scan_without_the_models_shells_is_refused_when_it_is_planned(
    study, capsys, tmp_path, options, code, sentence
):
    write_cohort(tmp_path / "one", tiny_settings(groups=("AD",), directions=8))
    options = (*options, "--model", str(study / "out/models/AD-v-PD/final"), "--dry-run")
    command = [str(tmp_path / "one"), str(tmp_path / "out"), "participant", *FAST, *options]
    assert main(command) == code
    printed = capsys.readouterr()
    assert sentence in printed.out + printed.err


def test_a_cohort_that_lacks_a_shell_is_refused_with_names(study, capsys):
    """sub-004 as if it had been processed without --shell all: nobody is trained."""
    options = ("--participant-label", "004", *FAST)
    assert main([str(study / "cohort"), str(study / "mixed"), "participant", *options]) == 0
    for label in TRAINED[:3]:
        (study / f"mixed/sub-{label}").symlink_to(study / f"out/sub-{label}")
    assert main([str(study / "cohort"), str(study / "mixed"), "group", *SMALL]) == 2
    refusal = capsys.readouterr().err
    assert "no single shell near b = 300" in refusal
    assert "in sub-004" in refusal
    other = main([str(study / "cohort"), str(study / "out"), "group", "--shell", "1000", *SMALL])
    assert other == 2
    assert "as --shell asks for" in capsys.readouterr().err
