"""The methods text describes what ran, cites it, and nothing else."""

import re

import pytest

from bids_gevnet.report.methods_text import describe_methods, methods_text
from bids_gevnet.report.references import REFERENCES

ANTS = {
    "tools": {"correction": "ants", "masking": "otsu"},
    "correction": [{"method": "ants"}],
    "mask": {"method": "otsu"},
    "registration": {"source": "b0", "template": "MNI152NLin2009aSym"},
    "sphere": {"b_value": 998.0, "directions": 30, "nside": 4, "kernel": "thin_plate_spline",
               "smoothing": 0.1},
    "quality": {"coherence": {}},
}  # fmt: skip
EDDY = ANTS | {
    "correction": [{"method": "eddy", "susceptibility": True}],
    "mask": {"method": "bet"},
    "registration": {"source": "T1w", "template": "MNI152NLin2009aSym"},
}


def test_pip_only_tools():
    methods = describe_methods(ANTS)
    assert {"antsx", "otsu", "mni", "healpix", "rish", "coherence"} <= set(methods.references)
    assert not {"fsl", "eddy", "topup", "bet", "ckn"} & set(methods.references)
    text = methods_text(ANTS)
    assert "neither eddy currents nor susceptibility" in text
    assert "b = 998 s/mm² (30 directions)" in text
    assert "192 points (nside 4)" in text


def test_fsl():
    methods = describe_methods(EDDY)
    assert {"fsl", "eddy", "outliers", "topup", "bet"} <= set(methods.references)
    assert "otsu" not in methods.references
    assert "T1-weighted" in methods_text(EDDY)


def test_scans_that_differ_are_counted():
    text = methods_text([ANTS, ANTS, EDDY])
    assert "(2 of 3 runs)" in text
    assert "(1 of 3 runs)" in text
    assert "(1 of 3 scans)" in text


def test_early_facts_are_enough():
    text = methods_text({"tools": {"correction": "eddy", "masking": "bet"}})
    assert "eddy of FSL" in text
    assert "BET of FSL" in text
    assert "HEALPix" not in text


def test_another_template_is_not_called_mni():
    other = ANTS | {"registration": {"source": "b0", "template": "Infant"}}
    methods = describe_methods(other)
    assert "mni" not in methods.references
    assert "Infant" in methods_text(other)


@pytest.mark.parametrize("facts", [{}, [], [{}], {"correction": None, "acquisition": [None]}])
def test_nothing_known_is_no_crash(facts):
    assert methods_text(facts).startswith("# Methods")


def test_numbers_point_to_the_list_and_all_of_it_is_cited():
    text = methods_text([ANTS, EDDY | {"prediction": {"exists": True}}])
    body, listed = text.split("## References")
    cited = {int(n) for group in re.findall(r"\[([\d, ]+)\]", body) for n in group.split(",")}
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert cited == set(numbers)
    assert "@" not in body


def test_every_reference_can_be_followed():
    for reference in REFERENCES.values():
        assert re.match(
            r"https://(doi\.org/10\.\d{4,}/\S+|arxiv\.org/abs/\d+\.\d+|"
            r"www\.jmlr\.org/papers/\S+\.html|pmc\.ncbi\.nlm\.nih\.gov/articles/PMC\d+)$",
            reference.url,
        )
        assert re.search(r"\((19|20)\d\d\)", reference.text)


def test_fallbacks_are_part_of_the_methods():
    run = {"readout_is_dummy": True, "phase_encoding_is_guess": True}
    text = methods_text(ANTS | {"acquisition": [run]})
    assert "dummy value" in text
    assert "was assumed" in text


@pytest.mark.parametrize(("nside", "highest"), [(1, 2), (2, 4), (4, 6), (8, 6)])
def test_only_the_degrees_that_the_grid_allows_are_named(nside, highest):
    text = methods_text(ANTS | {"sphere": {"nside": nside}})
    assert f"degrees up to {highest} of" in text
