from collections import Counter
from dataclasses import replace

import numpy as np

from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.cohort import participant_rng, plan_cohort, site_rng


def test_a_cohort_grows_without_changing_its_members():
    small, large = (plan_cohort(PhantomSettings(per_group=n)) for n in (2, 7))
    assert large[: len(small)] == small


def test_sites_are_balanced_within_each_group():
    specs = plan_cohort(PhantomSettings(per_group=6, sites=3))
    table = Counter((spec.diagnosis, spec.site) for spec in specs)
    assert set(table.values()) == {2}
    assert len(table) == 9


def test_one_participant_per_group_still_uses_every_site():
    specs = plan_cohort(PhantomSettings(per_group=1, sites=3))
    assert {spec.site for spec in specs} == {0, 1, 2}


def test_age_and_sex_carry_no_diagnosis():
    specs = plan_cohort(PhantomSettings(per_group=400))
    for group in ("AD", "DLB", "PD"):
        ages = [s.age for s in specs if s.diagnosis == group]
        women = np.mean([s.sex == "F" for s in specs if s.diagnosis == group])
        # Four standard errors: 6 years / sqrt(400) and 0.5 / sqrt(400).
        assert abs(np.mean(ages) - 72) < 4 * 6 / 20
        assert abs(women - 0.5) < 4 * 0.5 / 20


def test_purposes_people_and_sites_have_their_own_numbers():
    draws = [
        participant_rng(0, 0, "pose").random(),
        participant_rng(0, 0, "motion").random(),
        participant_rng(0, 1, "pose").random(),
        participant_rng(1, 0, "pose").random(),
        site_rng(0, 0, "pose").random(),
    ]
    assert len(set(draws)) == len(draws)
    assert participant_rng(0, 0, "pose").random() == draws[0]


def test_labels_are_unique_and_seed_matters():
    settings = PhantomSettings(per_group=40)
    specs = plan_cohort(settings)
    assert len({s.label for s in specs}) == 120
    assert plan_cohort(replace(settings, seed=1)) != specs
