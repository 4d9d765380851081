"""The group report without a browser: complete, self-contained, escaped, tolerant, the same."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report.group_study import GroupStudy, edit_json
from report.pages import Page

from bids_gevnet.report.group.page import build_group_report

SECTIONS = (
    "alerts", "summary", "cohort", "participants", "quality", "means", "mosaic",
    "harmonisation", "results", "ablation", "saliency", "learning", "audit", "methods",
    "environment",
)  # fmt: skip
EVIL = "<script>alert('x')</script>"
EVIL_SITE = '"><img src=http://evil.example onerror=alert(1)>'
PAPERS = ("https://doi.org/", "https://arxiv.org/", "https://www.jmlr.org/",
          "https://pmc.ncbi.nlm.nih.gov/")  # fmt: skip


@pytest.fixture(scope="module")
def page(group_report) -> Page:
    return Page(group_report)


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A study without images, quick to report on: copy it before changing it."""
    return GroupStudy(
        tmp_path_factory.mktemp("bare") / "out", people=8, folds=2, pictures=False
    ).write()


@pytest.fixture
def study(bare, tmp_path) -> Path:
    return Path(shutil.copytree(bare, tmp_path / "out"))


def test_every_section_is_there_and_in_the_contents(page):
    assert set(SECTIONS) <= set(page.ids)
    links = {found["href"] for found in page.named("a") if (found["href"] or "").startswith("#")}
    assert {f"#{name}" for name in SECTIONS} <= links
    assert {link[1:] for link in links} <= set(page.ids)  # no link leads nowhere
    assert "not available" not in page.text


def test_nothing_is_loaded_from_anywhere(page):
    assert page.loaded
    assert all(address.startswith(("data:", "#")) for address in page.loaded)
    assert not re.search(r"url\(\s*['\"]?(?!#)", page.source)
    outside = re.findall(r"https?://[^\s\"<)]+", page.source)
    assert outside
    assert all(address.startswith(PAPERS) for address in outside)


def test_identifiers_are_unique(page):
    assert len(page.ids) == len(set(page.ids))


def test_people_without_sight_find_their_way(page):
    page.assert_accessible()
    assert all(found.get("scope") for found in page.named("th"))
    for found in page.named("table"):
        assert found.get("class")
    grids = [found for found in page.named("table") if "grid" in (found.get("class") or "")]
    assert len(page.named("caption")) == len(grids)
    for found in page.named("button"):
        assert found.get("type") in {"button", "reset"}


def test_lines_are_vectors_and_images_are_png(page):
    pictures = [found["href"] for found in page.named("image")]
    pictures += [found["src"] for found in page.named("img")]
    assert len(pictures) > 20
    assert all(href.startswith("data:image/png;base64,") for href in pictures)
    charts = [found for found in page.named("svg") if found.get("class") == "chart"]
    assert len(charts) == 6  # ROC, PR, energies, angles, learning curves of two networks
    assert not re.search(r"#010203|#040506|#070809", page.source)


def test_a_prediction_comes_with_its_caution(page):
    for section in ("summary", "participants", "results", "ablation", "saliency"):
        start = page.source.index(f'<section id="{section}"')
        end = page.source.index("</section>", start)
        assert "Research use only; not for diagnosis" in page.source[start:end], section


def test_every_participant_has_a_row_a_dot_in_each_plot_and_a_picture(page, group_output):
    table = pd.read_csv(group_output / "group_cohort.tsv", sep="\t")
    keys = [f"p{number}" for number in range(1, len(table) + 1)]
    for tag, count in (("tr", 1), ("figure", 1), ("path", 12)):
        found = [attrs["data-p"] for attrs in page.named(tag) if attrs.get("data-p")]
        assert sorted(found) == sorted(keys * count), tag
    links = {found["href"] for found in page.named("a")}
    assert {f"sub-{number:03d}.html" for number in range(1, 17)} <= links


def test_figures_are_those_of_the_metrics(page, group_output):
    metrics = json.loads((group_output / "group_metrics.json").read_text())
    models = metrics["tasks"][0]["models"]
    for model in models:
        value = model["schemes"]["folds"]["pooled"]["balanced_accuracy"]
        text = f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
        assert text in page.text
        assert model["title"] in page.text
    assert "98.36 %" in page.text  # Table 3 of the paper
    assert "The paper's patients" in page.text


