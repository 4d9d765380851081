"""Whether a column is a number, and what is said of one that cannot be predicted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.folds import make_folds, number_strata
from bids_gevnet.learn.cohort.members import cohort_from_json, cohort_to_json, read_cohort
from bids_gevnet.learn.cohort.number_checks import guess_kind, to_number
from bids_gevnet.learn.cohort.site_splits import plan_sites
from bids_gevnet.learn.cohort.tasks import REGRESSION, Task
from bids_gevnet.learn.train.planning import plan_study
from bids_gevnet.settings import LearningSettings


def column(*texts: str) -> dict[str, str]:
    return {str(number): text for number, text in enumerate(texts)}


@pytest.mark.parametrize(
    ("entries", "number"),
    [
        (["AD", "PD"] * 9, False),
        (["0", "1", "2"] * 6, False),  # codes of groups
        (["0", "0.5", "1", "2", "3"] * 4, False),  # a rating of five steps
        ([str(i % 7) for i in range(28)], False),  # seven coded groups of four
        ([f"{50 + i / 3:.1f}" for i in range(24)], True),
        ([str(60 + i) for i in range(8)], True),  # eight people, eight ages
        ([str(20 + i % 9) for i in range(24)], True),  # a score that few share
        ([str(i % 12) for i in range(96)], True),
        ([*(str(60 + i) for i in range(20)), "89+"], True),  # a mistake makes no classes
        ([f"scanner {i}" for i in range(30)], False),
    ],
)
def test_a_column_is_a_number_if_it_has_many(entries: list[str], number: bool) -> None:
    assert (guess_kind(column(*entries)) == REGRESSION) is number


@pytest.mark.parametrize("text", ["", "inf", "-Infinity", "nan", "1e999", "63,5", "89+", "1_0"])
def test_what_is_no_finite_number(text: str) -> None:
    assert to_number(text) is None


@pytest.fixture
def ages(make_study: Any) -> Any:
    """Write twelve people; change some of their ages, and read them."""
    study = make_study(per_class=6, effect=0.0)

    def read(changes: dict[str, str] | None = None, **options: Any) -> Any:
        path = study.bids_dir / "participants.tsv"
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        for row in rows[1:]:
            row[3] = (changes or {}).get(row[0], (changes or {}).get("all", row[3]))
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
        options = {"folds": 2, "target": "age"} | options
        return read_cohort(study.output_dir, study.bids_dir, **options)

    read.study = study
    return read


def test_ages_become_a_regression_and_say_so(ages: Any) -> None:
    (ages.study.bids_dir / "participants.json").write_text('{"age": {"Units": "year"}}')
    cohort = ages()
    assert cohort.is_regression
    assert cohort.unit == "year"
    (remark,) = cohort.remarks
    assert "12 different numbers" in remark
    assert "--task classification" in remark
    again = cohort_from_json(cohort_to_json(cohort))
    assert (again.kind, again.unit, again.remarks) == (cohort.kind, cohort.unit, cohort.remarks)
    assert again.rows == cohort.rows
    plan = plan_study(cohort, LearningSettings(folds=2, target="age"), seed=0)
    assert plan.tasks == (Task(("age",), REGRESSION),)
    assert plan.tasks[0].slug == "age"


def test_the_guess_can_be_overruled(ages: Any) -> None:
    with pytest.raises(InputError, match="at least 2 participants of every class"):
        ages(task="classification")
    few = {"all": "60", "sub-001": "61", "sub-101": "61"}
    assert ages(few).kind == "classification"
    forced = ages(few, task="regression")
    assert forced.is_regression
    assert forced.remarks == ()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"sub-000": "89+", "sub-001": "unknown"},
            r"finite numbers in column age.*'89\+'.*sub-000",
        ),
        ({"sub-000": "inf"}, "'inf' .sub-000"),
        ({"sub-000": "63,5"}, "with a point for decimals"),
        ({"all": "70"}, "two different numbers in column age.*only 70"),
        ({"all": "70", "sub-003": "71"}, "differ in every training fold.*sub-003 alone"),
    ],
)
def test_what_cannot_be_predicted_is_said(
    ages: Any, changes: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        ages(changes, task="regression")


def test_missing_numbers_are_left_out_and_few_people_refused(ages: Any) -> None:
    cohort = ages({"sub-000": "n/a", "sub-101": ""})
    assert {entry.scan for entry in cohort.left_out} == {"sub-000", "sub-101"}
    assert all("no age" in entry.reason for entry in cohort.left_out)
    with pytest.raises(InputError, match="lower --folds to 10"):
        ages(folds=11)


def test_folds_hold_all_quantiles_and_keep_people_together() -> None:
    rng = np.random.default_rng(0)
    people = [f"p{i // 2}" for i in range(60)]  # two sessions each, a year apart
    numbers = np.repeat(rng.uniform(40, 90, 30), 2) + np.tile([0, 1], 30)
    strata = number_strata(people, numbers.tolist(), folds=5)
    fold = make_folds(people, strata, ["A"] * 60, folds=5, seed=1)
    assert all(len(set(fold[[i, i + 1]])) == 1 for i in range(0, 60, 2))
    assert len(set(strata)) == 5
    for part in range(5):
        assert {strata[i] for i in np.flatnonzero(fold == part)} == set(strata)
        # Means of folds of six people drawn blindly would spread by 15 / sqrt(6) = 6.
        assert abs(numbers[fold == part].mean() - numbers.mean()) < 5


def test_few_people_still_have_folds() -> None:
    assert number_strata(["a", "b", "c"], [1, 2, 3], folds=3) == ["1", "1", "1"]


def test_a_site_is_left_out_where_the_others_differ(ages: Any) -> None:
    rows = ages().rows
    splits = plan_sites(rows, None, wanted=None)
    assert [split.site for split in splits if split.reason is None] == ["A", "B"]
    for split in splits:
        assert not {rows[i].participant for i in split.training} & {
            rows[i].participant for i in split.testing
        }
    alike = [replace(row, label="70") if row.site == "B" else row for row in rows]
    first, second = plan_sites(alike, None, wanted=True)
    assert "no two people with different numbers" in str(first.reason)
    assert second.reason is None
