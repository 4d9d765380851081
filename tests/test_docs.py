"""The documentation names everything the code has, and quotes nothing that it has not."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from bids_gevnet.cli.parser import build_parser
from bids_gevnet.cli.progress import RESOURCE_COLUMNS
from bids_gevnet.interfaces.confounds import MOTION
from bids_gevnet.learn.evaluate import saliency_maps
from bids_gevnet.learn.evaluate.predictions_table import FIXED_COLUMNS

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
PAGES = sorted(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)


@pytest.fixture(scope="module")
def pages():
    """The module that writes the reference pages."""
    pytest.importorskip("numpydoc")
    path = DOCS / "_ext" / "reference_pages.py"
    spec = importlib.util.spec_from_file_location("reference_pages", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_pages"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["reference_pages"]


def test_every_option_is_on_the_page_of_the_command_line(pages):
    page = pages.command_line_page()
    for action in build_parser()._actions:
        for name in action.option_strings:
            assert f"`{name}`" in page or name in ("-h", "--help"), name


def test_every_key_of_facts_and_model_card_has_a_sentence(pages):
    facts = (pages.ScanFacts, pages.SaliencyFacts)
    for kind in (*(k for outer in facts for k in pages._fact_classes(outer)), pages.ModelCard):
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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_links_between_files_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" in target or "/generated/" in target or "gallery/" in target:
            continue
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_options_that_a_page_names_exist(page):
    known = {name for action in build_parser()._actions for name in action.option_strings}
    known |= {"--image", "--engine", "--gpus", "--print-command"}  # of the Docker wrapper
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for name in re.findall(r"`(--[a-z][a-z0-9-]+)", text):
        assert name in known, name
