"""`--reports-only` and `--boilerplate-only` at both levels, from what is on disk."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
import pytest
from report.group_study import GroupStudy

from bids_gevnet.cli.demo import compare_with_truth, draw_beside_truth, tell_results
from bids_gevnet.cli.demo import main as demo
from bids_gevnet.cli.reports import refresh_methods
from bids_gevnet.cli.run import main
from bids_gevnet.phantom.anatomy import grid_points
from bids_gevnet.phantom.fibres import crossing_region

PEOPLE = 4


@pytest.fixture
def study(tmp_path) -> tuple[Path, Path]:
    """A raw dataset of tables, and derivatives of both levels without images."""
    out = GroupStudy(
        tmp_path / "out", people=PEOPLE, sites=("A",), folds=2, pictures=False
    ).write()
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.10.0"}')
    rows = [f"sub-{n:03d}\t{'AP'[n % 2]}D" for n in range(1, PEOPLE + 1)]
    (raw / "participants.tsv").write_text("participant_id\tdiagnosis\n" + "\n".join(rows) + "\n")
    return raw, out


@pytest.mark.parametrize("level", ["participant", "group"])
def test_reports_of_both_levels_are_built_again(study, level, capsys):
    raw, out = study
    for path in out.glob("*.html"):
        path.write_text("old")
    before = {
        p: p.stat().st_mtime_ns for p in out.rglob("*.*") if p.suffix not in {".html", ".md"}
    }
    assert main([str(raw), str(out), level, "--reports-only"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        *(str(out / f"sub-{n:03d}.html") for n in range(1, PEOPLE + 1)),
        str(out / "group_report.html"),
    ]
    assert all(Path(line).read_text() != "old" for line in printed)
    # Nothing was trained or processed: everything else is as it was.
    assert before == {p: p.stat().st_mtime_ns for p in before}
    assert "cross-validation" in (out / "CITATION.md").read_text()


def test_the_methods_text_of_very_many_is_left_to_the_group_level(study):
    _, out = study
    text = out / "CITATION.md"
    refresh_methods(out, most=PEOPLE)
    assert "cross-validation" in text.read_text()
    text.write_text("old")
    refresh_methods(out, most=PEOPLE - 1)
    assert text.read_text() == "old"
    text.unlink()
    refresh_methods(out, most=PEOPLE - 1)  # one text is better than none
    assert "cross-validation" in text.read_text()


def test_subject_reports_alone_where_there_is_no_group_run(study, capsys):
    raw, out = study
    (out / "group_metrics.json").unlink()
    assert main([str(raw), str(out), "participant", "--reports-only"]) == 0
    assert "group_report.html" not in capsys.readouterr().out
    assert not (out / "group_report.html").exists()
    assert main([str(raw), str(out), "group", "--reports-only"]) == 2
    assert "run the group level first" in capsys.readouterr().err


def test_chosen_participants_only(study, capsys):
    raw, out = study
    assert main([str(raw), str(out), "group", "--reports-only", "--participant-label", "002"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(out / "sub-002.html"), str(out / "group_report.html")]


def test_methods_of_a_run_and_of_a_plan(study, tmp_path, capsys):
    raw, out = study
    assert main([str(raw), str(out), "group", "--boilerplate-only", "--folds", "7"]) == 0
    assert "2-fold cross-validation" in (out / "CITATION.md").read_text()  # what ran
    empty = tmp_path / "empty"
    command = [str(raw), str(empty), "group", "--boilerplate-only", "--folds", "4"]
    assert main([*command, "--network", "ckn2", "--harmonisation", "none"]) == 0
    text = (empty / "CITATION.md").read_text()
    assert "4-fold cross-validation" in text
    assert "Sites were not harmonised" in text
    assert f"{PEOPLE} participants were classified by diagnosis (AD, PD)" in text
    assert "DeepSphere" not in text
    assert not (empty / "models").exists()


def test_before_a_run_the_methods_are_those_of_the_plan(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    command = [str(dataset.root), str(out), "participant", "--boilerplate-only"]
    assert main([*command, "--skip-bids-validation", "--nside", "2"]) == 0
    text = (out / "CITATION.md").read_text()
    for planned in (
        "with its prediction from the others of its shell",
        "Susceptibility distortions were not corrected.",
        "threshold derived from Otsu's",
        "The mean b0 was registered to the template by an affine transform",
        "MNI152NLin2009aSym",
        "b = 1000 s/mm² (8 directions)",
        "48 points (nside 2)",
        "degrees up to 4",
        "The gradient table was checked",
    ):
        assert planned in text
    assert "(1 of 2" not in text
    assert "classified" not in text
    assert not list(out.glob("sub-*"))


def test_the_plan_names_the_network_of_the_model(dataset, trained_model, tmp_path):
    out = tmp_path / "out"
    command = [str(dataset.root), str(out), "participant", "--boilerplate-only"]
    assert main([*command, "--skip-bids-validation", "--model", str(trained_model)]) == 0
    text = (out / "CITATION.md").read_text()
    assert "Scans were classified by the network ckn2." in text
    assert "gauge equivariant Volterra network [" not in text


def test_the_demo_ends_with_the_answer_and_three_things_to_look_at(study, tmp_path, capsys):
    _, finished = study
    out = tmp_path / "demo"
    out.mkdir()
    (out / "sub-001.html").write_text((finished / "sub-001.html").read_text())
    assert tell_results(out) == 1  # there is no group report yet
    (out / "group_report.html").write_text("x")
    headline = {"sentence": "The groups can be told apart.", "numbers": "0.96 (0.78 to 0.99)"}
    (out / "group_metrics.json").write_text(json.dumps({"tasks": [{"headline": headline}]}))
    capsys.readouterr()
    assert tell_results(out) == 0
    said = capsys.readouterr().out
    assert said.startswith("Planted  In one group fibres cross at 50 instead of 80 degrees")
    assert f"\nFound    {headline['sentence']}\n" in said
    printed = [line.strip() for line in said.splitlines()]
    places = [line for line in printed if line.startswith(str(out))]
    names = ("group_report.html", "sub-001.html", "group_predictions.tsv")
    assert places == [str(out / name) for name in names]


def test_the_demo_does_not_tell_the_story_of_another_cohort(tmp_path, capsys):
    cohort = tmp_path / "cohort"
    cohort.mkdir()
    (cohort / "dataset_description.json").write_text("{}")
    assert demo([str(tmp_path)]) == 2
    assert "found another one" in capsys.readouterr().out
    assert [path.name for path in cohort.iterdir()] == ["dataset_description.json"]


def test_saliency_is_compared_with_the_region_that_differs(tmp_path):
    affine = np.diag([8.0, 8, 8, 1])
    affine[:3, 3] = -96, -128, -72
    shape = (25, 30, 24)
    region = crossing_region(grid_points(shape, affine)) > 0.5
    there, nowhere = np.where(region, 3.0, 1.0), np.random.default_rng(0).uniform(1, 2, shape)
    path, n = tmp_path / "saliency.nii.gz", int(region.sum())
    for values, found, ranks in ((there, n, "100%"), (nowhere, None, "5"), (-there, 0, "0%")):
        nib.save(nib.Nifti1Image(values.astype(np.float32), affine), path)
        said = compare_with_truth(path)
        assert f"elsewhere {ranks}" in said
        assert found is None or f"Of the {n} strongest voxels {found} lie" in " ".join(
            said.split()
        )


def test_the_distance_of_the_strongest_voxel_is_to_the_nearer_of_the_two_regions(tmp_path):
    affine = np.diag([16.0, 16, 16, 1])
    affine[:3, 3] = -96, -128, -72
    values = np.ones((13, 16, 13), np.float32)
    facts = tmp_path / "saliency.json"
    for index, distance in (((4, 7, 6), 8), ((8, 7, 6), 8), ((4, 7, 3), 54)):
        values[:] = 1
        values[index] = 2
        nib.save(nib.Nifti1Image(values, affine), tmp_path / "saliency.nii.gz")
        facts.write_text(json.dumps({"significant_voxels": 3, "brain_voxels": 90}))
        said = compare_with_truth(tmp_path / "saliency.nii.gz")
        assert f"most is {distance} mm from" in said
        assert said.endswith("marks 3 of 90 voxels as beyond chance.")


def test_the_picture_shows_saliency_and_truth_at_the_same_places(tmp_path):
    affine = np.diag([16.0, 16, 16, 1])
    affine[:3, 3] = -96, -128, -72
    shape = (13, 16, 13)
    region = crossing_region(grid_points(shape, affine)) > 0.5
    path, picture = tmp_path / "saliency.nii.gz", tmp_path / "both.png"
    nib.save(nib.Nifti1Image(np.where(region, 1.0, 0.25).astype(np.float32), affine), path)
    draw_beside_truth(path, picture)
    shown = plt.imread(picture)[..., :3]
    shown = shown[:, : int(0.85 * shown.shape[1])]  # without the bar of colours
    upper, lower = np.array_split((shown[..., 0] > 0.9) & (shown[..., 2] < 0.85), 2)
    assert upper.sum() > 1000
    assert upper.sum() == pytest.approx(lower.sum(), rel=0.02)
