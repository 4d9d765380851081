"""The documentation names everything the code has, and quotes nothing that it has not."""

import re
from pathlib import Path

import numpy as np
import pytest
from documented import load_extension

from bids_gevnet.cli.docker import build_wrapper_parser
from bids_gevnet.cli.parser import build_parser
from bids_gevnet.cli.phantom import build_parser as phantom_parser
from bids_gevnet.cli.progress import RESOURCE_COLUMNS
from bids_gevnet.interfaces.confounds import MOTION
from bids_gevnet.learn.evaluate import saliency_maps
from bids_gevnet.learn.evaluate.predictions_table import FIXED_COLUMNS
from bids_gevnet.nn.registry import scan_networks

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
MADE = {"generated", "gallery", "_build"}
PAGES = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.md") if not MADE & set(p.parts))]
OPTIONS = {
    name
    for parser in (build_parser(), phantom_parser(), build_wrapper_parser())
    for action in parser._actions
    for name in action.option_strings
}


@pytest.fixture(scope="module")
def pages():
    """The module that writes the reference pages."""
    return load_extension("reference_pages")


def test_every_option_is_on_the_page_of_the_command_line(pages):
    page = pages.command_line_page()
    for name in OPTIONS - {"-h", "--help"}:
        assert f"`{name}`" in page, name


def test_every_key_of_facts_and_model_card_has_a_sentence(pages):
    facts = (pages.ScanFacts, pages.SaliencyFacts)
    kinds = [kind for outer in facts for kind in pages._fact_classes(outer)]
    for kind in (*kinds, pages.ModelCard, pages.TrainOptions):
        for name, text in pages.described_fields(kind):
            assert text, f"{kind.__name__}.{name} has no description in its docstring"


def test_every_file_of_saliency_is_listed(pages):
    page = pages.saliency_page()
    for name in re.findall(r"[a-z_]+\.(?:nii\.gz|tsv|json)", saliency_maps.__doc__):
        assert f"`{name}`" in page, name
    for column in saliency_maps.REGION_COLUMNS:
        assert f"`{column}`" in page, column


def test_every_derivative_and_every_file_of_a_run_is_listed(pages):
    endings = dict(pages.derivative_endings())
    named = {
        value
        for value in vars(pages.derivatives).values()
        if isinstance(value, str) and re.fullmatch(r"[a-z][\w-]*\.(nii\.gz|tsv|json)", value)
    }
    assert named <= set(endings)
    assert {"group_predictions.tsv", "logs/settings.toml"} <= {n for n, _ in pages.output_places()}


def test_every_column_is_explained():
    page = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")
    for column in (*FIXED_COLUMNS, *RESOURCE_COLUMNS, *MOTION):
        assert f"`{column}`" in page, column


def test_messages_that_the_help_page_quotes_exist():
    page = (DOCS / "help" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r'^\| "([^"]+)"', page, re.MULTILINE)
    assert len(quoted) > 10
    source = " ".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for path in (ROOT / "bids_gevnet").rglob("*.py")
    )
    for text in quoted:
        assert text in source, text


def test_pictures_that_pages_show_are_drawn(tmp_path):
    load_extension("measured_figures").write_measured_figures(tmp_path)
    load_extension("method_figures").write_method_figures(tmp_path)
    text = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"\]\(generated/(\w+\.png)\)", text))
    assert shown == {path.name for path in tmp_path.iterdir()}


def test_measured_pictures_read_whole_tables_of_the_benchmarks():
    measured = load_extension("measured_figures")
    assert len(measured.displacements()) >= 9
    assert all(after < before for _, before, after in measured.displacements())
    assert [degree for degree, *_ in measured.site_differences()] == ["0", "2", "4", "6"]
    errors = measured.errors_of_fa()
    assert errors["", "mppca", "no"] < errors["", "none", "no"]
    assert {ringing for ringing, *_ in errors} == {"", "with ringing"}
    assert {"crossing", "none"} <= {kind.split(",")[0] for kind, *_ in measured.effects()}
    reached = {name: value for name, value, *_ in measured.held_out_accuracies()}
    assert len(scan_networks()) <= len(reached)
    assert "CKN2 + GEVNet" in reached


def test_products_see_crossings_that_a_linear_layer_does_not():
    answers = load_extension("method_figures").second_order_answers(np.array([0.0, 45.0, 90.0]))
    np.testing.assert_allclose(answers[1], 1, atol=1e-3)
    assert abs(answers[2][2] - 1) > 0.05


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" in target or "generated/" in target or "gallery/" in target:
            continue
        assert (page.parent / target).exists(), target


def test_the_build_names_links_of_the_site_that_lead_nowhere(tmp_path):
    (tmp_path / "other page.html").write_text('<h2 id="there">.</h2>', encoding="utf-8")
    good = ["#top", "other%20page.html", "other%20page.html#there", "https://example.org/a"]
    bad = ["#nowhere", "gone.html", "other%20page.html#gone", "https://example", "picture.png"]
    body = "".join(f'<a href="{link}">.</a>' for link in good + bad[:-1])
    (tmp_path / "page.html").write_text(
        f'<h1 id="top">.</h1>{body}<img src="{bad[-1]}">', encoding="utf-8"
    )
    found = load_extension("local_links").broken_links(tmp_path)
    assert found == [f"page.html: {link}" for link in sorted(bad)]


def test_every_page_says_first_whom_it_is_for():
    home = {ROOT / "README.md", DOCS / "index.md", DOCS / "develop" / "contributing.md"}
    for page in [path for path in PAGES if path not in home] + [ROOT / "CONTRIBUTING.md"]:
        _, body = re.split(
            r"^# .*$", page.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE
        )
        assert re.search(r"\bFor\b", body.strip().split("\n\n")[0]), page


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_a_page_names_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for name in re.findall(r"`(--[a-z][a-z0-9-]+)", text):
        assert name in OPTIONS, name
