"""The effect between shells: both together tell the groups apart, and no shell alone."""

from dataclasses import replace

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.phantom import PhantomSettings, plan_cohort, simulate
from bids_gevnet.phantom.effects import participant_state, shell_coupling
from bids_gevnet.phantom.fibres import dispersion

TWO = {"groups": ("A", "B"), "per_group": 200, "b_values": (1000.0, 3000.0), "sites": 1}
POINTS = np.random.default_rng(0).uniform(-60, 60, (30, 3))


@pytest.fixture(scope="module")
def changes():
    """log S of every person, less what it would be without the effect: (person, shell, point)."""
    settings = PhantomSettings(**TWO, shell_effect=1.0)
    everybody = plan_cohort(settings)
    values = []
    for spec in everybody:
        coupling = shell_coupling(settings, spec)
        weights = np.array([coupling.weight(b) for b in settings.b_values])
        values.append(weights[:, None] * coupling.log_change(POINTS))
    return np.array(values), np.array([spec.group for spec in everybody])


def test_shells_go_together_in_one_group_and_apart_in_the_other(changes):
    values, group = changes
    np.testing.assert_allclose(values[group == 0, 1], values[group == 0, 0], rtol=1e-6)
    np.testing.assert_allclose(values[group == 1, 1], -values[group == 1, 0], rtol=1e-6)


@pytest.mark.parametrize("shell", [0, 1])
def test_a_single_shell_has_the_same_distribution_in_both_groups(changes, shell):
    from scipy.stats import ks_2samp

    values, group = changes
    one, other = (values[group == g, shell] for g in (0, 1))
    assert values.std() == pytest.approx(0.15, rel=0.05)
    # Points of one person hang together: each is compared over people, and none may stand out.
    p_values = [ks_2samp(a, b).pvalue for a, b in zip(one.T, other.T, strict=True)]
    assert min(p_values) > 0.05 / len(POINTS)
    product = values[:, 0] * values[:, 1]  # the control: together they could not differ more
    assert ks_2samp(product[group == 0, 0], product[group == 1, 0]).pvalue < 1e-20


def test_b0s_and_jitter_of_b_values_do_not_matter():
    settings = PhantomSettings(**TWO, shell_effect=1.0)
    apart = shell_coupling(settings, plan_cohort(settings)[1])
    assert apart.weight(0) == apart.weight(5) == 0
    assert apart.weight(985) == 1
    assert apart.weight(2985) == pytest.approx(-1, abs=1e-3)


def test_the_scan_shows_it():
    still = {"motion_mm": 0.0, "motion_deg": 0.0, "eddy": 0.0, "snr": np.inf, "directions": 6}
    for participant, expected in ((0, 1), (1, -1)):
        scan, plain = (
            simulate(participant, **(TWO | still), shell_effect=strength)
            for strength in (1.0, 0.0)
        )
        mask = scan.truth.mask
        low, high = (
            np.log(scan.data[..., shell].mean(-1)[mask] / plain.data[..., shell].mean(-1)[mask])
            for shell in (np.abs(scan.bvals - 1000) < 100, np.abs(scan.bvals - 3000) < 100)
        )
        assert np.corrcoef(low, high)[0, 1] == pytest.approx(expected, abs=0.02)
        np.testing.assert_array_equal(scan.data[..., 0], plain.data[..., 0])


def test_an_effect_between_shells_needs_two():
    with pytest.raises(InputError, match="effect between shells of 2 or more"):
        PhantomSettings(shell_effect=1.0)


def test_the_effect_on_anisotropy_is_in_all_white_matter_and_nothing_else():
    two = {"groups": ("A", "B"), "per_group": 200, "micro_effect": 0.0, "macro_effect": 0.0}
    plain, changed = (PhantomSettings(**two, anisotropy_effect=e) for e in (0.0, 1.0))
    everywhere = {0: [], 1: []}
    for spec in plan_cohort(changed):
        before, after = (participant_state(each, spec) for each in (plain, changed))
        assert before.dispersion_everywhere == 0
        assert replace(after, dispersion_everywhere=0.0) == before  # the same person otherwise
        everywhere[spec.group].append(after.dispersion_everywhere)
        field = dispersion(POINTS, after) - dispersion(POINTS, before)
        np.testing.assert_allclose(field, after.dispersion_everywhere, atol=1e-12)
    gap = np.mean(everywhere[1]) - np.mean(everywhere[0])
    assert gap == pytest.approx(0.05, abs=4 * 0.03 * np.sqrt(2 / 200))
    assert np.std(everywhere[0]) == pytest.approx(0.03, rel=0.2)
