"""RISH-GLM against simulated scanners with known gains."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.features import log_rish_maps
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.harmonisation.glm import CLIP, fit_rish_glm, shrink
from bids_gevnet.harmonisation.rish import DEGREES

SMOOTH_MM = 15.0  # of the maps that are compared: finer ones show the noise of few people


def fit(scans: Sequence[Any], **options: Any) -> RishGains:
    maps = [log_rish_maps(s.samples, s.mask, voxel_mm=s.voxel_mm) for s in scans]
    return fit_rish_glm(
        maps,
        participants=[s.spec.label for s in scans],
        sites=[s.site for s in scans],
        groups=[s.spec.diagnosis for s in scans],
        covariates={"age": [s.spec.age for s in scans], "sex": [s.spec.sex for s in scans]},
        **options,
    )


def mean_map(scans: Sequence[Any], gains: RishGains | None = None) -> np.ndarray:
    maps = []
    for s in scans:
        samples = s.samples if gains is None else gains.apply(s.samples, s.site, s.mask)
        maps.append(log_rish_maps(samples, s.mask, voxel_mm=s.voxel_mm, fwhm_mm=SMOOTH_MM))
    return np.mean(maps, axis=0)


def site_difference(scans: Sequence[Any], gains: RishGains | None = None) -> np.ndarray:
    """Mean over the brain of |difference of log RISH between sites|, per degree."""
    a, b = (mean_map([s for s in scans if s.site == site], gains) for site in "AB")
    return np.nanmean(np.abs(a - b), axis=(0, 1, 2))


@pytest.fixture(scope="module")
def fitted(cohort: Any) -> RishGains:
    return fit(cohort.training)


def test_held_out_travellers_agree_after_harmonisation(cohort: Any, fitted: RishGains) -> None:
    before, after = site_difference(cohort.travellers), site_difference(cohort.travellers, fitted)
    cut = dict(zip(DEGREES, 1 - after / before, strict=True))
    assert cut[0] >= 0.7, cut
    assert cut[2] >= 0.7, cut
    assert cut[4] >= 0.5, cut


def test_each_traveller_becomes_more_alike(cohort: Any, fitted: RishGains) -> None:
    """Not only on average: the same person's two scans come closer, one by one."""
    labels = sorted({s.spec.label for s in cohort.travellers})
    pairs = [[s for s in cohort.travellers if s.spec.label == label] for label in labels]
    before = np.array([site_difference(pair) for pair in pairs])
    after = np.array([site_difference(pair, fitted) for pair in pairs])
    assert (after[:, :2] < 0.5 * before[:, :2]).all()
    assert (after[:, 2].mean() < 0.75 * before[:, 2].mean()).all()


def test_group_differences_are_kept(cohort: Any) -> None:
    """PD against AD in the region of the effect, as if all had been scanned at A."""
    gains = fit(cohort.training, reference="A")

    def difference(scans: Sequence[Any], using: RishGains | None) -> float:
        groups = {g: [s for s in scans if s.spec.diagnosis == g] for g in ("AD", "PD")}
        maps = {g: mean_map(members, using) for g, members in groups.items()}
        region = scans[0].region
        return float(np.nanmean((maps["PD"] - maps["AD"])[region][:, 1]))

    truth = difference(cohort.training_at_a, None)
    assert abs(truth) > 0.1
    assert difference(cohort.training, gains) == pytest.approx(truth, rel=0.1)
    # Without harmonisation the sites, on which the diagnoses lean, distort the difference.
    assert difference(cohort.training, None) != pytest.approx(truth, rel=0.1)


def test_gains_of_degree_0_are_those_of_the_scanner(cohort: Any) -> None:
    gains = fit(cohort.training, reference="A")
    scanner_b = gains.gains[1][cohort.training[0].mask]
    assert scanner_b[:, 0].mean() == pytest.approx(1 / 1.08, abs=0.01)
    assert not gains.corrects("A")


def test_mid_space_meets_in_the_middle(fitted: RishGains, cohort: Any) -> None:
    a, b = fitted.gains[:, cohort.training[0].mask, 0]
    np.testing.assert_allclose(a * b, 1, atol=2e-3)


