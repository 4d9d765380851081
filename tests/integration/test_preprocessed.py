"""From derivatives of QSIPrep to reports without one correction; raw data give the same."""

import json
import shutil

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from phantom_scan import write_still_cohort
from preprocessed_layouts import read_raw, write_hcp, write_qsiprep

from bids_gevnet.bids.validation import validate_dataset
from bids_gevnet.cli.run import main
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

SPACE = "space-MNI152NLin2009aSym_res-9"
FAST = ("--output-resolution", "9", "--skip-bids-validation")
COHORT = {"groups": ("AD", "DLB"), "per_group": 6, "sites": 1, "voxel_mm": 8.0, "seed": 5}
TRAINING = (
    *("--folds", "3", "--epochs", "2", "--samples-per-class", "64", "--learning-rate", "3e-3"),
    *("--devices", "cpu:1"),
)
SMALL = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--devices", "cpu:1")


def samples(out, label, space=SPACE):
    path = out / f"sub-{label}/dwi/sub-{label}_{space}_desc-healpix_dwi.nii.gz"
    return np.asarray(nib.load(path).dataobj)


def facts(out, label):
    return json.loads((out / f"sub-{label}/dwi/sub-{label}_desc-report_facts.json").read_text())


def headline_of(out):
    return json.loads((out / "group_metrics.json").read_text())["tasks"][0]["headline"]


def predictions_of(out):
    """Probability of the second group: held-out people by model and scan."""
    table = pd.read_csv(out / "group_predictions.tsv", sep="\t")
    return table[table["scheme"] == "folds"].set_index(["model", "scan"])["prob_DLB"].sort_index()


def agreement(one, other):
    """Correlation over directions of two scans, voxel means taken off, where both have a brain."""
    both = (one[..., 0] != 0) & (other[..., 0] != 0)
    first, second = (x[both] - x[both].mean(axis=1, keepdims=True) for x in (one, other))
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory):
    """A still head from raw data without correction, and as QSIPrep would have left it."""
    folder = tmp_path_factory.mktemp("both")
    raw = write_still_cohort(folder / "raw")
    write_qsiprep(folder / "qsiprep", read_raw(raw, "001"))
    untouched = ("--correction", "none", "--denoise", "none", "--unring", "none")
    assert main([str(raw), str(folder / "a"), "participant", *untouched, *FAST]) == 0
    options = ("--derivatives", f"qsiprep={folder / 'qsiprep'}", "--write-graph", *FAST)
    assert main([str(raw), str(folder / "b"), "participant", *options]) == 0
    return folder


def test_spheres_are_those_of_the_raw_scan(both_ways):
    one, other = samples(both_ways / "a", "001"), samples(both_ways / "b", "001")
    assert one.shape == other.shape
    assert agreement(one, other) > 0.995
    inside = (one[..., 0] != 0) & (other[..., 0] != 0)
    assert np.sqrt(np.mean((one - other)[inside] ** 2)) < 0.01


def test_the_graph_holds_no_correction(both_ways):
    nodes = {path.parent.name for path in (both_ways / "b/work").rglob("_node.pklz")}
    assert {"take", "mask", "register", "standard", "sphere"} <= nodes
    assert not {"conform", "motion", "eddy", "topup"} & nodes


def test_facts_say_what_came_from_where(both_ways):
    known = facts(both_ways / "b", "001")
    assert known["source"]["pipeline"] == "qsiprep"
    assert known["source"]["version"] == "1.0.1"
    assert known["source"]["measures"]["t1_neighbor_corr"] == 0.79
    assert known["correction"][0]["method"] == "preprocessed"
    assert known["mask"]["method"] == "given"
    assert known["registration"]["source"] == "transform"
    assert known["registration"]["dice"] > 0.9
    assert not facts(both_ways / "a", "001").get("source")


def test_reports_and_methods_say_it_too(both_ways):
    page = (both_ways / "b/sub-001.html").read_text()
    text = (both_ways / "b/CITATION.md").read_text()
    assert "preprocessed by QSIPrep 1.0.1" in page
    assert "t1_neighbor_corr" in page
    assert "Phase encoding" not in page
    assert "The scan came corrected" in page
    assert "Gibbs ringing" not in page
    assert "Scans had been preprocessed by QSIPrep 1.0.1 [" in text
    assert "were not corrected again" in text
    assert "fits it best over the brain" in text
    assert "QSIPrep: an integrative platform" in text
    assert "QSIPrep" not in (both_ways / "a/CITATION.md").read_text()


def test_framewise_displacement_is_that_of_qsiprep(both_ways):
    name = "sub-001/dwi/sub-001_desc-confounds_timeseries.tsv"
    table, given = (
        pd.read_csv(both_ways / folder / name, sep="\t", na_values=["n/a"])
        for folder in ("b", "qsiprep")
    )
    column = "framewise_displacement"
    np.testing.assert_allclose(table[column], given[column], atol=1e-6)


