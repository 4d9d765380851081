"""Reports of more scans than a page can show: pages, bars and parts, tested with low limits."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from report.group_study import GroupStudy
from report.pages import Page

from bids_gevnet.bids.derivatives import FACTS
from bids_gevnet.report.alerts import Alert
from bids_gevnet.report.group.cohort import Measure, measure_scans, rank_outliers, spread_evenly
from bids_gevnet.report.group.harmonisation import (
    RishReader,
    SiteEffect,
    draw_site_effect,
    measure_site_effect,
)
from bids_gevnet.report.group.limits import Limits
from bids_gevnet.report.group.mean_maps import draw_mean_maps
from bids_gevnet.report.group.mosaic import choose_tiles
from bids_gevnet.report.group.page import build_group_report
from bids_gevnet.report.group.quality_page import build_quality_report
from bids_gevnet.report.group.quality_strips import draw_strips
from bids_gevnet.report.group.study_files import CohortScan, read_study

LOW = Limits(rows=10, dots=8, tiles=6, averaged=5, measured=8)
PEOPLE = 24
ROWS = "[...document.querySelectorAll('.people tbody tr')]"
NAMES = f"{ROWS}.map(row => row.dataset.p)"


def scan(number, site="A", label="AD", errors=0, motion=0.1):
    name = f"sub-{number:03d}"
    alerts = [Alert("error", f"Error {i}.") for i in range(errors)]
    return CohortScan(f"p{number}", name, "", name, label, site, 70.0, "F", motion, alerts=alerts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    study = GroupStudy(tmp_path_factory.mktemp("large") / "out", people=PEOPLE, folds=2)
    return study.write()


@pytest.fixture(scope="module")
def report(folder):
    return build_group_report(folder, limits=LOW)


def test_sites_are_taken_evenly_and_small_cohorts_whole():
    sites = ["A"] * 90 + ["B"] * 10
    chosen = spread_evenly(sites, 20)
    assert len(set(chosen)) == 20
    assert [sites[number] for number in chosen].count("B") == 2
    assert spread_evenly(sites, 100) == list(range(100))
    assert spread_evenly([], 3) == []


def test_errors_come_before_measures_that_are_far():
    scans = [scan(0), scan(1, errors=1), scan(2), scan(3), scan(4, errors=2)]
    measures = [Measure("a", "", "", "", [], [0, 2]), Measure("b", "", "", "", [], [2])]
    assert rank_outliers(scans, measures) == [4, 1, 2, 0]


def test_outliers_are_shown_first_and_leave_room_for_others():
    scans = [scan(number, "AB"[number % 2]) for number in range(100)]
    chosen, first = choose_tiles(scans, [7, 3, *range(50, 80)], 10)
    assert first == 6
    assert [each.key for each in chosen[:2]] == ["p7", "p3"]
    others = [int(each.key[1:]) for each in chosen[6:]]
    assert len(others) == 4
    assert {number % 2 for number in others} == {0, 1}
    assert not set(others) & {7, 3, *range(50, 80)}
    assert choose_tiles(scans, [7], 100) == (scans, 0)
    everybody = choose_tiles(scans, range(100), 10)[0]
    assert len({each.key for each in everybody}) == 10


def test_bars_count_every_scan_and_dots_are_the_outliers_alone():
    rng = np.random.default_rng(0)
    scans = [
        scan(n, "AB"[n % 2], ("AD", "PD")[n // 2 % 2], motion=float(rng.normal(0.2, 0.02)))
        for n in range(200)
    ]
    scans.append(scan(200, "A", motion=3.0))
    measures = measure_scans(scans)
    (strip,) = draw_strips(scans, measures, most_dots=100)
    far = measures[0].far
    assert strip.binned
    assert re.findall(r'class="dot" data-p="(\w+)"', strip.svg)[0] == "p200"  # the farthest first
    assert strip.svg.count('class="dot"') == strip.svg.count("far-ring") == len(far)
    assert ">sub-200</text>" in strip.svg
    # Lengths of a site's bars are in proportion to its scans, whatever their class.
    column = (300 - 46) / 2
    lengths = {"A": 0.0, "B": 0.0}
    for path in re.findall(r'class="bars" d="([^"]*)"', strip.svg):
        for x, length in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", path):
            lengths["A" if float(x) < 40 + column else "B"] += float(length)
    counts = {
        site: np.array([s.motion for s in scans if s.site == site], float) for site in lengths
    }
    low, high = 0.0, 3.0
    for site, values in counts.items():
        longest = np.histogram(values, 54, (low, high))[0].max()
        assert lengths[site] == pytest.approx(len(values) * 0.88 * column / longest, rel=0.02)
    assert not draw_strips(scans, measures)[0].binned


def test_means_are_over_a_part_of_very_many_scans(folder):
    study = read_study(folder)
    maps = draw_mean_maps(study.scans, most=5)
    assert (maps.scans, maps.of) == (5, PEOPLE)
    assert draw_mean_maps(study.scans).scans == PEOPLE


def test_the_effect_of_sites_is_the_same_on_a_part_of_the_scans(folder):
    study = read_study(folder)
    folds = study.folds_of("first-v-second", "ckn2+gevnet")
    every = measure_site_effect(folds, RishReader(study.scans))
    part = measure_site_effect(folds, RishReader(study.scans, most_kept=2), most=8)
    assert (len(every.sites), every.of) == (PEOPLE, PEOPLE)
    assert (len(part.sites), part.of) == (8, PEOPLE)
    assert sorted(set(part.sites)) == ["A", "B"]
    shift = {}
    for name, effect in (("every", every), ("part", part)):
        sites = np.array(effect.sites)
        shift[name] = effect.before[sites == "B", 0].mean() - effect.before[sites == "A", 0].mean()
    assert shift["part"] == pytest.approx(shift["every"], abs=0.05)


def test_many_scans_are_lines_in_the_chart_of_energies():
    rng = np.random.default_rng(0)
    for count, dots in ((40, True), (700, False)):
        energies = rng.normal(size=(count, 1))
        effect = SiteEffect((0,), ["A", "B"] * (count // 2), energies, energies + 0.1)
        assert effect.dots is dots
        assert (draw_site_effect(effect, name="x").count("<use") > count) is dots


def test_a_large_page_says_what_it_leaves_out_and_keeps_the_rest(report):
    page = Page(report)
    page.assert_accessible()
    assert f"6 of {PEOPLE} scans are shown" in page.text
    assert (
        f"Mean over 5 scans in template space, spread evenly over the sites of all {PEOPLE}"
        in (page.text)
    )
    assert f"Measured on 8 of {PEOPLE} held-out scans" in page.text
    assert page.source.count('<figure class="tile"') == 6
    assert page.source.count('class="pin"') == 10
    packed = re.search(r"<template data-rows>([^<]*)</template>", page.source)[1]
    rows = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert [re.search(r'data-p="(\w+)"', row)[1] for row in rows] == [
        f"p{number}" for number in range(1, PEOPLE + 1)
    ]


def test_the_same_files_give_the_same_large_page(folder, report):
    before = report.read_bytes()
    assert build_group_report(folder, limits=LOW).read_bytes() == before


def test_pages_are_turned_sorted_and_filtered(browser, report):
    browser.open(report)
    assert browser.wait_for("!document.querySelector('[data-pages]').hidden")
    assert browser.problems == []
    assert browser.requests == [report.as_uri()]
    assert browser.evaluate("document.querySelector('[data-first-page]').hidden")
    state = "document.querySelector('[data-page-state]').textContent"
    turn = "document.querySelector('[data-page=\"{}\"]')"
    assert browser.evaluate(NAMES) == [f"p{number}" for number in range(1, 11)]
    assert browser.evaluate(state) == f"Rows 1 to 10 of {PEOPLE}"
    assert browser.evaluate(f"{turn.format(-1)}.disabled")
    for _ in range(2):
        browser.evaluate(f"{turn.format(1)}.click()")
    assert browser.evaluate(NAMES) == [f"p{number}" for number in range(21, 25)]
    assert browser.evaluate(f"{turn.format(1)}.disabled")
    age = (
        "[...document.querySelectorAll('[data-sort]')].find(b => b.textContent.startsWith('Age'))"
    )
    browser.evaluate(f"{age}.click()")
    column = browser.evaluate(f"[...{age}.closest('tr').children].indexOf({age}.closest('th'))")
    shown = f"{ROWS}.map(row => Number(row.children[{column}].dataset.v))"
    youngest = browser.evaluate(shown)
    browser.evaluate(f"{turn.format(1)}.click()")
    assert youngest == sorted(youngest)
    assert max(youngest) <= min(browser.evaluate(shown))
    browser.evaluate(
        "(() => { const field = document.querySelector('[data-filter=label]'); field.value = '1';"
        "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert browser.evaluate(state) == f"Rows 1 to 10 of {PEOPLE // 2}"
    assert browser.evaluate("document.querySelector('[data-filter-state]').textContent") == (
        f"{PEOPLE // 2} of {PEOPLE} scans"
    )
    assert browser.evaluate("document.querySelectorAll('.tile.faded').length") > 0


def test_a_mark_stays_on_a_row_that_is_on_another_page(browser, report):
    browser.open(report)
    assert browser.wait_for("!document.querySelector('[data-pages]').hidden")
    browser.evaluate("document.querySelector('tr[data-p=p3] .pin').click()")
    browser.evaluate("document.querySelector('[data-page=\"1\"]').click()")
    assert "p3" not in browser.evaluate(NAMES)
    browser.evaluate("document.querySelector('[data-page=\"-1\"]').click()")
    marked = "document.querySelector('tr[data-p=p3]').classList.contains('marked')"
    assert browser.evaluate(marked)


def test_hostile_text_stays_text_when_it_is_unpacked(browser, tmp_path):
    evil = "<img src=x onerror=document.title='taken'></template><script>document.title='taken'"
    out = GroupStudy(
        tmp_path / "out", groups=(evil, "b"), people=16, folds=2, pictures=False
    ).write()
    path = build_group_report(out, limits=Limits(rows=4))
    browser.open(path)
    assert browser.wait_for("!document.querySelector('[data-pages]').hidden")
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]
    assert browser.evaluate("document.title").startswith("Group report")
    cell = "document.querySelector('.people tbody tr').children[2].textContent"
    assert browser.evaluate(cell) == evil


def test_people_on_other_pages_are_rated_too(browser, folder):
    (folder / "group_qc.tsv").write_text((folder / "group_cohort.tsv").read_text())
    page = build_quality_report(folder, "diagnosis", limits=LOW)
    browser.open(page)
    assert browser.wait_for(
        "document.querySelector('[data-ratings]').closest('[hidden]') === null"
    )
    state = "document.querySelector('[data-rating-state]').textContent"
    assert browser.evaluate(state).startswith(f"0 of {PEOPLE} scans rated")
    browser.evaluate("document.querySelector('[data-page=\"1\"]').click()")
    browser.evaluate(
        "(() => { const box = document.querySelector('tr[data-p=p12] select');"
        "box.value = 'exclude'; box.dispatchEvent(new Event('change')); })()"
    )
    browser.evaluate("document.querySelector('[data-page=\"1\"]').click()")
    assert browser.evaluate(state) == (f"1 of {PEOPLE} scans rated, 1 participant to exclude.")
    text = browser.evaluate(
        "decodeURIComponent(document.querySelector('[data-ratings]').href.split(',')[1])"
    )
    assert len(text.splitlines()) == PEOPLE + 1
    assert "sub-012\tyes\tsub-012: exclude" in text


def test_a_page_of_very_many_is_not_larger_than_one_of_many(tmp_path):
    sizes = {}
    for people in (40, 80):
        out = GroupStudy(tmp_path / f"{people}", people=people, folds=2).write()
        assert len(list(out.glob(f"sub-*/dwi/*{FACTS}"))) == people
        sizes[people] = build_group_report(out, limits=LOW).stat().st_size
    assert sizes[80] - sizes[40] < 40 * 400  # bytes a person: names and packed rows
