"""The subject report in Chromium: no complaint, every picture, and the controls work."""

import shutil
from pathlib import Path

import pytest
from report.fact_files import add_prediction

from bids_gevnet.report.subject.page import build_subject_report

WIDTHS = (390, 900, 1400)
VISIBLE = "getComputedStyle(document.querySelector('.layer-{}')).visibility"


@pytest.fixture(scope="module")
def report(pristine, tmp_path_factory) -> Path:
    out = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("browser") / "out"))
    add_prediction(out, "ckn2+gevnet")
    return build_subject_report(out, "01")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_complaint_no_request_no_missing_picture(browser, report, screenshots, width, scheme):
    browser.open(report, width=width, prefers_color_scheme=scheme)
    browser.assert_sound(report)
    picture = browser.screenshot(screenshots / f"subject-{width}-{scheme}.png")
    assert picture.stat().st_size > 50_000


def test_every_section_has_a_size(browser, report):
    browser.open(report)
    heights = browser.evaluate(
        "[...document.querySelectorAll('section')].map(s => [s.id, s.clientHeight])"
    )
    assert len(heights) == 15
    assert all(height > 80 for _, height in heights)


def test_dark_and_light_differ_and_can_be_chosen(browser, report):
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.open(report, prefers_color_scheme="dark")
    dark = browser.evaluate(colour)
    browser.evaluate("document.querySelector('input[name=theme][value=light]').click()")
    assert browser.evaluate(colour) != dark
    browser.evaluate("document.querySelector('input[name=theme][value=auto]').click()")
    assert browser.evaluate(colour) == dark


FLICKERS = [("s1-template", "scan", "template"), ("s1-correction", "after", "before")]


@pytest.mark.parametrize(("section", "first", "second"), FLICKERS)
def test_flicker_by_keyboard(browser, report, section, first, second):
    browser.open(report, prefers_reduced_motion="no-preference")
    scan, template = VISIBLE.format(first), VISIBLE.format(second)
    button = f"document.querySelector('#{section} [data-flicker-play]')"
    assert (browser.evaluate(scan), browser.evaluate(template)) == ("visible", "hidden")
    browser.evaluate(f"{button}.focus()")
    browser.press(" ")
    assert browser.evaluate(template) == "visible"
    assert browser.evaluate(f"{button}.ariaPressed") == "true"
    assert browser.wait_for(f"{scan} === 'visible'")  # it swaps by itself
    assert browser.wait_for(f"{template} === 'visible'")
    browser.press("Enter")
    assert browser.evaluate(f"{button}.ariaPressed") == "false"
    shown = browser.evaluate(scan)
    assert not browser.wait_for(f"{scan} !== '{shown}'", seconds=1.6)


@pytest.mark.parametrize(("section", "first", "second"), FLICKERS)
def test_readers_who_want_less_motion_swap_by_hand(browser, report, section, first, second):
    browser.open(report, prefers_reduced_motion="reduce")
    template = VISIBLE.format(second)
    button = f"document.querySelector('#{section} [data-flicker-play]')"
    assert browser.evaluate(f"{button}.textContent") == "Swap"
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(template) == "visible"
    state = f"document.querySelector('#{section} [data-flicker-state]').textContent"
    assert browser.evaluate(state).lower() == f"showing: {second}."
    assert not browser.wait_for(f"{template} === 'hidden'", seconds=1.6)
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(template) == "hidden"


def test_glyphs_change_their_colours_without_a_script(browser, report):
    browser.open(report)
    shown = "getComputedStyle(document.querySelector('.crossings .layer-{}')).display"
    assert browser.evaluate(shown.format("amplitude")) == "none"
    browser.evaluate("document.querySelector('.crossings input[value=amplitude]').click()")
    assert browser.evaluate(shown.format("direction")) == "none"
    assert browser.evaluate(shown.format("amplitude")) != "none"