def test_wrong_predictions_are_marked(page, group_output):
    table = pd.read_csv(group_output / "group_predictions.tsv", sep="\t")
    own = table[(table["model"] == "ckn2+gevnet") & (table["scheme"] == "folds")]
    wrong = int((own["label"] != own["predicted"]).sum())
    assert 0 < wrong < len(own)
    assert sum("data-wrong" in found for found in page.named("tr")) == wrong


def test_harmonisation_takes_the_site_away(page):
    share = re.search(r"Before (\d+) % .*? After (\d+) %", page.text)
    assert share
    assert int(share[1]) > 90  # the second site has 1.44 times the energy of degree 0
    assert int(share[2]) < 20


def test_same_files_same_bytes(study):
    first = build_group_report(study).read_bytes()
    assert build_group_report(study).read_bytes() == first


def test_text_of_the_dataset_is_escaped(tmp_path):
    # The dollar would start a formula in a chart; control characters are no text in SVG.
    folder = GroupStudy(
        tmp_path / "out",
        groups=(EVIL, "P$D\\frac{"),
        sites=(EVIL_SITE, "日本 \x1b[31m"),
        people=8,
        folds=2,
    ).write()
    edit_json(folder / "group_metrics.json", warnings=[f"{EVIL} goes with {EVIL_SITE}"])
    edit_json(folder / "logs/run-group.json", command=["bids_gevnet", EVIL])
    page = Page(build_group_report(folder))
    assert len(page.named("script")) == 1
    assert not [found for _, found in page.tags if "onerror" in found]
    assert page.text.count(EVIL) > 15
    assert EVIL_SITE in page.text
    assert [found["src"] for found in page.named("img") if "evil" in found["src"]] == []


@pytest.mark.slow
def test_five_hundred_people_still_make_a_small_file(tmp_path):
    names = [f"Hospital number {number}" for number in range(10)]
    folder = GroupStudy(tmp_path / "out", people=500, sites=names, folds=5, pictures=False).write()
    rng = np.random.default_rng(0)
    _pretend_pictures(folder, rng)
    path = build_group_report(folder)
    assert path.stat().st_size < 15_000_000
    page = Page(path)
    assert len([found for found in page.named("figure") if found.get("class") == "tile"]) == 500
    assert len(page.named("image")) == 9  # sheets of sixty


def _pretend_pictures(folder: Path, rng: np.random.Generator) -> None:
    """Noise compresses worst: no real scan makes a larger picture."""
    from bids_gevnet.bids.writing import write_image

    noise = folder / "noise.nii.gz"
    affine = np.diag([2.5, 2.5, 2.5, 1.0])
    affine[:3, 3] = -100, -140, -90
    write_image(noise, rng.uniform(0, 1, (80, 100, 80)).astype(np.float32), affine)
    transform = folder / "identity.txt"
    transform.write_text("Parameters: 1 0 0 0 1 0 0 0 1 0 0 0\nFixedParameters: 0 0 0\n")
    for dwi in folder.glob("sub-*/dwi"):
        name = dwi.parent.name
        (dwi / f"{name}_dwiref.nii.gz").symlink_to(noise)
        (dwi / f"{name}_from-dwi_to-MNI152NLin2009aSym_mode-image_xfm.txt").symlink_to(transform)


@pytest.mark.parametrize(
    "name", ["group_metrics.json", "group_predictions.tsv", "group_cohort.tsv", "models"]
)
@pytest.mark.parametrize("damage", ["missing", "garbled"])
def test_any_file_may_be_missing_or_broken(study, name, damage):
    path = study / name
    files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
    for file in files:
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(b"\x00\xffnonsense\n\t" * 20)
    page = Page(build_group_report(study))
    assert f"{name} is missing or cannot be read" in page.text
    assert set(SECTIONS) - {"ablation"} <= set(page.ids)


def with_every_leaf(node: object, value: object) -> object:
    if isinstance(node, dict):
        return {key: with_every_leaf(item, value) for key, item in node.items()}
    if isinstance(node, list) and node and isinstance(node[0], dict):
        return [with_every_leaf(item, value) for item in node]
    return value


