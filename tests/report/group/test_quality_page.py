"""`group --qc-only`: a page to rate scans on, without labels, training or results."""

import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report.group_study import GroupStudy
from report.pages import Page

from bids_gevnet.bids.selection import read_participants_file
from bids_gevnet.bids.writing import write_json
from bids_gevnet.cli.run import main


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Sixteen people as the participant level leaves them; one moved far more than the others."""
    study = GroupStudy(tmp_path / "out", people=16, sites=("A",), folds=2, pictures=False)
    for number, person in enumerate(study.who):
        object.__setattr__(person, "motion", 5.0 if number == 3 else 0.2 + 0.01 * number)
    study.write()
    for path in tmp_path.glob("out/group_*"):
        path.unlink()
    for person in study.who:
        (tmp_path / f"raw/sub-{person.label}/dwi").mkdir(parents=True)
    write_json(tmp_path / "raw/dataset_description.json", {"Name": "x", "BIDSVersion": "1.10.0"})
    return tmp_path


def run(folder: Path, level: str = "group", *options: str) -> int:
    return main([str(folder / "raw"), str(folder / "out"), level, "--qc-only", *options])


def test_nothing_but_derivatives_is_needed(dataset: Path, capsys: Any) -> None:
    assert run(dataset) == 0
    page = dataset / "out/group_qc.html"
    assert capsys.readouterr().out.strip() == str(page)
    found = Page(page)
    found.assert_accessible()
    boxes = [tag for tag in found.named("select") if "data-rate" in tag]
    assert {box["data-rate"] for box in boxes} == {f"sub-{n:03d}" for n in range(1, 17)}
    assert re.search("Framewise displacement: [^.]*sub-004[^.]* far from the others", found.text)
    rows = re.findall(r"<tr data-p=.*?</tr>", found.source, flags=re.DOTALL)
    (moved,) = [row for row in rows if 'data-rate="sub-004"' in row]
    assert "far from its site" in moved
    assert sum("far from its site" in row for row in rows) < 6
    table = pd.read_csv(dataset / "out/group_qc.tsv", sep="\t")
    assert table["mean_framewise_displacement"].max() == pytest.approx(5.0)
    assert not (dataset / "out/group_report.html").exists()
    assert not (dataset / "out/group_metrics.json").exists()


def test_who_is_not_finished_is_named(dataset: Path, caplog: Any) -> None:
    (dataset / "raw/sub-099/dwi").mkdir(parents=True)
    assert run(dataset) == 0
    assert "not on the page: sub-099: no derivatives" in caplog.text
    caplog.clear()
    assert re.search("Left out.*no derivatives.*sub-099", Page(dataset / "out/group_qc.html").text)
    assert run(dataset, "group", "--participant-label", "001", "002") == 0
    assert "sub-099" not in caplog.text
    assert "sub-099" not in (dataset / "out/group_qc.html").read_text()


def test_a_scan_of_part_of_the_brain_is_a_reason_to_exclude(dataset: Path) -> None:
    (path,) = dataset.glob("out/sub-002/dwi/*desc-report_facts.json")
    facts = json.loads(path.read_text())
    facts["registration"]["coverage"] = 0.61
    write_json(path, facts)
    assert run(dataset) == 0
    found = Page(dataset / "out/group_qc.html")
    assert re.search(r"Field of view: [^.]* sub-002 \(61%\)\.[^.]* to exclude", found.text)
    assert len(re.findall(r"\(61%\)", found.text)) == 1


def test_labels_and_sites_are_shown_where_there_are_some(dataset: Path) -> None:
    rows = ["participant_id\tdiagnosis\tsite", *(f"sub-{n:03d}\tAD\tNorth" for n in range(1, 16))]
    (dataset / "raw/participants.tsv").write_text("\n".join(rows) + "\n")
    assert run(dataset) == 0
    table = pd.read_csv(dataset / "out/group_qc.tsv", sep="\t").set_index("participant_id")
    assert table.loc["sub-001", ["diagnosis", "site"]].tolist() == ["AD", "North"]
    assert table.loc["sub-016", "diagnosis"] == "not given"


def test_who_is_excluded_is_not_shown(dataset: Path) -> None:
    assert run(dataset, "group", "--exclude-participant-label", "004") == 0
    assert "sub-004" not in (dataset / "out/group_qc.html").read_text()


def test_it_is_refused_where_it_cannot_work(dataset: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(dataset, "participant") != 0
    assert "group --qc-only" in capsys.readouterr().err
    missing = [str(dataset / "raw"), str(tmp_path / "nowhere"), "group", "--qc-only"]
    assert main(missing) != 0
    assert "no folder" in capsys.readouterr().err


def test_saved_ratings_are_what_participants_file_reads(dataset: Path, browser: Any) -> None:
    assert run(dataset) == 0
    page = dataset / "out/group_qc.html"
    browser.open(page)
    assert browser.problems == []
    rate = (
        "(([name, value]) => { const box = document.querySelector(`[data-rate='${name}']`);"
        "box.value = value; box.dispatchEvent(new Event('change')); })"
    )
    for name, value in (("sub-004", "exclude"), ("sub-005", "good"), ("sub-006", "doubtful")):
        browser.evaluate(f"{rate}(['{name}', '{value}'])")
    href = browser.evaluate("document.querySelector('[data-ratings]').href")
    saved = dataset / "ratings.tsv"
    saved.write_text(urllib.parse.unquote(href.split(",", 1)[1]))
    assert read_participants_file(saved) == (None, frozenset({"004"}))
    assert "sub-005\tno\tsub-005: good" in saved.read_text()
    state = browser.evaluate("document.querySelector('[data-rating-state]').textContent")
    assert re.match(r"3 of 16 scans rated, 1 participant to exclude", state)
    assert run(dataset, "group", "--participants-file", str(saved)) == 0
    assert "sub-004" not in page.read_text()
