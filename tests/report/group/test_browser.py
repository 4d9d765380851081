"""The group report in Chromium: no complaint, every picture, tables and plots at one."""

from pathlib import Path

import pytest
from report.group_study import GroupStudy

from bids_gevnet.report.group.page import build_group_report

WIDTHS = (390, 820, 1400)
ROWS = "[...document.querySelectorAll('.people tbody tr')]"
SHOWN = f"{ROWS}.filter(row => !row.hidden).map(row => row.dataset.p)"
COLUMN = "[...document.querySelectorAll('[data-sort]')].find(b => b.textContent.startsWith({!r}))"
SECTIONS = 15


@pytest.fixture(scope="module")
def report(group_report) -> Path:
    return group_report


def values(browser, name: str) -> list[str]:
    """Cells of a column from top to bottom."""
    return browser.evaluate(
        f"(() => {{ const head = {COLUMN.format(name)}.closest('th');"
        "const column = [...head.parentNode.children].indexOf(head);"
        f"return {ROWS}.map(row => row.children[column].dataset.v); }})()"
    )


def choose(browser, name: str, value: str) -> None:
    """Set a filter as a reader does."""
    browser.evaluate(
        f"(() => {{ const field = document.querySelector('[data-filter={name}]');"
        f"if (field.type === 'checkbox') field.checked = true; else field.value = {value!r};"
        "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_complaint_no_request_no_missing_picture(browser, report, screenshots, width, scheme):
    browser.open(report, width=width, prefers_color_scheme=scheme)
    browser.assert_sound(report)
    heights = browser.evaluate(
        "[...document.querySelectorAll('section')].map(s => [s.id, s.clientHeight])"
    )
    assert len(heights) == SECTIONS
    assert all(height > 80 for _, height in heights)
    picture = browser.screenshot(screenshots / f"group-{width}-{scheme}.png")
    assert picture.stat().st_size > 50_000


def test_tiles_show_their_own_part_of_a_sheet(browser, report):
    browser.open(report)
    boxes = browser.evaluate(
        "[...document.querySelectorAll('.tile svg[viewBox]:not(.key-mark)')].map(s => {"
        "const r = s.getBoundingClientRect();"
        "return [s.getAttribute('viewBox'), Math.round(r.width), Math.round(r.height)]; })"
    )
    assert len({box for box, _, _ in boxes}) == 16
    assert all(width > 80 and height > 40 for _, width, height in boxes)


def test_sorting_by_keyboard(browser, report):
    browser.open(report)
    assert (
        browser.evaluate("document.querySelectorAll('[aria-sort]:not([aria-sort=none])').length")
        == 0
    )
    browser.evaluate(f"{COLUMN.format('Age')}.focus()")
    browser.press("Enter")
    ages = list(map(float, values(browser, "Age")))
    assert ages == sorted(ages)
    state = f"{COLUMN.format('Age')}.closest('th').getAttribute('aria-sort')"
    assert browser.evaluate(state) == "ascending"
    browser.press(" ")
    assert list(map(float, values(browser, "Age"))) == sorted(ages, reverse=True)
    assert browser.evaluate(state) == "descending"
    browser.evaluate(f"{COLUMN.format('Diagnosis')}.click()")
    words = values(browser, "Diagnosis")
    assert words == sorted(words)
    assert browser.evaluate(state) == "none"


def test_empty_cells_stay_at_the_end(browser, tmp_path):
    folder = GroupStudy(tmp_path / "out", people=8, folds=2, pictures=False).write()
    table = folder / "group_cohort.tsv"
    lines = table.read_text().splitlines()
    cells = lines[3].split("\t")
    cells[5] = "n/a"
    table.write_text("\n".join([*lines[:3], "\t".join(cells), *lines[4:]]) + "\n")
    browser.open(build_group_report(folder))
    for _ in range(2):
        browser.evaluate(f"{COLUMN.format('Age')}.click()")
        assert values(browser, "Age")[-1] == ""


def test_filters_hide_rows_and_fade_the_rest(browser, report):
    browser.open(report)
    everybody = browser.evaluate(SHOWN)
    assert len(everybody) == 16
    choose(browser, "label", "1")
    shown = browser.evaluate(SHOWN)
    assert shown == [f"p{number}" for number in range(2, 17, 2)]
    assert browser.evaluate("document.querySelector('[data-filter-state]').textContent") == (
        "8 of 16 scans"
    )
    faded = "[...new Set([...document.querySelectorAll('{}.faded')].map(n => n.dataset.p))].length"
    assert browser.evaluate(faded.format(".dot")) == 8
    assert browser.evaluate(faded.format(".tile")) == 8
    choose(browser, "site", "0")
    assert len(browser.evaluate(SHOWN)) == 4
    browser.evaluate("document.querySelector('[data-filters] button[type=reset]').click()")
    assert browser.wait_for(f"{SHOWN}.length === 16")
    choose(browser, "text", "SUB-01")
    assert browser.evaluate(SHOWN) == [f"p{number}" for number in range(10, 17)]
    choose(browser, "text", "nobody at all")
    assert browser.evaluate(SHOWN) == []
    assert browser.evaluate("!document.querySelector('[data-empty]').hidden")


def test_wrong_predictions_can_be_picked_out(browser, report):
    browser.open(report)
    choose(browser, "wrong", "")
    shown = browser.evaluate(SHOWN)
    missed = browser.evaluate(
        "[...document.querySelectorAll('.people .missed')].map(c => c.closest('tr').dataset.p)"
    )
    assert shown == missed
    assert 0 < len(shown) < 16


def test_pointing_at_a_dot_lights_up_the_scan_everywhere(browser, report):
    browser.open(report)
    browser.evaluate(
        "document.querySelector('.strip .dot[data-p=p5]')"
        ".dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
    )
    lit = "[...document.querySelectorAll('.lit')].map(n => n.tagName.toLowerCase() + n.dataset.p)"
    found = browser.evaluate(lit)
    assert sorted(found) == sorted(["trp5", "figurep5", *["pathp5"] * 12])
    assert browser.evaluate("document.querySelector('[data-strip-state]').textContent").startswith(
        "sub-005: Framewise displacement"
    )


def test_plots_can_be_walked_through_by_keyboard(browser, report):
    browser.open(report)
    browser.evaluate("document.querySelector('[data-strip]').focus()")
    smallest = browser.evaluate(
        "[...document.querySelectorAll('[data-strip]')][0].querySelectorAll('.dot').length && "
        "[...document.querySelector('[data-strip]').querySelectorAll('.dot')]"
        ".sort((a, b) => a.dataset.v - b.dataset.v)[0].dataset.p"
    )
    browser.press("ArrowRight")
    lit = "document.querySelector('tr.lit').dataset.p"
    assert browser.evaluate(lit) == smallest
    browser.press("ArrowRight")
    assert browser.evaluate(lit) != smallest
    browser.press("Home")
    assert browser.evaluate(lit) == smallest
    browser.press("Enter")
    pressed = f"document.querySelector('tr[data-p={smallest}] .pin').getAttribute('aria-pressed')"
    assert browser.evaluate(pressed) == "true"
    assert browser.evaluate("document.querySelectorAll('.dot.marked').length") == 12


def test_marking_a_participant_by_keyboard(browser, report):
    browser.open(report)
    browser.evaluate("document.querySelector('tr[data-p=p3] .pin').focus()")
    marked = "[...document.querySelectorAll('.marked')].map(n => n.dataset.p)"
    browser.press(" ")
    assert set(browser.evaluate(marked)) == {"p3"}
    assert len(browser.evaluate(marked)) == 14
    browser.press("Enter")
    assert browser.evaluate(marked) == []


def test_everything_that_can_be_used_can_be_reached_by_tab(browser, report):
    browser.open(report)
    reached = set()
    wanted = {"skip", "theme", "text", "label", "site", "wrong", "sort", "pin", "strip"}
    for _ in range(250):
        browser.press("Tab")
        reached.add(
            browser.evaluate(
                "(() => { const n = document.activeElement, d = n.dataset;"
                "return d.filter ?? ('sort' in d ? 'sort' : 'strip' in d ? 'strip' :"
                "n.name || n.className || n.tagName); })()"
            )
        )
        if wanted <= reached:
            break
    assert wanted <= reached


def test_print_shows_everybody_without_controls(browser, report):
    browser.open(report)
    browser.call("Emulation.setEmulatedMedia", media="print")
    display = "getComputedStyle(document.querySelector('{}')).display"
    assert browser.evaluate(display.format(".filters")) == "none"
    assert browser.evaluate(display.format(".contents")) == "none"
    assert (
        browser.evaluate("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
    )
    pdf = browser.call("Page.printToPDF", printBackground=True)["data"]
    browser.call("Emulation.setEmulatedMedia", media="")
    assert len(pdf) > 50_000


def test_hostile_labels_do_nothing_but_show(browser, tmp_path):
    evil = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    folder = GroupStudy(
        tmp_path / "out", groups=(evil, "b"), sites=(evil, "B"), people=8, folds=2, pictures=False
    ).write()
    path = build_group_report(folder)
    browser.open(path)
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]
    assert browser.evaluate("document.title").startswith("Group report")
    cell = "document.querySelector('.people tbody tr').children[2].textContent"
    assert browser.evaluate(cell) == evil
