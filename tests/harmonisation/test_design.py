"""What a design can and cannot tell apart."""

import numpy as np
import pytest

from bids_gevnet.harmonisation.design import build_design


def test_site_effects_are_recovered_from_a_crossed_design() -> None:
    rng = np.random.default_rng(0)
    sites = rng.choice(["A", "B", "C"], 60)
    groups = rng.choice(["AD", "PD"], 60)
    age = rng.normal(70, 8, 60)
    y = 1.5 * (sites == "B") - 0.7 * (sites == "C") + 2.0 * (groups == "PD") + 0.1 * age
    design = build_design(list(sites), list(groups), {"age": list(age)})
    beta = np.linalg.lstsq(design.matrix, y, rcond=None)[0]
    assert beta[1] - beta[0] == pytest.approx(1.5)
    assert beta[2] - beta[0] == pytest.approx(-0.7)
    assert design.components == (("A", "B", "C"),)
    assert design.warnings == ()


def test_nested_diagnosis_is_named() -> None:
    design = build_design(["A", "A", "B", "B"], ["AD", "AD", "PD", "PD"])
    assert [len(c) for c in design.components] == [1, 1]
    assert "A: AD; B: PD" in design.warnings[0]
    assert design.association == pytest.approx(1)


def test_chain_of_shared_diagnoses_can_be_compared() -> None:
    """A and C share no diagnosis, but B shares one with each."""
    design = build_design(["A"] * 4 + ["B"] * 4 + ["C"] * 4, list("XXYYYYZZZZZZ"))
    assert design.components == (("A", "B", "C"),)


def test_strong_association_is_counted_in_people() -> None:
    sites = ["A"] * 20 + ["B"] * 20
    groups = ["AD"] * 19 + ["PD"] + ["PD"] * 19 + ["AD"]
    design = build_design(sites, groups)
    assert len(design.components) == 1
    assert design.association > 0.8
    people = [str(i % 20 if i < 20 else i) for i in range(40)]
    often = build_design(sites * 3, groups * 3, participants=people * 3)
    assert often.association == design.association


def test_covariate_tied_to_the_site_is_left_out() -> None:
    sites = ["A"] * 10 + ["B"] * 10
    design = build_design(sites, None, {"coil": ["x"] * 10 + ["y"] * 10})
    assert design.columns == ()
    assert "coil cannot be separated" in design.warnings[0]


def test_missing_and_constant_covariates() -> None:
    sites = ["A", "B"] * 10
    age: list[float | None] = [60.0 + i for i in range(19)] + [None]
    design = build_design(sites, None, {"age": age, "sex": ["F"] * 20})
    assert design.columns == ("age",)
    assert design.matrix[-1, 2] == 0
    assert any("age is missing for 1" in w for w in design.warnings)
    assert any("sex is the same" in w for w in design.warnings)


def test_covariates_need_scans() -> None:
    design = build_design(["A", "A", "B", "B"], None, {"age": [60.0, 70.0, 65.0, 75.0]})
    assert design.columns == ()
    assert "Too few people" in design.warnings[0]
