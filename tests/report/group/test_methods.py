"""The methods text of the group level says what ran and nothing else."""

import re
from dataclasses import replace
from typing import Any

import pytest

from bids_gevnet.report.group.methods import (
    GroupFacts,
    describe_group,
    facts_of_run,
    planned_facts,
)
from bids_gevnet.report.group.study_files import read_study
from bids_gevnet.report.methods_text import to_markdown
from bids_gevnet.report.references import REFERENCES
from bids_gevnet.settings import LearningSettings, Settings


@pytest.fixture(scope="module")
def facts(group_output) -> GroupFacts:
    return facts_of_run(read_study(group_output))


def text_of(facts: GroupFacts) -> str:
    return " ".join(text for _, text in describe_group(facts).paragraphs)


def test_the_run_is_described(facts):
    text = text_of(facts)
    assert "16 participants from 2 sites were classified by diagnosis (AD, PD)" in text
    assert "4-fold cross-validation" in text
    assert "12 epochs of 64 samples per class" in text
    assert "from 0.003 to 0.0003 and a weight decay of 1e-05" in text
    assert "2 networks were compared" in text
    assert "trained without a site and tested on it" in text
    assert "99 times" in text
    assert "site alone, motion alone, age and sex alone" in text


def test_what_did_not_run_is_not_described(facts):
    text = text_of(
        replace(facts, harmonised=False, leave_site_out=False, saliency=False, permutations=None)
    )
    assert "Sites were not harmonised." in text
    assert "[@rishglm]" not in text
    assert "without a site" not in text
    assert "[@integrated]" not in text
    assert "[@sanity]" not in text
    assert "adapted to" not in text
    assert "[@permutation" not in text
    assert "[@deepsphere]" not in text
    assert text_of(GroupFacts()) == ""


def test_adaptation_is_described_with_its_danger(facts):
    external = {"harmonised": True, "adapted": [{"site": "C", "people": 9}]}
    validated = replace(facts, external=external | {"harmonised_sites": ["C"]})
    for text in (text_of(replace(facts, adapted=True)), text_of(validated)):
        assert "estimated from its unlabelled scans" in text
        assert "removes a part of the difference between diagnoses" in text
    assert "9 people" in text_of(validated)
    assert "taken as they are" not in text_of(validated)


def test_only_the_intervals_that_were_used_are_cited(facts):
    text = text_of(replace(facts, intervals=frozenset({"wilson"})))
    assert "[@wilson]" in text
    assert "[@boyd]" not in text


def test_reference_site_or_mean(facts):
    assert "brought to their mean [@midrish]" in text_of(facts)
    text = text_of(replace(facts, reference_site="A"))
    assert "brought to the site A" in text
    assert "[@midrish]" not in text


def test_a_plan_is_described_from_settings():
    settings = Settings(learning=LearningSettings(network="all", folds=3, epochs=7))
    text = text_of(planned_facts(settings, labels=["a", "b", "b"], target="group"))
    assert "3 participants were classified by group (a, b)" in text
    assert "3-fold" in text
    assert "6 networks" in text
    assert "DeepSphere [@deepsphere]" in text
    assert "7 epochs" in text


def test_what_the_training_changes_of_the_paper_is_said():
    def said(**learning: Any) -> str:
        settings = Settings.from_tables({"learning": learning}, source="a test")
        return text_of(planned_facts(settings, labels=["a", "b"], target="group"))

    assert "has 15 epochs and a learning rate of 1e-05; at that rate" in said()
    assert "Epochs and learning rate are those of the GEVNet paper" in said(protocol="paper")
    changed = said(protocol="paper", epochs=7)
    assert "for 7 epochs" in changed
    assert "are those of the GEVNet paper" not in changed


def test_a_start_from_a_model_is_said(facts):
    assert "Training started from" not in text_of(facts)
    text = text_of(replace(facts, options={**facts.options, "init_model": "0123456789abcdef"}))
    assert "weights of a trained model (SHA-256 0123456789ab)" in text


def test_markdown_has_numbers_and_a_list(facts):
    text = to_markdown(describe_group(facts))
    assert "[@" not in text
    cited = {int(n) for group in re.findall(r"\[([\d, ]+)\]", text) for n in group.split(",")}
    listed = {int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)}
    assert cited == listed


def test_every_reference_can_be_found():
    for key, reference in REFERENCES.items():
        assert reference.url.startswith("https://"), key
        assert re.search(r"\((19|20)\d\d\)", reference.text), key
    assert len({reference.url for reference in REFERENCES.values()}) == len(REFERENCES)
