"""The subject report without a browser: complete, self-contained, escaped, tolerant, the same."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report.fact_files import add_prediction, drop_images, edit_facts
from report.pages import Page

from bids_gevnet.bids.derivatives import CONFOUNDS, FACTS
from bids_gevnet.report.scan_files import find_scans, read_failed_stages
from bids_gevnet.report.subject.page import build_subject_report

SECTIONS = (
    "summary", "colours", "acquisition", "gradients", "correction", "motion", "quality", "mask",
    "template", "sphere", "rish",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(pristine, tmp_path_factory) -> Page:
    out = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("page") / "out"))
    return Page(build_subject_report(out, "01"))


def test_every_section_is_there_and_in_the_contents(page):
    wanted = [f"s1-{name}" for name in SECTIONS] + ["alerts", "methods", "environment"]
    assert set(wanted) <= set(page.ids)
    links = {found["href"] for found in page.named("a") if (found["href"] or "").startswith("#")}
    assert {f"#{name}" for name in wanted} <= links
    assert {link[1:] for link in links} <= set(page.ids)  # no link leads nowhere
    assert "not available" in page.text  # the FA that the facts leave out
    assert page.text.count("not available") == 1


def test_nothing_is_loaded_from_anywhere(page):
    assert page.loaded
    assert all(address.startswith(("data:", "#")) for address in page.loaded)
    assert not re.search(r"url\(\s*['\"]?(?!#)", page.source)
    assert "@import" not in page.source
    (policy,) = [m for m in page.named("meta") if m.get("http-equiv")]
    assert "default-src 'none'" in policy["content"]
    outside = re.findall(r"https?://[^\s\"<)]+", page.source)
    assert all(
        address.startswith(("https://doi.org/", "https://arxiv.org/")) for address in outside
    )


def test_it_is_small(page):
    assert len(page.source.encode()) < 3_000_000


def test_identifiers_are_unique(page):
    assert len(page.ids) == len(set(page.ids))


def test_people_without_sight_find_their_way(page):
    assert page.named("html")[0]["lang"] == "en"
    assert {"main", "nav", "header", "footer"} <= {tag for tag, _ in page.tags}
    assert next(tag for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)) == "h1"
    page.assert_accessible()


def test_lines_are_vectors_and_images_are_png(page):
    pictures = [found["href"] for found in page.named("image")]
    assert len(pictures) > 40
    assert all(href.startswith("data:image/png;base64,") for href in pictures)
    charts = [found for found in page.named("svg") if found.get("class") == "chart"]
    assert len(charts) == 6  # motion, carpet, and a profile for each of four voxels
    outlines = [found for found in page.named("path") if "outline" in (found.get("class") or "")]
    assert len(outlines) >= 20


def test_charts_follow_the_theme(page):
    # Sentinel colours that were left in would be nearly black in both themes.
    assert not re.search(r"#010203|#040506|#070809", page.source)
    assert "var(--ink)" in page.source


def test_fallbacks_are_told_on_top_and_in_place(page):
    top = page.text.index("Errors and warnings")
    assert top < page.text.index("a dummy: the sidecar has no usable readout time")
    assert page.text.count("a guess: the sidecar has no PhaseEncodingDirection") == 2
    assert (
        "eddy currents, susceptibility distortions and outlier slices were not corrected"
        in page.text
    )


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [("fits", "fits"), ("wrong", "looks wrong"), ("undecided", "not decided")],
)
def test_only_a_table_that_fits_is_good(derivatives, outcome, shown):
    (confounds,) = derivatives.rglob(f"*_{CONFOUNDS}")
    (pd.read_csv(confounds, sep="\t") * 0).to_csv(confounds, sep="\t", index=False)  # a still head
    edit_facts(
        derivatives,
        acquisition=[],
        correction=[{"method": "eddy", "susceptibility": "corrected"}],
        quality={
            "gradient_checks": [{"outcome": outcome, "text": "so it is"}],
            "shell_signals": [{"b_value": 0.0, "volumes": 1, "snr": 31.0}],
            "noise_from": "misfit",
        },
    )
    page = Page(build_subject_report(derivatives, "01"))
    assert f"Gradient table {shown}" in page.text
    assert "Signal to noise 31 of b0, noise by the misfit of the tensor" in page.text
    assert ("✓ Good" in page.text) == (outcome == "fits")


def test_same_files_same_bytes(derivatives):
    first = build_subject_report(derivatives, "01").read_bytes()
    assert build_subject_report(derivatives, "01").read_bytes() == first


def test_text_of_the_dataset_is_escaped(derivatives):
    evil = "<script>alert('x')</script><img src=http://evil.example onerror=alert(1)>"
    (path,) = derivatives.rglob(f"*_{FACTS}")
    facts = json.loads(path.read_text())
    facts["acquisition"][0] |= {"name": evil, "scanner": {"manufacturer": evil}, "t1w": evil,
                                "phase_encoding_source": evil, "fieldmaps": [evil]}  # fmt: skip
    facts["quality"] |= {evil: evil, "gradient_checks": [{"text": evil, "outcome": evil}]}
    facts["registration"] |= {"text": evil, "poor": True, "template": evil}
    facts["sphere"] |= {"kernel": evil}
    facts["correction"][0] |= {"note": evil, "program": evil, "susceptibility": evil}
    facts["prediction"] = {"task": evil, "network": evil, "label": evil, "warnings": [evil],
                           "probabilities": {evil: 0.5}}  # fmt: skip
    path.write_text(json.dumps(facts))
    page = Page(build_subject_report(derivatives, "01"))
    assert len(page.named("script")) == 1
    assert not [found for _, found in page.tags if "onerror" in found]
    assert page.text.count("<script>alert('x')</script>") > 10


def test_a_prediction_is_shown_with_its_caution(derivatives):
    add_prediction(derivatives, "ckn2+gevnet")
    page = Page(build_subject_report(derivatives, "01"))
    assert "s1-prediction" in page.ids
    assert "Predicted: DLB" in page.text
    assert "68.0 %" in page.text
    section = page.source[page.source.index('id="s1-prediction"') :]
    assert "Research use only; not for diagnosis" in section[:500]
    assert "sub-01_model-ckn2gevnet_prediction.tsv" in section
    assert "is missing" not in page.text
    assert "convolutional kernel network" in page.text  # methods say what ran, and only now
    assert "▲ Warning Prediction: The site Z is new." in page.text


def test_a_prediction_whose_table_is_gone_is_an_error(derivatives):
    add_prediction(derivatives, "ckn2").unlink()
    page = Page(build_subject_report(derivatives, "01"))
    assert "The derivative sub-01_model-ckn2_prediction.tsv is missing." in page.text


def test_without_prediction_there_is_no_such_section(page):
    assert "s1-prediction" not in page.ids
    assert "convolutional kernel network" not in page.text


def test_numbers_in_the_report_are_those_of_the_files(page, phantom_scan):
    volumes = phantom_scan.data.shape[3]
    assert f"Volumes {volumes}" in page.text
    weights = np.array([1, 1, 1, 50, 50, 50])
    steps = np.abs(np.diff(phantom_scan.truth.motion, axis=0)) @ weights
    assert f"Framewise displacement {steps.mean():.3g} mm" in page.text
    slices = len(phantom_scan.truth.dropped)
    assert slices > 0
    assert f"Outlier slices {slices}" in page.text


PARTS = ("acquisition", "tools", "conform", "correction", "join", "mask", "registration", "sphere",
         "quality")  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        *((PARTS, value) for value in (None, {}, [], "text", [None], [{}], {"snr_b0": "high"})),
        *(((part,), None) for part in PARTS),
    ],
)
def test_any_fact_may_be_missing_or_odd(derivatives, parts, value):
    drop_images(derivatives)
    edit_facts(derivatives, **dict.fromkeys(parts, value))
    page = Page(build_subject_report(derivatives, "01"))
    assert {f"s1-{name}" for name in SECTIONS} <= set(page.ids)


def with_every_leaf(node: object, value: object) -> object:
    if isinstance(node, dict):
        return {key: with_every_leaf(item, value) for key, item in node.items()}
    if isinstance(node, list) and any(isinstance(item, dict) for item in node):
        return [with_every_leaf(item, value) for item in node]
    return value


@pytest.mark.parametrize("value", [None, "text", -1, 1e400, True, ["a", None], {"a": {"b": 1}}])
def test_any_value_may_be_of_any_kind(derivatives, value):
    (path,) = derivatives.rglob(f"*_{FACTS}")
    facts = with_every_leaf(json.loads(path.read_text()), value)
    if value != -1:  # one of them with pictures will do
        drop_images(derivatives)
    path.write_text(json.dumps(facts))
    page = Page(build_subject_report(derivatives, "01"))
    assert {f"s1-{name}" for name in SECTIONS} <= set(page.ids)


def test_what_could_not_be_read_is_a_note(derivatives):
    drop_images(derivatives)
    edit_facts(derivatives, mask={"method": "by hand", "volume_ml": 1400.0}, spin=1)
    page = Page(build_subject_report(derivatives, "01"))
    assert (
        "● Note Facts of this scan that could not be read: mask.method: one of bet, otsu, given"
        in page.text
    )
    assert "spin: not known to this version." in page.text


def test_nothing_is_said_where_everything_could_be_read(page):
    assert "could not be read" not in page.text


def test_a_table_of_another_length_is_not_shown_beside_the_image(derivatives):
    for path in derivatives.glob("sub-01/dwi/*.bval"):
        path.write_text(path.read_text().strip() + " 1000\n")
    page = Page(build_subject_report(derivatives, "01"))
    # The table of the dataset is still there, from the facts.
    assert "As in the dataset" in page.text
    assert "After correction" not in page.text


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, "missing") for name in ("*_desc-*", "*_dwimap*", "*.bvec", "*facts.json")),
        *((name, "truncated") for name in ("*_desc-*", "*.nii.gz")),
        *((name, "garbled") for name in ("*.nii.gz", "*.bval", "*facts.json", "*.tsv")),
    ],
)
def test_any_file_may_be_missing_or_broken(derivatives, name, damage):
    for path in derivatives.glob(f"sub-01/dwi/{name}"):
        if damage == "missing":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(path.read_bytes()[:200])
        else:
            path.write_bytes(b"\x00\xffnonsense\n" * 20)
    page = Page(build_subject_report(derivatives, "01"))
    assert "not available" in page.text or "not finished" in page.text or "no scan" in page.text


def test_an_unfinished_scan_is_an_error(derivatives):
    (path,) = derivatives.rglob(f"*_{FACTS}")
    path.unlink()
    page = Page(build_subject_report(derivatives, "01"))
    assert "1 error" in page.text
    assert "The scan is not finished" in page.text


def test_a_participant_without_scans_gets_a_report_that_says_so(tmp_path):
    page = Page(build_subject_report(tmp_path, "09"))
    assert "There is no scan of sub-09" in page.text


def crash(derivatives: Path, node: str, message: str) -> Path:
    path = derivatives / "logs" / f"crash-20260101-{len(node)}.txt"
    path.write_text(f"Node: participant.{node}\n\nTraceback:\n  ValueError: {message}\n")
    return path


def test_crashes_of_this_participant_are_told_and_of_others_not(derivatives):
    crash(derivatives, "sub_01.sub_01.register", "images do not meet")
    crash(derivatives, "sub_02.sub_02.mask", "somebody else")
    page = Page(build_subject_report(derivatives, "01"))
    assert "“register” failed: ValueError: images do not meet" in page.text
    assert "somebody else" not in page.text


def test_a_crash_that_a_later_run_made_up_for_is_not_told(derivatives):
    import os

    old = crash(derivatives, "sub_01.sub_01.register", "images do not meet")
    os.utime(old, (1, 1))
    assert read_failed_stages(derivatives, "01") == []


def test_a_wrong_gradient_table_is_a_warning_on_top(derivatives):
    (path,) = derivatives.rglob(f"*_{FACTS}")
    facts = json.loads(path.read_text())
    facts["quality"]["gradient_checks"] = [{"text": "flip x", "outcome": "wrong"}]
    path.write_text(json.dumps(facts))
    page = Page(build_subject_report(derivatives, "01"))
    assert "▲ Warning Gradients: flip x." in page.text


def test_sessions_of_one_participant_stand_in_one_report(derivatives, phantom_scan):
    single = derivatives / "sub-01"
    for session in ("a", "b"):
        folder = single / f"ses-{session}" / "dwi"
        shutil.copytree(single / "dwi", folder)
        for path in folder.iterdir():
            path.rename(path.with_name(path.name.replace("sub-01", f"sub-01_ses-{session}", 1)))
    shutil.rmtree(single / "dwi")
    assert [scan.name for scan in find_scans(derivatives, "01")] == [
        "sub-01_ses-a",
        "sub-01_ses-b",
    ]
    page = Page(build_subject_report(derivatives, "01"))
    assert {f"s{n}-{name}" for n in (1, 2) for name in SECTIONS} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_another_participant_whose_label_begins_alike_is_left_out(derivatives):
    shutil.copytree(derivatives / "sub-01", derivatives / "sub-012")
    assert [scan.folder.parent.name for scan in find_scans(derivatives, "01")] == ["sub-01"]