def test_smaller_sites_get_fewer_degrees(cohort: Any) -> None:
    at_a = [s for s in cohort.training if s.site == "A"]
    at_b = [s for s in cohort.training if s.site == "B"]
    for people, corrected in ((2, []), (4, [0]), (6, [0, 2]), (9, [0, 2, 4])):
        gains = fit(at_a + at_b[:people])
        changed = (gains.gains[gains.sites.index("B")] != 1).any(axis=(0, 1, 2))
        # Shrinkage may drop what is allowed, never the reverse.
        assert set(np.asarray(DEGREES)[changed]) <= set(corrected)
        assert any(f"Site B has {people} participants" in w for w in gains.warnings)
    assert changed[0]
    assert changed[1]


def test_no_site_effect_no_correction(cohort: Any) -> None:
    """Negative control: one scanner under two names; what is corrected is near nothing."""
    rng = np.random.default_rng(0)
    scans = cohort.training_at_a
    maps = [log_rish_maps(s.samples, s.mask, voxel_mm=s.voxel_mm) for s in scans]
    gains = fit_rish_glm(
        maps,
        participants=[s.spec.label for s in scans],
        sites=list(rng.permutation(["X", "Y"] * (len(scans) // 2))),
        groups=[s.spec.diagnosis for s in scans],
    )
    assert np.abs(np.log(gains.gains[..., :3])).mean() < 0.02


def test_inseparable_sites_are_left_alone(cohort: Any) -> None:
    """AD only at A, PD only at B: no gain can be right, so none is applied and it says so."""
    scans = [
        s for s in cohort.training if (s.spec.diagnosis, s.site) in {("AD", "A"), ("PD", "B")}
    ]
    gains = fit(scans)
    assert (gains.gains == 1).all()
    assert gains.association == pytest.approx(1)
    assert any("cannot be separated" in w for w in gains.warnings)


def test_sites_that_can_be_compared_are_harmonised_beside_one_that_cannot() -> None:
    rng = np.random.default_rng(1)
    sites = ["A", "B"] * 12 + ["C"] * 8
    groups = ["AD", "AD", "PD", "PD"] * 6 + ["DLB"] * 8
    level = {"A": 0.0, "B": 0.4, "C": 0.8}
    maps = [(level[s] + rng.normal(0, 0.02, (3, 3, 3, 4))).astype(np.float32) for s in sites]
    gains = fit_rish_glm(
        maps, participants=[str(i) for i in range(32)], sites=sites, groups=groups
    )
    assert gains.gains[0].mean() == pytest.approx(np.exp(0.1), rel=0.01)
    assert gains.gains[1].mean() == pytest.approx(np.exp(-0.1), rel=0.01)
    assert (gains.gains[2] == 1).all()
    assert any("C: DLB" in w for w in gains.warnings)


def test_covariates_are_not_taken_for_sites() -> None:
    """Old people at B: without age in the model their age is taken for the scanner."""
    rng = np.random.default_rng(2)
    age = np.concatenate([rng.uniform(55, 75, 30), rng.uniform(65, 85, 30)])
    sites = ["A"] * 30 + ["B"] * 30
    maps = [np.full((2, 2, 2, 1), 0.03 * a + rng.normal(0, 0.01), np.float32) for a in age]
    names = [str(i) for i in range(60)]
    options: dict[str, Any] = {"participants": names, "sites": sites, "degrees": (0,)}
    with_age = fit_rish_glm(maps, covariates={"age": list(age)}, **options)
    without = fit_rish_glm(maps, **options)
    assert np.abs(np.log(with_age.gains)).max() < 0.005
    assert np.abs(np.log(without.gains)).max() > 0.05


def test_gains_are_clipped() -> None:
    sites = ["A"] * 12 + ["B"] * 12
    rng = np.random.default_rng(3)
    maps = [
        (10.0 * (s == "B") + rng.normal(0, 0.01, (2, 2, 2, 1))).astype(np.float32) for s in sites
    ]
    gains = fit_rish_glm(maps, participants=[str(i) for i in range(24)], sites=sites, degrees=(0,))
    assert gains.gains.max() == pytest.approx(CLIP)
    assert gains.gains.min() == pytest.approx(1 / CLIP)


def test_shrinkage_goes_from_nothing_to_all() -> None:
    rng = np.random.default_rng(4)
    delta = 0.3 + rng.normal(0, 0.1, (500, 1))
    certain = shrink(delta, np.full((500, 1), 1e-6), np.array([0.3]), np.array([1e-6]))
    np.testing.assert_allclose(certain[0] + certain[1], delta, atol=1e-6)
    vague = shrink(delta, np.full((500, 1), 10.0), np.array([0.3]), np.array([10.0]))
    np.testing.assert_allclose(vague[0] + vague[1], 0, atol=1e-3)


def test_voxels_outside_some_masks() -> None:
    """A voxel that few scans have gets its site's mean gain, not noise or NaN."""
    rng = np.random.default_rng(5)
    sites = ["A", "B"] * 12
    maps = []
    for number, site in enumerate(sites):
        values = (0.4 * (site == "B") + rng.normal(0, 0.02, (4, 4, 4, 1))).astype(np.float32)
        values[number % 4] = np.nan
        maps.append(values)
    maps += [m.copy() for m in maps]
    for m in maps:
        m[1:] = np.where(np.isnan(m[1:]), 0.2, m[1:])
    gains = fit_rish_glm(
        maps, participants=[str(i) for i in range(48)], sites=sites * 2, degrees=(0,)
    )
    assert np.isfinite(gains.gains).all()
    assert (gains.gains[0, 0] == gains.gains[0, 0, 0, 0]).all()
    assert gains.gains[0, 0, 0, 0] > 1.05


@pytest.mark.parametrize(
    ("maps", "options", "named"),
    [
        ([], {"participants": [], "sites": []}, "none"),
        (
            [np.zeros((2, 2, 2, 1), np.float32)] * 2,
            {"participants": ["1", "2"], "sites": ["A", "B"], "reference": "Z"},
            "'Z'",
        ),
        (
            [
                np.where(np.arange(8).reshape(2, 2, 2, 1) < 4, 1.0, np.nan).astype(np.float32),
                np.where(np.arange(8).reshape(2, 2, 2, 1) < 4, np.nan, 1.0).astype(np.float32),
            ],
            {"participants": ["1", "2"], "sites": ["A", "B"]},
            "no voxel",
        ),
    ],
)
def test_unusable_input_is_named(maps: Any, options: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        fit_rish_glm(maps, degrees=(0,), **options)


def test_two_shells_are_fitted_as_if_each_were_alone() -> None:
    rng = np.random.default_rng(8)
    sites = ["A", "B"] * 12
    people = [str(number) for number in range(24)]
    shells = [
        [rng.normal(step * (site == "B"), 0.1, (3, 3, 3, 4)).astype(np.float32) for site in sites]
        for step in (0.3, -0.2)
    ]
    apart = [fit_rish_glm(maps, participants=people, sites=sites) for maps in shells]
    both = fit_rish_glm(
        [np.concatenate(maps, -1) for maps in zip(*shells, strict=True)],
        participants=people,
        sites=sites,
        b_values=(1000.0, 3000.0),
    )
    expected = np.concatenate([gains.gains for gains in apart], -1)
    np.testing.assert_allclose(both.gains, expected, rtol=1e-6)
    assert both.shells == 2
    # The control: the two shells differ, in opposite directions.
    assert apart[0].gains[1, ..., 0].mean() < 0.97
    assert apart[1].gains[1, ..., 0].mean() > 1.03


def test_sessions_of_a_person_say_no_more_than_one() -> None:
    """The same scans three times over: the same gains, to the last digit that matters."""
    rng = np.random.default_rng(0)
    sites = ["A", "B"] * 8
    people = [f"p{i}" for i in range(16)]
    levels = rng.normal(0, 0.3, 16) + 0.4 * (np.arange(16) % 2)
    maps = [(level + rng.normal(0, 0.1, (3, 3, 3, 1))).astype(np.float32) for level in levels]
    once = fit_rish_glm(maps, participants=people, sites=sites, degrees=(0,))
    often = fit_rish_glm(maps * 3, participants=people * 3, sites=sites * 3, degrees=(0,))
    np.testing.assert_allclose(often.gains, once.gains, rtol=1e-4)
    assert (once.gains != 1).any()
    # As many people as scans would be surer of the same difference and correct more.
    surer = fit_rish_glm(
        maps * 3, participants=[f"q{i}" for i in range(48)], sites=sites * 3, degrees=(0,)
    )
    assert np.abs(np.log(surer.gains)).mean() > np.abs(np.log(once.gains)).mean()
