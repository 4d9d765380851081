"""Text of a dataset is shown as text: every field a user controls tries to run a script.

Both reports forbid scripts of others by a Content-Security-Policy. The pages are opened without
it here, so that escaping alone has to hold.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.group_study import GroupStudy, edit_json
from report.pages import Page

from bids_gevnet.bids.derivatives import FACTS
from bids_gevnet.bids.writing import write_text
from bids_gevnet.report.group.page import build_group_report
from bids_gevnet.report.group.quality_page import TABLE, build_quality_report
from bids_gevnet.report.subject.page import build_subject_report

KEPT = {"name", "network", "source", "method", "outcome", "format", "tools", "susceptibility"}
"""Words that the app itself chooses among; anything else there is not read at all."""

SENTENCES = {
    *("about", "constant", "level", "methods", "note", "numbers", "sentence", "text", "title"),
    *("unit", "what"),
}
"""What the group level writes for people, where a class or a column may be part of it."""


def hostile(field: str) -> str:
    """Text that runs a script, if anybody takes it for something else than text."""
    run = f"(window.ran=window.ran||[]).push('{field}')"
    return (
        f'<script>{run}</script><img src=x onerror={run}>" onmouseover="{run}" \'> '
        f"{{{{7*7}}}} {{% raw %}} ${{7*7}} </title></svg></textarea> javascript:{run}"
    )


def poison(value: Any, field: str) -> Any:
    """Replace every text of a JSON value, however deep, and name it by its keys."""
    if isinstance(value, dict):
        return {k: v if k in KEPT else poison(v, f"{field}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [poison(entry, field) for entry in value]
    return hostile(field) if isinstance(value, str) else value


def poison_words(value: Any, field: str) -> Any:
    """Replace the sentences of figures, and leave the words by which they are found."""
    if isinstance(value, list):
        return [poison_words(entry, field) for entry in value]
    if isinstance(value, dict):
        return {
            key: poison(entry, f"{field}.{key}")
            if key in SENTENCES
            else poison_words(entry, f"{field}.{key}")
            for key, entry in value.items()
        }
    return value


def poison_facts(path: Path) -> None:
    facts = json.loads(path.read_text())
    acquisition = {"scanner": {"manufacturer": "x", "model": "x", "software": "x"}, "t1w": "x",
                   "phase_encoding": "x", "phase_encoding_source": "x", "readout_source": "x",
                   "fieldmaps": ["x"], "notes": ["x"]}  # fmt: skip
    for run in facts["acquisition"]:
        run.update(acquisition)
    facts["correction"][0] |= {"note": "x", "program": "x"}
    facts["quality"]["gradient_checks"] = [{"text": "x", "outcome": "fits"}]
    facts["prediction"] = {"task": "x", "network": "ckn2", "label": "x", "warnings": ["x"],
                           "probabilities": {hostile("class"): 0.5, "b": 0.5}}  # fmt: skip
    path.write_text(json.dumps(poison(facts, "facts")))


def write_crash(folder: Path, node: str, message: str) -> None:
    """Leave what Nipype leaves of a node that failed."""
    write_text(
        folder / "logs" / "crash-20260101-120000-x.txt",
        f"Node: participant.{node}\nWorking directory: /w\n\nTraceback (most recent call last):\n"
        f'  File "x.py", line 1, in x\nRuntimeError: {message}\n',
    )


@pytest.fixture(scope="module")
def group_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = GroupStudy(
        tmp_path_factory.mktemp("hostile") / "out",
        groups=(hostile("class"), hostile("other class")),
        sites=(hostile("site"), hostile("other site")),
        people=8,
        folds=2,
    )
    study.who = [replace(person, sex=hostile("sex")) for person in study.who]
    out = study.write()
    for facts in out.rglob(f"*_{FACTS}"):
        poison_facts(facts)
    cohort = out / "group_cohort.tsv"
    cohort.write_text(cohort.read_text().replace("diagnosis", hostile("target"), 1))
    metrics = json.loads((out / "group_metrics.json").read_text())
    (out / "group_metrics.json").write_text(json.dumps(poison_words(metrics, "metrics")))
    edit_json(
        out / "group_metrics.json",
        target=hostile("target"),
        warnings=[hostile("warning")],
        left_out=[{"scan": hostile("participant"), "reason": hostile("reason")}],
        leave_site_out=[
            {"task": study.task, "site": hostile("site"), "run": False,
             "reason": hostile("site reason")}
        ],
    )  # fmt: skip
    edit_json(
        out / "logs/run-group.json",
        command=["bids_gevnet", hostile("command")],
        commit=hostile("commit"),
        started=hostile("started"),
    )
    columns = json.dumps([hostile("covariate"), "age"])
    names = {"target": hostile("target column"), "site": hostile("site column")}
    write_text(
        out / "logs/settings-group.toml",
        f"[learning]\ncovariates = {columns}\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in names.items()),
    )
    for card in out.rglob("model.json"):
        edit_json(card, warnings=[hostile("model warning")], dataset=hostile("dataset"))
        write_text(card.parent / "environment.txt", f"torch {hostile('version')}\n")
    for saliency in out.rglob("saliency.json"):
        regions = json.loads(saliency.read_text())["regions"]
        regions[0]["region"] = hostile("region")
        edit_json(saliency, atlas=hostile("atlas"), network=hostile("network"), regions=regions)
    return build_group_report(out)


@pytest.fixture(scope="module")
def quality_page(group_page: Path) -> Path:
    out = group_page.parent
    (out / TABLE).write_text((out / "group_cohort.tsv").read_text())
    return build_quality_report(out, hostile("target"))


@pytest.fixture
def subject_page(derivatives: Path) -> Path:
    (facts,) = derivatives.rglob(f"*_{FACTS}")
    poison_facts(facts)
    write_text(
        derivatives / "logs/settings.toml",
        f"[preprocessing]\ntemplate = {json.dumps(hostile('template file'))}\n",
    )
    edit_json(
        derivatives / "dataset_description.json",
        GeneratedBy=[{"Name": "bids_gevnet", "Container": {"Tag": hostile("container")}}],
    )
    write_crash(derivatives, "sub_01.scan.mask", hostile("error"))
    return build_subject_report(derivatives, "01")


SHOWN_FOR_GROUP = {
    *("class", "other class", "site", "other site", "sex", "target", "warning", "participant"),
    *("reason", "site reason", "command", "commit", "started", "covariate", "target column"),
    *("site column", "model warning", "version", "network", "metrics.baselines.title"),
    *("metrics.tasks.title", "metrics.tasks.models.title", "metrics.methods.bootstrap"),
}
SHOWN_FOR_QUALITY = {"class", "other class", "site", "other site", "sex", "target"}
SHOWN_FOR_SUBJECT = {
    *("class", "container", "error", "facts.acquisition.scanner.manufacturer"),
    *("facts.acquisition.scanner.model", "facts.acquisition.phase_encoding_source"),
    *("facts.acquisition.readout_source", "facts.acquisition.notes", "facts.correction.note"),
    *("facts.registration.text", "facts.quality.gradient_checks.text", "facts.sphere.kernel"),
    *("facts.prediction.label", "facts.prediction.warnings"),
}


SHOWN = {"group": SHOWN_FOR_GROUP, "quality": SHOWN_FOR_QUALITY, "subject": SHOWN_FOR_SUBJECT}


def assert_harmless(page: Page) -> None:
    """Check that no text of a dataset became a tag, an attribute or an address."""
    assert len(page.named("script")) == 1
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "src", "action", "formaction", "xlink:href"):
            address = attributes.get(name) or ""
            assert "javascript:" not in address, (tag, address)
    assert page.named("img") == [i for i in page.named("img") if i["src"].startswith("data:")]


def shown(text: str) -> set[str]:
    """Fields whose text stands in a page, from its first to its last character."""
    fields = set(re.findall(r"push\('([^']*)'\)</script>", text))
    return {field for field in fields if hostile(field) in text}


def test_nothing_of_a_study_becomes_part_of_the_group_report(group_page: Path) -> None:
    page = Page(group_page)
    assert_harmless(page)
    assert SHOWN_FOR_GROUP - shown(page.text) == set()


def test_nothing_of_a_study_becomes_part_of_the_page_of_its_quality(quality_page: Path) -> None:
    page = Page(quality_page)
    assert_harmless(page)
    assert SHOWN_FOR_QUALITY - shown(page.text) == set()


def test_nothing_of_a_scan_becomes_part_of_its_report(subject_page: Path) -> None:
    page = Page(subject_page)
    assert_harmless(page)
    assert SHOWN_FOR_SUBJECT - shown(page.text) == set()


@pytest.mark.parametrize("kind", ["group", "quality", "subject"])
def test_nothing_runs_even_without_a_policy(
    browser: Any, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    built = request.getfixturevalue(f"{kind}_page").read_text()
    unprotected, count = re.subn(r"<meta http-equiv=\"Content-Security-Policy[^>]*>", "", built)
    assert count == 1
    path = tmp_path / "unprotected.html"
    path.write_text(unprotected)
    browser.open(path)
    browser.evaluate(
        "for (const e of document.querySelectorAll('*')) for (const t of ['mouseover', 'focus'])"
        " e.dispatchEvent(new Event(t, {bubbles: true}))"
    )
    browser.evaluate("document.querySelectorAll('button, summary, th').forEach(e => e.click())")
    assert browser.evaluate("window.ran === undefined")
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]
    text = " ".join(browser.evaluate("document.body.textContent").split())
    assert SHOWN[kind] - shown(text) == set()


def test_the_text_would_run_if_it_were_not_escaped(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html><title>x</title><body>{hostile('here')}")
    browser.open(path)
    assert browser.wait_for("window.ran && window.ran.length === 2")
