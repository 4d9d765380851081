"""Pieces of the group report against known truth: outliers, gains, transforms."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.group_study import AFFINE, GroupStudy, head
from report.pictures import decode

from bids_gevnet.bids.derivatives import BRAIN_MASK, tensor_ending
from bids_gevnet.bids.writing import write_image
from bids_gevnet.report.group.cohort import (
    count_sites,
    describe_classes,
    far_from_site,
    measure_scans,
)
from bids_gevnet.report.group.harmonisation import (
    RishReader,
    draw_gains,
    draw_site_effect,
    explained_by_site,
    group_mask,
    measure_site_effect,
    thin_out,
    why_unchanged,
)
from bids_gevnet.report.group.mean_maps import draw_mean_maps
from bids_gevnet.report.group.mosaic import draw_mosaic, read_transform
from bids_gevnet.report.group.quality_strips import HEIGHT, draw_strips, nice_ticks
from bids_gevnet.report.group.results import Evaluation, Headline, read_headline, read_results
from bids_gevnet.report.group.study_files import CohortScan, FoldModel, read_study
from bids_gevnet.report.scan_files import Volume, find_scans, read_volume


def scan(key: int, label: str, site: str, **more) -> CohortScan:
    known = {"age": 70.0, "sex": "F", "motion": 0.1} | more
    name = f"sub-{key:02d}"
    return CohortScan(f"p{key}", name, "", name, label, site, **known)


def test_the_mean_is_over_the_scans_that_have_maps_on_one_grid(tmp_path):
    study = read_study(GroupStudy(tmp_path / "out", people=6, folds=2).write())
    files = [scan.files for scan in study.scans]
    brain = read_volume(files[0].standard(BRAIN_MASK))
    paths = [scan.standard(tensor_ending("fa")) for scan in files]
    for number, path in enumerate(paths[:4]):
        write_image(path, (0.2 * (number % 2) + 0.3) * brain.data, brain.affine)
    paths[4].unlink()
    write_image(paths[5], np.ones((3, 3, 3), np.float32), np.eye(4))
    maps = draw_mean_maps(study.scans)
    assert maps.scans == 4
    assert maps.missing == list(study.scans[4:])
    shades = decode(maps.fa.slices[0].images["map"])
    middle = shades[len(shades) // 2, shades.shape[1] // 2]
    assert middle == pytest.approx(np.full(3, 255 * 0.4 / 0.8), abs=4)  # the mean, of 0 to 0.8
    colours = decode(maps.colours[0].images["colours"])
    assert colours[..., 0].max() == 255
    assert colours[..., 1:].max() == 0  # all fibres run from right to left
    for path in paths:
        path.unlink(missing_ok=True)
    assert draw_mean_maps(study.scans) is None


def test_a_scan_far_from_its_site_is_ringed_and_named_in_the_plot():
    scans = [scan(n, "AD", "A", motion=0.1 + 0.01 * n) for n in range(9)]
    scans.append(scan(9, "AD", "A", motion=3.0))
    (strip,) = [s for s in draw_strips(scans, measure_scans(scans)) if s.measure.key == "motion"]
    assert strip.svg.count('class="far-ring"') == 1
    assert ">sub-09</text>" in strip.svg
    assert strip.svg.count('class="usual"') == 1  # one site with enough scans
    few = draw_strips(scans[:5], measure_scans(scans[:5]))[0]
    assert "usual" not in few.svg
    assert "far-" not in few.svg


@pytest.mark.parametrize("values", [(3.0, 3.01, 3.02), (-3.0, -3.01, -3.02)])
def test_names_of_neighbouring_outliers_do_not_overlap(values):
    scans = [scan(n, "AD", "A", motion=0.1 + 0.01 * n) for n in range(12)]
    scans += [scan(20 + n, "AD", "A", motion=value) for n, value in enumerate(values)]
    (strip,) = [s for s in draw_strips(scans, measure_scans(scans)) if s.measure.key == "motion"]
    heights = sorted(float(y) for y in re.findall(r'"far-name" x="[^"]*" y="([^"]*)"', strip.svg))
    assert len(heights) == 3
    assert min(np.diff(heights)) >= 10
    assert 0 < heights[0] < heights[-1] <= HEIGHT


def test_sites_count_people_not_scans():
    twice = [scan(1, "AD", "A"), scan(2, "PD", "A"), scan(3, "PD", "B")]
    twice.append(CohortScan("p4", "sub-01", "ses-2", "sub-01_ses-2", "AD", "A", 70, "F", 0.1))
    table = count_sites(twice)
    assert table.counts.tolist() == [[1, 1], [0, 1]]
    assert table.alone == ["B"]
    rows = {row.label: row for row in describe_classes(twice)}
    assert (rows["AD"].participants, rows["AD"].scans) == (1, 2)
    assert rows["Everybody"].sex == "3 F"


def test_one_far_value_is_found_at_its_own_site_only():
    rng = np.random.default_rng(0)
    values = [*rng.normal(1, 0.1, 10), *rng.normal(5, 0.1, 10)]
    sites = ["A"] * 10 + ["B"] * 10
    assert far_from_site(values, sites) == []  # far between sites is no outlier
    values[3] = 5.0
    assert far_from_site(values, sites) == [3]
    assert far_from_site(values[:4], sites[:4]) == []  # too few to say


def test_missing_values_are_left_out():
    values = [None, *np.linspace(1, 2, 8), None, 50.0]
    assert far_from_site(values, ["A"] * len(values)) == [10]


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_span_the_range(low, extent):
    high = low + extent
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8


def test_strip_plots_put_values_in_order():
    scans = [scan(i, "AD", "A", motion=value) for i, value in enumerate((0.3, 0.1, 0.2))]
    (plot,) = draw_strips(scans, measure_scans(scans))
    heights = [
        float(part.split(")")[0].split(" ")[1]) for part in plot.svg.split("translate(")[1:]
    ]
    assert np.argsort(heights).tolist() == [0, 2, 1]  # up is more
    assert "median 0.2 mm" in plot.summary


def test_site_explains_what_it_explains():
    sites = ["A"] * 20 + ["B"] * 20
    rng = np.random.default_rng(0)
    noise = rng.normal(size=40)
    assert explained_by_site(noise, sites) < 0.2
    shifted = noise + np.where(np.arange(40) < 20, 0, 20)
    assert explained_by_site(shifted, sites) > 0.98
    assert explained_by_site(noise, ["A"] * 40) is None
    assert explained_by_site(np.ones(4), ["A", "A", "B", "B"]) is None


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    return GroupStudy(tmp_path_factory.mktemp("parts") / "out", people=12, folds=3).write()


def test_energies_follow_from_gains_exactly(study):
    study_files = read_study(study)
    folds = study_files.folds_of("first-v-second", "ckn2+gevnet")
    effect = measure_site_effect(folds, RishReader(study_files.scans))
    assert len(effect.sites) == 12
    # Degree 0 of site B had 1.2 times the amplitude; the gains of fold k are (1 + k / 10^4) / 1.2.
    change = effect.after - effect.before
    of_b = np.array(effect.sites) == "B"
    assert np.abs(change[~of_b]).max() < 1e-9
    assert np.abs(change[:, 1:]).max() < 1e-9
    expected = {2 * np.log((1 + 1e-4 * fold) / 1.2) for fold in (1, 2, 3)}
    assert set(np.round(change[of_b, 0], 5)) == {round(value, 5) for value in expected}
    assert effect.explained("before", 0) > 0.9
    assert effect.explained("after", 0) < 0.3


def test_scans_are_taken_with_the_gains_of_their_own_test_fold(study):
    """The control: with the gains of another fold the energies come out differently."""
    study_files = read_study(study)
    folds = study_files.folds_of("first-v-second", "ckn2+gevnet")
    reader = RishReader(study_files.scans)
    right = measure_site_effect(folds, reader).after
    gains = [model.gains for model in folds]
    for model, other in zip(folds, gains[1:] + gains[:1], strict=True):
        model.__dict__["gains"] = other
    assert np.abs(measure_site_effect(folds, reader).after - right).max() > 1e-5


def test_gain_maps_show_the_site_that_is_changed(study):
    study_files = read_study(study)
    final = study_files.final_of("first-v-second", "ckn2+gevnet")
    maps = draw_gains(final, group_mask(study_files))
    assert [(own.site, own.degree) for own in maps] == [("B", 0), ("B", 2)]
    assert maps[0].mean == pytest.approx(100 * (1 / 1.2 - 1), abs=0.01)
    assert maps[1].mean == 0


def test_every_shell_has_energies_and_gains_of_its_own(tmp_path):
    """The second shell of B is half as strong as it was, and its gains bring it back."""
    out = GroupStudy(tmp_path / "out", people=6, folds=2).write()
    for path in out.rglob("*_param-rish*_dwimap.nii.gz"):
        image = nib.load(path)
        data = image.get_fdata(dtype=np.float32)
        write_image(path, np.stack([data, data / 4], axis=-1), image.affine)
    study_files = read_study(out)
    folds = study_files.folds_of("first-v-second", "ckn2+gevnet")
    for model in folds:
        gains = np.concatenate([model.gains.gains, 2 * np.ones_like(model.gains.gains)], axis=-1)
        both = replace(model.gains, gains=gains, b_values=(1000.0, 3000.0))
        model.__dict__["gains"] = both
    effect = measure_site_effect(folds, RishReader(study_files.scans))
    count = len(effect.degrees)
    assert effect.shells == ("b = 1000", "b = 3000")
    assert effect.before.shape[1] == 2 * count
    np.testing.assert_allclose(
        effect.before[:, count:], effect.before[:, :count] - np.log(4), atol=1e-5
    )
    np.testing.assert_allclose(effect.after[:, count:], effect.before[:, :count], atol=1e-5)
    picture = draw_site_effect(effect, name="h1")
    assert "Degree 0, b = 1000" in picture
    assert "Degree 2, b = 3000" in picture
    maps = draw_gains(folds[0], group_mask(study_files))
    assert {own.picture.name.split(", ")[-1] for own in maps} == {"b = 1000", "b = 3000"}


def test_thinning_keeps_means():
    rng = np.random.default_rng(0)
    grid = rng.normal(3, 1, (99, 117, 95))
    thin = thin_out(grid)
    assert thin.size <= 60_000
    assert thin.mean() == pytest.approx(3, abs=0.02)


def test_transform_of_a_scan_is_undone(study, tmp_path):
    """A head that was moved and whose transform says so lies where the template is."""
    out = Path(shutil.copytree(study, tmp_path / "out"))
    move = np.eye(4)
    move[:3, :3] = [[0.9, -0.2, 0], [0.2, 0.95, 0.1], [0, -0.1, 1.05]]
    move[:3, 3] = 20, -15, 10
    mask, b0 = head()
    dwi = out / "sub-001/dwi"
    write_image(dwi / "sub-001_dwiref.nii.gz", b0, move @ AFFINE)
    flip = np.diag([-1.0, -1, 1, 1])
    itk = flip @ move @ flip  # from the template to the scan, in LPS
    numbers = " ".join(f"{v:.9f}" for v in (*itk[:3, :3].ravel(), *itk[:3, 3]))
    xfm = dwi / "sub-001_from-dwi_to-MNI152NLin2009aSym_mode-image_xfm.txt"
    straight = draw_mosaic(read_study(out).scans[:1], Volume(mask.astype(float), AFFINE))
    xfm.write_text(f"Parameters: {numbers}\nFixedParameters: 0 0 0\n")
    found = read_transform(find_scans(out, "001")[0])
    np.testing.assert_allclose(found, np.linalg.inv(move), atol=1e-6)
    back = draw_mosaic(read_study(out).scans[:1], Volume(mask.astype(float), AFFINE))
    original = draw_mosaic(read_study(study).scans[:1], Volume(mask.astype(float), AFFINE))
    assert _differ(back, original) < 3
    assert _differ(straight, original) > 10  # the control: without its transform it is elsewhere


def _pixels(mosaic) -> np.ndarray:
    import base64
    import io

    from PIL import Image

    data = base64.b64decode(mosaic.sheets[0][0].split(",", 1)[1])
    return np.asarray(Image.open(io.BytesIO(data)), float)


def _differ(one, other) -> float:
    return float(np.abs(_pixels(one) - _pixels(other)).mean())


def test_broken_transforms_leave_no_picture(study, tmp_path):
    out = Path(shutil.copytree(study, tmp_path / "out"))
    for number, text in enumerate(
        ("", "Parameters: 1 2\n", "Parameters: " + "0 " * 12 + "\nFixedParameters: 0 0 0\n"), 1
    ):
        path = next(out.glob(f"sub-00{number}/dwi/*_xfm.txt"))
        path.write_text(text)
    mask, _ = head()
    mosaic = draw_mosaic(read_study(out).scans, Volume(mask.astype(float), AFFINE))
    assert [missing.scan for missing in mosaic.missing] == ["sub-001", "sub-002", "sub-003"]
    assert len(mosaic.tiles) == 9


def test_a_site_from_the_table_is_never_a_path(study, tmp_path):
    out = Path(shutil.copytree(study, tmp_path / "out"))
    table = out / "group_cohort.tsv"
    table.write_text(table.read_text().replace("sub-001\tn/a\tsub-001", "sub-../../x\tn/a\tx"))
    first = read_study(out).scans[0]
    assert (first.files, first.report) == (None, "")


def test_a_headline_of_any_other_kind_is_none():
    assert read_headline({"sentence": "So.", "level": "good", "numbers": 3}) == Headline(
        "good", "So."
    )
    for raw in (None, 3, {}, {"sentence": "So."}, {"sentence": 1, "level": "good"}):
        assert read_headline(raw).level == "note"


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ((), "the sites do not differ by more"),
        (
            ("Site and diagnosis cannot be separated: no",),
            "site and diagnosis cannot be separated",
        ),
        (
            ("Site A has 2 participants: none of its signal could be harmonised.",),
            "too few people",
        ),
        (("Too few scans to harmonise sites.",), "too few people"),
    ],
)
def test_the_right_reason_is_given_where_nothing_was_harmonised(texts, reason):
    card = {"sites": ["A", "B"], "warnings": list(texts)}
    model = FoldModel(Path("x"), "t", "n", 1, card)
    assert reason in why_unchanged([model])
    alone = FoldModel(Path("x"), "t", "n", 1, {"sites": ["A"]})
    assert why_unchanged([alone]) == "there was only one site"


def test_calibration_needs_people():
    pooled = {"ece": 0.1, "accuracy": 0.5}
    few = Evaluation(pooled | {"n_participants": 99}, [], [], {}, [], [], {}, {})
    many = Evaluation(pooled | {"n_participants": 100}, [], [], {}, [], [], {}, {})
    assert [row[0] for row in few.rows] == ["Accuracy"]
    assert [row[0] for row in many.rows] == ["Accuracy", "Calibration error"]


def test_results_of_an_unknown_file_are_none():
    assert read_results({}) == []
    assert read_results({"tasks": "text"}) == []
    assert read_results({"tasks": [{"models": [{"schemes": {"folds": 3}}]}]})[0].main is None
