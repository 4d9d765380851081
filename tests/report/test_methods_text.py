"""The methods text cites what it says and survives any gap; what runs say is tested on runs.

See tests/integration/test_methods_text.py for the text of every way a scan can go.
"""

import re

import pytest

from bids_gevnet.facts import (
    AcquisitionFacts,
    BiasFacts,
    CleaningFacts,
    CorrectionFacts,
    MaskFacts,
    PredictionFacts,
    RegistrationFacts,
    ScanFacts,
    ShellFacts,
    SourceFacts,
    SphereFacts,
)
from bids_gevnet.nn.registry import scan_networks
from bids_gevnet.report.correction_methods import METHODS, WHY_NOT_SUSCEPTIBILITY
from bids_gevnet.report.methods_text import describe_methods, methods_text
from bids_gevnet.report.networks import network_sentence
from bids_gevnet.report.references import REFERENCES

SCAN = ScanFacts(
    correction=(CorrectionFacts(method="ants", susceptibility="not_supported"),),
    mask=MaskFacts(method="otsu"),
    registration=RegistrationFacts(source="b0", template="MNI152NLin2009aSym"),
)


def test_the_default_template_is_cited_and_no_other():
    assert "mni" in describe_methods([SCAN]).references
    other = ScanFacts(registration=RegistrationFacts(source="b0", template="Infant"))
    methods = describe_methods([other])
    assert "mni" not in methods.references
    assert "The template was Infant." in methods_text([other])
    assert "The template was Infant, MNI152NLin2009aSym." in methods_text([other, SCAN])


def test_pipelines_are_counted_and_cited():
    taken = SourceFacts(
        pipeline="qsiprep",
        title="QSIPrep",
        version="1.0.1",
        taken=("the brain mask",),
        measures={"mean_fd": 0.1},
    )
    scans = [SCAN, ScanFacts(source=taken), ScanFacts(source=taken)]
    text = methods_text(scans)
    told = re.sub(r" \[\d+\]", "", text)
    assert "by QSIPrep 1.0.1 (2 of 3 scans), from which were taken: the brain mask." in told
    assert "10.1038/s41592-021-01185-5" in text
    assert "preprocessed by" not in methods_text([SCAN])


def test_what_cleaning_left_out_is_said_with_its_reason():
    few = CleaningFacts(denoising="none", denoising_reason="7 volumes are too few", unringing=True)
    asked = CleaningFacts(
        denoising="none", denoising_reason="--denoise none", unringing=False,
        unringing_reason="--unring none",
    )  # fmt: skip
    bias = BiasFacts(corrected=False, reason="one field divides all volumes")
    text = methods_text([ScanFacts(cleaning=(few, asked)), ScanFacts(bias=bias)])
    assert "Noise was not removed (1 of 2 runs): 7 volumes are too few. " in text
    assert "Noise was not removed (1 of 2 runs). " in text
    assert "Gibbs ringing was not removed (1 of 2 runs). " in text
    assert "field was not corrected (1 of 2 scans): one field divides all volumes." in text
    assert "--denoise" not in text


PARTIAL = (
    ScanFacts(),
    ScanFacts(correction=(CorrectionFacts(),), acquisition=(AcquisitionFacts(),)),
    ScanFacts(registration=RegistrationFacts(source="T1w")),
    ScanFacts(sphere=SphereFacts(nside=2)),
    ScanFacts(sphere=SphereFacts(sampled=(ShellFacts(b_value=1000.0),), kernel="x")),
    ScanFacts(prediction=PredictionFacts()),
)


@pytest.mark.parametrize("scans", [[], *([scan] for scan in PARTIAL), PARTIAL])
def test_what_is_not_known_is_not_said(scans):
    text = methods_text(scans)
    assert text.startswith("# Methods")
    assert "None" not in text


def test_numbers_point_to_the_list_and_all_of_it_is_cited():
    predicted = ScanFacts(prediction=PredictionFacts(network="ckn2+gevnet", harmonised=True))
    text = methods_text([SCAN, predicted])
    body, listed = text.split("## References")
    cited = {int(n) for group in re.findall(r"\[([\d, ]+)\]", body) for n in group.split(",")}
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert cited == set(numbers)
    assert "@" not in body


def test_every_sentence_cites_papers_of_the_list():
    sentences = [words.sentence + words.susceptibility for words in METHODS.values()]
    sentences += [network_sentence(name) for name in scan_networks()]
    keys = [
        key
        for sentence in sentences
        for group in re.findall(r"\[@([a-z,]+)\]", sentence)
        for key in group.split(",")
    ]
    assert keys
    assert set(keys) <= set(REFERENCES)


def test_every_network_has_a_sentence_of_its_own():
    sentences = [network_sentence(name) for name in scan_networks()]
    assert all(sentence.endswith(".") for sentence in sentences)
    assert len(set(sentences)) == len(scan_networks())
    for name in scan_networks():
        assert ("gevnet" in name) == ("[@gevnet]" in network_sentence(name))
        assert ("deepsphere" in name) == ("[@deepsphere]" in network_sentence(name))
    assert network_sentence("of somebody else") == ""


def test_a_network_of_somebody_else_is_named_without_a_description():
    text = methods_text([ScanFacts(prediction=PredictionFacts(network="mine"))])
    assert "classified by the network mine." in text
    assert "[@ckn]" not in text


def test_every_outcome_of_susceptibility_has_words():
    from typing import get_args

    from bids_gevnet.facts import CorrectionMethod, Susceptibility

    assert set(get_args(CorrectionMethod)) == set(METHODS)
    assert set(get_args(Susceptibility)) == {"corrected", *WHY_NOT_SUSCEPTIBILITY}


def test_every_reference_can_be_followed():
    for reference in REFERENCES.values():
        assert re.match(
            r"https://(doi\.org/10\.\d{4,}/\S+|arxiv\.org/abs/\d+\.\d+|"
            r"www\.jmlr\.org/papers/\S+\.html|pmc\.ncbi\.nlm\.nih\.gov/articles/PMC\d+|"
            r"hdl\.handle\.net/\d+/\d+)$",
            reference.url,
        )
        assert re.search(r"\((19|20)\d\d\)", reference.text)
