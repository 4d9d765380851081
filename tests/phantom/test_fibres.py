import numpy as np
import pytest

from bids_gevnet.phantom import PhantomSettings, fibres
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.effects import (
    BASE_DISPERSION,
    CROSSING_ANGLE_DEG,
    TissueState,
    group_state,
    participant_state,
)


@pytest.fixture
def points():
    return np.random.default_rng(0).uniform([-70, -100, -60], [70, 70, 80], (4000, 3))


def angle_deg(first, second):
    return np.rad2deg(np.arccos(np.clip(np.sum(first * second, axis=-1), -1, 1)))


def test_directions_are_unit_vectors(points):
    for direction in fibres.fibre_directions(points, TissueState(50.0, 0.3, 0.0)):
        np.testing.assert_allclose(np.linalg.norm(direction, axis=-1), 1, atol=1e-12)


@pytest.mark.parametrize("angle", [30.0, 55.0, 80.0, 90.0])
def test_crossing_angle_is_the_asked_one_in_its_region(angle):
    centre = np.array(
        [fibres.CROSSING_CENTRE_MM, np.array(fibres.CROSSING_CENTRE_MM) * [-1, 1, 1]]
    )
    first, second = fibres.fibre_directions(centre, TissueState(angle, 0.1, 0.0))
    np.testing.assert_allclose(angle_deg(first, second), angle, atol=1e-6)
    np.testing.assert_allclose(fibres.second_fibre_share(centre), 0.5, atol=1e-6)


def test_changing_the_angle_keeps_the_bisector_and_the_rest_of_the_brain(points):
    control, patient = (
        fibres.fibre_directions(points, TissueState(a, 0.1, 0.0)) for a in (80.0, 55.0)
    )
    bisectors = [d[0] + d[1] for d in (control, patient)]
    bisectors = [b / np.linalg.norm(b, axis=-1, keepdims=True) for b in bisectors]
    np.testing.assert_allclose(*bisectors, atol=1e-12)
    outside = fibres.crossing_region(points) < 1e-12
    assert outside.sum() > 1000
    np.testing.assert_allclose(control[0][outside], patient[0][outside], atol=1e-9)


def test_field_is_smooth(points):
    step = np.array([0.5, 0.3, -0.4])
    state = TissueState(55.0, 0.3, 0.0)
    for here, there in zip(
        fibres.fibre_directions(points, state),
        fibres.fibre_directions(points + step, state),
        strict=True,
    ):
        assert angle_deg(here, there).max() < 5


def test_field_is_symmetric_between_hemispheres(points):
    mirror = np.array([-1.0, 1.0, 1.0])
    state = TissueState(80.0, 0.1, 0.0)
    np.testing.assert_allclose(
        fibres.second_fibre_share(points), fibres.second_fibre_share(points * mirror)
    )
    at_midline = np.array([[0.0, -10.0, 20.0]])
    arc, _ = fibres.fibre_directions(at_midline, state)
    assert abs(arc[0, 2]) < 1e-12  # left-right and front-back only


def test_dispersion_differs_in_its_region_only(points):
    values = fibres.dispersion(points, TissueState(80.0, 0.5, 0.0))
    weight = fibres.dispersion_region(points)
    np.testing.assert_allclose(values, BASE_DISPERSION + 0.4 * weight)
    assert values[weight > 0.99].min() > 0.49


def test_groups_differ_from_each_other_in_one_microscopic_thing_each():
    settings = PhantomSettings(groups=tuple("ABCDE"))
    states = [group_state(settings, g) for g in range(5)]
    assert states[0] == TissueState(CROSSING_ANGLE_DEG, BASE_DISPERSION, 0.0)
    assert len(set(states)) == 5
    for odd in (1, 3):
        assert states[odd].dispersion == BASE_DISPERSION
        assert states[odd].crossing_angle_deg < CROSSING_ANGLE_DEG
    for even in (2, 4):
        assert states[even].crossing_angle_deg == CROSSING_ANGLE_DEG
        assert states[even].dispersion > BASE_DISPERSION


@pytest.mark.parametrize(("micro", "macro"), [(0, 0), (1, 0), (0, 1)])
def test_each_kind_of_effect_can_be_switched_off(micro, macro):
    settings = PhantomSettings(per_group=300, micro_effect=micro, macro_effect=macro)
    specs = plan_cohort(settings)
    states = {g: [participant_state(settings, s) for s in specs if s.group == g] for g in range(3)}
    mean = {
        g: np.mean([(s.crossing_angle_deg, s.dispersion, s.atrophy) for s in v], axis=0)
        for g, v in states.items()
    }
    spread = np.array([3.0, 0.03, 0.03]) * 4 / np.sqrt(300)  # four standard errors
    assert (abs(mean[1][0] - mean[0][0]) > 10) == bool(micro)
    assert (abs(mean[2][1] - mean[0][1]) > 0.2) == bool(micro)
    assert (mean[1][2] - mean[0][2] > 0.05) == bool(macro)
    if not micro and not macro:
        for g in (1, 2):
            assert np.all(np.abs(mean[g] - mean[0]) < np.sqrt(2) * spread)