def test_the_derivatives_are_valid_and_name_their_source(both_ways):
    out = both_ways / "b"
    assert [i for i in validate_dataset(out) if i.severity == "error"] == []
    links = json.loads((out / "dataset_description.json").read_text())["DatasetLinks"]
    assert links["qsiprep"] == (both_ways / "qsiprep").as_uri()
    sources = [
        source
        for path in (out / "sub-001" / "dwi").glob("*_dwi.json")
        for source in json.loads(path.read_text())["Sources"]
    ]
    assert "bids:qsiprep:sub-001/dwi/sub-001_space-ACPC_desc-preproc_dwi.nii.gz" in sources
    assert not [source for source in sources if source.startswith("bids:raw:")]
    folder = out / "sub-001" / "dwi"
    mask = json.loads((folder / "sub-001_desc-brain_mask.json").read_text())
    (transform,) = (json.loads(path.read_text()) for path in folder.glob("*_xfm.json"))
    prefix = "bids:qsiprep:sub-001"
    assert mask["Sources"] == [f"{prefix}/dwi/sub-001_space-ACPC_desc-brain_mask.nii.gz"]
    assert transform["Sources"] == [
        f"{prefix}/anat/sub-001_from-ACPC_to-MNI152NLin2009cAsym_mode-image_xfm.h5"
    ]
    (series,) = folder.glob("*_res-9_desc-preproc_dwi.json")
    assert "from the preprocessed volumes" in json.loads(series.read_text())["Description"]


def test_our_own_derivatives_are_input_again(both_ways):
    """Another resolution without a new correction or registration."""
    out = both_ways / "again"
    options = ("--output-resolution", "12", "--skip-bids-validation")
    assert main([str(both_ways / "a"), str(out), "participant", *options]) == 0
    known = facts(out, "001")
    assert known["source"]["pipeline"] == "bids_gevnet"
    assert known["registration"]["source"] == "transform"
    assert known["registration"]["transform"] == (
        "sub-001_from-dwi_to-MNI152NLin2009aSym_mode-image_xfm.txt"
    )


def test_a_template_of_templateflow_names_everything(both_ways, tmp_path, monkeypatch):
    """With a stand-in for its folder; the transform of QSIPrep leads to that very template."""
    from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

    name = "MNI152NLin2009cAsym"
    folder = tmp_path / "templateflow" / f"tpl-{name}"
    folder.mkdir(parents=True)
    nib.save(load_mni152_template(resolution=4), folder / f"tpl-{name}_res-02_T1w.nii.gz")
    mask = np.asarray(load_mni152_brain_mask(resolution=4).dataobj).astype(np.uint8)
    affine = load_mni152_brain_mask(resolution=4).affine
    image = nib.Nifti1Image(mask, affine)
    nib.save(image, folder / f"tpl-{name}_res-02_desc-brain_mask.nii.gz")
    monkeypatch.setenv("TEMPLATEFLOW_HOME", str(folder.parent))
    out = tmp_path / "out"
    options = ("--template", name, *FAST)
    assert main([str(both_ways / "qsiprep"), str(out), "participant", *options]) == 0
    written = {path.name for path in (out / "sub-001/dwi").iterdir()}
    assert f"sub-001_space-{name}_res-9_desc-healpix_dwi.nii.gz" in written
    assert f"sub-001_from-dwi_to-{name}_mode-image_xfm.txt" in written
    assert not [file for file in written if "2009aSym" in file]
    assert facts(out, "001")["registration"]["template"] == name
    assert f"The template was {name}" in (out / "CITATION.md").read_text()


def test_the_methods_can_be_planned(both_ways, tmp_path):
    options = ("--derivatives", str(both_ways / "qsiprep"), "--boilerplate-only")
    out = tmp_path / "out"
    assert main([str(both_ways / "raw"), str(out), "participant", *options]) == 0
    assert "Scans had been preprocessed by QSIPrep 1.0.1" in (out / "CITATION.md").read_text()