def test_scenes_turn_by_keyboard_and_come_back(browser, report):
    browser.open(report)
    where = (
        "[...document.querySelectorAll('[data-scene] .marks circle')]"
        ".map(c => c.getAttribute('cx'))"
    )
    # Marks are put in order of depth, so positions are compared as a set.
    before = sorted(browser.evaluate(where))
    browser.evaluate("document.querySelector('[data-scene]').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    changed = f"JSON.stringify({where}.sort())"
    assert browser.wait_for(f"{changed} !== JSON.stringify({before})")
    browser.press("Home")
    assert browser.wait_for(
        f"{where}.map(Number).sort((a, b) => a - b).every((x, i) => "
        f"Math.abs(x - {sorted(map(float, before))}[i]) < 0.2)"
    )


def test_scenes_turn_by_dragging(browser, report):
    browser.open(report)
    middle = browser.evaluate(
        "(() => { const s = document.querySelector('[data-scene]'); s.scrollIntoView();"
        "const r = s.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    first = "document.querySelector('[data-scene] .marks').innerHTML"
    before = browser.evaluate(first)
    x, y = middle
    button = {"button": "left", "buttons": 1, "clickCount": 1}
    browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **button)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 60, y=y + 20, **button)
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + 60, y=y + 20, **button)
    browser.evaluate("new Promise(done => requestAnimationFrame(() => done(1)))")
    assert browser.evaluate(first) != before


def test_gradient_tables_can_be_shown_one_at_a_time(browser, report):
    browser.open(report)
    shown = (
        "['before', 'after', 'standard'].map(g => "
        "getComputedStyle(document.querySelector('.gradient-figure .' + g)).display !== 'none')"
    )
    assert browser.evaluate(shown) == [True, True, False]
    for number, group in enumerate(("before", "after", "standard")):
        browser.evaluate(
            f"document.querySelector('.gradient-figure input[value={group}]').click()"
        )
        assert browser.evaluate(shown) == [i == number for i in range(3)]


def test_everything_that_can_be_used_can_be_reached_by_tab(browser, report):
    browser.open(report)
    reached = set()
    for _ in range(120):
        browser.press("Tab")
        reached.add(
            browser.evaluate(
                "document.activeElement.dataset.scene !== undefined ? 'scene' :"
                "document.activeElement.dataset.flickerPlay !== undefined ? 'flicker' :"
                "document.activeElement.name || document.activeElement.className ||"
                "document.activeElement.tagName"
            )
        )
        if {"scene", "flicker", "theme", "s1-layer", "s1-table", "skip"} <= reached:
            break
    assert {"scene", "flicker", "theme", "s1-layer", "s1-table", "skip"} <= reached


def test_print_shows_everything_without_controls(browser, report, screenshots):
    browser.open(report)
    browser.call("Emulation.setEmulatedMedia", media="print")
    hidden = "getComputedStyle(document.querySelector('{}')).display"
    assert browser.evaluate(hidden.format(".contents")) == "none"
    assert browser.evaluate(hidden.format(".controls")) == "none"
    pdf = browser.call("Page.printToPDF", printBackground=True)["data"]
    browser.call("Emulation.setEmulatedMedia", media="")
    assert len(pdf) > 50_000


def test_the_policy_blocks_foreign_scripts(browser, report, tmp_path):
    # The control: what the policy is there for does happen without it.
    inject = "<script>document.title = 'taken over'</script></main>"
    page = report.read_text(encoding="utf-8").replace("</main>", inject, 1)
    guarded = tmp_path / "guarded.html"
    guarded.write_text(page, encoding="utf-8")
    browser.open(guarded)
    assert browser.evaluate("document.title") == "sub-01 · bids_gevnet"
    open_to_all = tmp_path / "open.html"
    open_to_all.write_text(page.replace("Content-Security-Policy", "x"), encoding="utf-8")
    browser.open(open_to_all)
    assert browser.evaluate("document.title") == "taken over"