@pytest.mark.parametrize("value", [None, "text", 1e400, True, [1, None], {"a": {"b": 1}}])
def test_any_figure_may_be_of_any_kind(study, value):
    path = study / "group_metrics.json"
    path.write_text(json.dumps(with_every_leaf(json.loads(path.read_text()), value)))
    for card in study.glob("models/*/*/model.json"):
        names = ("options", "warnings", "participants", "fingerprints", "sites", "digest")
        edit_json(card, **dict.fromkeys(names, value))
    page = Page(build_group_report(study))
    assert set(SECTIONS) - {"ablation"} <= set(page.ids)


def test_who_is_left_out_is_listed_by_reason(study):
    entries = [("sub-07", EVIL), ("sub-08", "no diagnosis"), ("sub-09_ses-2", "no diagnosis")]
    listed = [{"participant": s[4:6], "scan": s, "reason": reason} for s, reason in entries]
    edit_json(study / "group_metrics.json", left_out=listed)
    page = Page(build_group_report(study))
    assert "3 are not in the cohort" in page.text
    assert {"no diagnosis", "sub-08, sub-09_ses-2", EVIL, "sub-07"} <= set(page.words)
    assert EVIL not in page.source


@pytest.mark.parametrize("value", [None, 3, "x", {}, [1, None, {"scan": []}]])
def test_a_broken_list_of_those_left_out_does_no_harm(study, value):
    edit_json(study / "group_metrics.json", left_out=value)
    assert "Cohort" in Page(build_group_report(study)).text


def test_a_leak_is_an_error_on_top(study):
    card = next(study.glob("models/*/fold-1/model.json"))
    content = json.loads(card.read_text())
    everyone = json.loads(next(study.glob("models/*/final/model.json")).read_text())
    edit_json(card, participants=everyone["participants"])
    assert content["participants"] != everyone["participants"]
    page = Page(build_group_report(study))
    assert "1 error" in page.text
    top = page.text.index("Errors and warnings")
    assert top < page.text.index("Nobody is in training and test of a fold".lower()[1:])


def test_confounded_sites_are_a_warning(tmp_path):
    study = GroupStudy(tmp_path / "out", people=12, folds=2, pictures=False)
    for number, person in enumerate(study.who):
        object.__setattr__(person, "site", "A" if number % 2 == 0 else "B")
    page = Page(build_group_report(study.write()))
    assert "every site has only one of the groups" in page.text
    assert page.text.index("every site has only one") < page.text.index("Errors and warnings", 400)
    assert "Only one diagnosis at A, B" in page.text


def test_without_a_group_run_the_report_says_so(tmp_path):
    page = Page(build_group_report(tmp_path))
    assert "group_cohort.tsv is missing" in page.text
    assert page.text.count("not available") > 5


def test_sessions_get_a_column_of_their_own(study):
    assert "Scan" not in _headings(Page(build_group_report(study)))
    table = study / "group_cohort.tsv"
    table.write_text(table.read_text().replace("sub-001\tn/a", "sub-001\tses-1"))
    assert "Scan" in _headings(Page(build_group_report(study)))


def _headings(page: Page) -> list[str]:
    return re.findall(r'data-sort="\w+">([^<]*)<', page.source)


def test_the_headline_is_the_first_thing_on_the_page(page, group_output):
    metrics = json.loads((group_output / "group_metrics.json").read_text())
    found = metrics["tasks"][0]["headline"]
    main = page.source[page.source.index("<main") :]
    text = re.sub(r"<[^>]+>", " ", main)
    assert found["sentence"] in text
    assert found["numbers"] in text
    assert text.index(found["sentence"]) < text.index("No errors") if "No errors" in text else True
    assert text.index(found["sentence"]) < 300


def test_networks_are_compared_in_pairs(page):
    assert "minus" in page.text
    assert "p, corrected for 1 pair" in page.text


def test_folds_and_final_model_are_told_apart_where_only_one_is_harmonised(tmp_path):
    """No fold changes anything, the final model does: both are said."""
    study = GroupStudy(tmp_path / "out", people=8, folds=2)
    folder = study.write()
    for fold in (1, 2):
        ones = study._gains(fold)
        ones.gains[:] = 1
        place = study.folder_of(study.networks[0]) / f"fold-{fold}"
        ones.save(place / "harmonisation.npz")
        edit_json(
            place / "model.json", warnings=["Site A: none of its signal could be harmonised."]
        )
    page = Page(build_group_report(folder))
    assert "In no fold was any signal changed, because there were too few people" in page.text
    assert "The final model, trained on everybody, does change them" in page.text
