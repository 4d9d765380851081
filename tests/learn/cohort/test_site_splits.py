"""Which sites are left out, who is trained on, and why not."""

from pathlib import Path

from bids_gevnet.learn.cohort.scan_rows import ScanRow
from bids_gevnet.learn.cohort.site_splits import NOT_ASKED, plan_sites


def scan(person: str, label: str, site: str, number: int = 0) -> ScanRow:
    return ScanRow(
        participant=person,
        session=None,
        scan=f"{person}-{number}",
        label=label,
        site=site,
        age=None,
        sex=None,
        motion=None,
        covariates={},
        image=Path("i"),
        mask=Path("m"),
    )


def cohort(**sites: str) -> list[ScanRow]:
    """A="PPD" means two people with P and one with D at site A."""
    return [
        scan(f"{site}{i}", label, site)
        for site, labels in sites.items()
        for i, label in enumerate(labels)
    ]


def test_trained_without_the_site_and_tested_on_it() -> None:
    rows = cohort(A="PPDD", B="PPDD", C="PD")
    splits = plan_sites(rows, ("D", "P"), wanted=None)
    assert [split.site for split in splits] == ["A", "B", "C"]
    for split in splits:
        assert split.reason is None
        assert {rows[i].site for i in split.testing} == {split.site}
        assert split.site not in {rows[i].site for i in split.training}
        assert sorted((*split.training, *split.testing)) == list(range(len(rows)))


def test_traveller_is_not_trained_on_when_either_site_is_left_out() -> None:
    rows = [*cohort(A="PPDD", B="PPDD"), scan("T", "P", "A"), scan("T", "P", "B", 1)]
    for split in plan_sites(rows, ("D", "P"), wanted=None):
        assert "T" not in {rows[i].participant for i in split.training}
        assert "T" in {rows[i].participant for i in split.testing}


def test_other_classes_are_left_aside() -> None:
    rows = cohort(A="PPDDX", B="PPDDX")
    for split in plan_sites(rows, ("D", "P"), wanted=None):
        assert "X" not in {rows[i].label for i in (*split.training, *split.testing)}


def test_reasons_are_given() -> None:
    first, second, third = plan_sites(cohort(A="PPP", B="DDDPP", C="D"), "DP", wanted=True)
    assert first.reason is None
    assert second.reason is not None
    assert "1 of D" in second.reason
    assert third.reason is not None
    assert "1 participant there" in third.reason


def test_one_possible_site_is_left_out_only_when_asked() -> None:
    rows = cohort(A="PPP", B="DDDPP")
    assert [s.reason is None for s in plan_sites(rows, "DP", wanted=True)] == [True, False]
    reasons = [split.reason for split in plan_sites(rows, "DP", wanted=None)]
    assert "--leave-site-out" in str(reasons[0])
    assert "0 of D" in str(reasons[1])


def test_off_is_off() -> None:
    splits = plan_sites(cohort(A="PPDD", B="PPDD"), "DP", wanted=False)
    assert [(s.reason, s.training) for s in splits] == [(NOT_ASKED, ())] * 2


def test_single_site_has_nothing_to_be_left_out_for() -> None:
    (split,) = plan_sites(cohort(A="PPDD"), "DP", wanted=None)
    assert split.reason == "there is no other site to train on"