def test_a_dry_run_says_what_is_missing(both_ways, tmp_path, capsys):
    data = tmp_path / "qsiprep"
    shutil.copytree(both_ways / "qsiprep", data)
    next(data.glob("sub-001/dwi/*.bvec")).unlink()
    assert main([str(data), str(tmp_path / "out"), "participant", "--dry-run"]) == 1
    assert "gradient directions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option",
    ["--correction=model", "--denoise=mppca", "--unring=on", "--bias-correct=on", "--use-syn-sdc"],
)
def test_what_is_for_raw_scans_is_refused(both_ways, capsys, tmp_path, option):
    """A step that was asked for is never left out silently."""
    command = [str(both_ways / "qsiprep"), str(tmp_path / "out"), "participant", "--dry-run"]
    assert main([*command, option]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"found {option.replace('=', ' ')}, which is for raw scans" in printed


def test_output_over_the_derivatives_is_refused(both_ways, capsys):
    data = str(both_ways / "qsiprep")
    options = ("--derivatives", f"qsiprep={data}")
    assert main([str(both_ways / "raw"), data, "participant", *options]) == 2
    assert "never written to" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module", params=[2.0, 0.0], ids=["effect", "no-effect"])
def effect(request):
    """How much the groups differ, in standard sizes."""
    return request.param


@pytest.fixture(scope="module")
def studies(tmp_path_factory, effect):
    """One study twice: scans with motion and eddy currents, corrected here; and QSIPrep's.

    QSIPrep's derivatives are the same people, anatomy and noise of the phantom with a head that
    lies still: what a perfect correction would have left.
    """
    folder = tmp_path_factory.mktemp("studies")
    raw, derivatives = folder / "raw", folder / "qsiprep"
    cohort = {**COHORT, "micro_effect": effect, "macro_effect": effect}
    write_cohort(raw, tiny_settings(**cohort))
    still = write_still_cohort(folder / "still", **cohort)
    for person in sorted(still.glob("sub-*")):
        write_qsiprep(derivatives, read_raw(still, person.name.removeprefix("sub-")))
    shutil.copy(raw / "participants.tsv", derivatives)
    coarse = ("--output-resolution", "16", "--nside", "2", "--skip-bids-validation")
    for data, out in ((raw, folder / "a"), (derivatives, folder / "b")):
        assert main([str(data), str(out), "participant", *coarse]) == 0
        assert main([str(data), str(out), "group", *TRAINING]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_only_the_raw_study_was_corrected(studies):
    nodes = {path.parent.name for path in (studies / "b/work").rglob("_node.pklz")}
    assert "take" in nodes
    assert not {"conform", "denoise", "unring", "motion", "eddy", "topup"} & nodes
    methods = {facts(studies / "a", f"{n:03d}")["correction"][0]["method"] for n in range(1, 13)}
    assert methods <= {"model", "eddy"}
    tables = sorted((studies / "a").glob("sub-*/dwi/*_desc-confounds_timeseries.tsv"))
    found = [pd.read_csv(path, sep="\t")[["trans_x", "trans_y", "trans_z"]] for path in tables]
    assert len(found) == 12
    assert np.median([table.abs().to_numpy().max() for table in found]) > 1  # mm


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_corrected_spheres_are_those_of_heads_that_lay_still(studies):
    for number in range(1, 13):
        one, other = (
            samples(studies / way, f"{number:03d}", SPACE.replace("res-9", "res-16"))[..., 1:]
            for way in "ab"
        )  # the first volume is a b0 of 1
        assert agreement(one, other) > 0.95


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_study_from_raw_data_and_from_qsiprep_ends_with_one_verdict(studies, effect):
    """Learning rate and batches are those of benchmarks/learning.py, found on other cohorts."""
    found = [headline_of(studies / way) for way in "ab"]
    assert found[0]["told_apart"] == found[1]["told_apart"] == (effect > 0)
    assert found[0]["level"] == found[1]["level"]
    one, other = (predictions_of(studies / way) for way in "ab")
    assert one.index.equals(other.index)
    if effect:  # without one, each answer is a coin's
        for model in (found[0]["best"], "ckn2+gevnet"):
            assert ((one.loc[model] > 0.5) == (other.loc[model] > 0.5)).mean() >= 10 / 12


@pytest.mark.slow
def test_a_mixture_of_sources_lists_the_source_as_a_confound(tmp_path):
    raw = write_still_cohort(tmp_path / "raw", groups=("AD", "PD"), per_group=2)
    labels = sorted(path.name.removeprefix("sub-") for path in raw.glob("sub-*"))
    people = pd.read_csv(raw / "participants.tsv", sep="\t").set_index("participant_id")
    for label in labels:
        writer = write_qsiprep if people.loc[f"sub-{label}", "diagnosis"] == "AD" else write_hcp
        writer(tmp_path / writer.__name__, read_raw(raw, label))
    out = tmp_path / "out"
    options = ("--derivatives", str(tmp_path / "write_qsiprep"), str(tmp_path / "write_hcp"))
    assert main([str(raw), str(out), "participant", *FAST, *options]) == 0
    assert main([str(raw), str(out), "group", *SMALL]) == 0
    assert set(pd.read_csv(out / "group_cohort.tsv", sep="\t")["source"]) == {
        "QSIPrep 1.0.1",
        "the HCP diffusion pipeline",
    }
    metrics = json.loads((out / "group_metrics.json").read_text())
    assert any("the source is a confound" in text for text in metrics["warnings"])
    assert "Source alone" in (out / "group_report.html").read_text()
