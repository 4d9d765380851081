import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.phantom import PhantomSettings, acquisition
from bids_gevnet.phantom.anatomy import HEAD_CENTRE_MM
from bids_gevnet.phantom.cohort import ParticipantSpec, plan_cohort
from bids_gevnet.phantom.sites import make_site

PLAN = PhantomSettings(voxel_mm=9, directions=16, sites=4)


def apply(matrix, points):
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def random_pose(seed, site):
    spec = plan_cohort(PhantomSettings(seed=seed))[0]
    return acquisition.draw_pose(PLAN, spec, site)


def voxel_world(site):
    index = np.stack(np.meshgrid(*map(np.arange, site.shape), indexing="ij"), axis=-1)
    return apply(site.affine, index)


@pytest.mark.parametrize("site_index", range(4))
@pytest.mark.parametrize("susceptibility", [False, True])
@pytest.mark.parametrize("polarity", [-1, 1])
def test_every_voxel_sees_the_point_that_is_carried_to_it(site_index, susceptibility, polarity):
    """Forward model as the package docstring states it, against the inverse in use."""
    site = make_site(PLAN, site_index)
    pose = random_pose(site_index, site)
    motion = acquisition.motion_matrix(np.array([2.0, -1.0, 3.0, 0.05, -0.03, 0.04]))
    eddy = np.array([1.2, 0.01, -0.02, 0.015])
    points, gain = acquisition.seen_to_template(
        site,
        pose=pose,
        motion=motion,
        eddy=eddy,
        polarity=polarity,
        susceptibility=susceptibility,
    )

    def carry(template):
        moved = apply(motion, apply(pose, template))
        along = (moved - site.centre_mm) @ site.voxel_axes
        shift = eddy[0] + along @ eddy[1:]
        if susceptibility:
            hertz = acquisition.field_hz(template)
            shift = shift + polarity * hertz * site.readout_s * site.voxel_mm[1]
        return moved + shift[..., None] * site.voxel_axes[:, 1]

    seen = voxel_world(site)
    np.testing.assert_allclose(carry(points), seen, atol=1e-5)
    # Intensity: a small step along p in the moved head is stretched by 1 / gain.
    step = 1e-3
    back = np.linalg.inv(motion @ pose)[:3, :3] @ site.voxel_axes[:, 1] * step
    stretched = (carry(points + back) - carry(points)) @ site.voxel_axes[:, 1] / step
    np.testing.assert_allclose(1 / gain, stretched, rtol=1e-3)


def test_susceptibility_pushes_opposite_ways_for_opposite_polarity():
    site = make_site(PLAN, 0)
    pose = random_pose(0, site)
    plain, up, down = (
        acquisition.seen_to_template(
            site, pose=pose, motion=np.eye(4), eddy=np.zeros(4), polarity=p, susceptibility=s
        )[0]
        for p, s in ((1, False), (1, True), (-1, True))
    )
    shift_up, shift_down = (np.linalg.norm(p - plain, axis=-1) for p in (up, down))
    assert shift_up.max() > 3  # mm: a distortion that is worth correcting
    strong = shift_up > 2
    cosine = np.sum((up - plain) * (down - plain), axis=-1) / (shift_up * shift_down + 1e-12)
    assert np.all(cosine[strong] < -0.99)


def test_motion_turns_right_handed_about_the_origin_in_order_x_y_z():
    quarter = np.pi / 2
    turn_z = acquisition.motion_matrix(np.array([0, 0, 0, 0, 0, quarter]))
    np.testing.assert_allclose(apply(turn_z, np.array([1.0, 0, 0])), [0, 1, 0], atol=1e-12)
    both = acquisition.motion_matrix(np.array([5.0, 0, 0, quarter, 0, quarter]))
    # Rx takes y to z, Rz leaves z alone; then the translation.
    np.testing.assert_allclose(apply(both, np.array([0.0, 1, 0])), [5, 0, 1], atol=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 500), st.floats(0, 5), st.floats(0, 5))
def test_motion_starts_at_rest_and_keeps_its_limits(index, mm, deg):
    plan = PhantomSettings(motion_mm=mm, motion_deg=deg)
    spec = ParticipantSpec(index, "x", 0, 0, "A", 70.0, "F")
    motion = acquisition.draw_motion(plan, spec, 40)
    assert not motion[0].any()
    assert np.abs(motion[:, :3]).max() <= mm + 1e-9
    assert np.abs(np.rad2deg(motion[:, 3:])).max() <= deg + 1e-9
    assert np.abs(motion[:, :3]).max() >= 0.29 * mm


@given(st.integers(0, 2000))
@settings(max_examples=50)
def test_pose_is_rotation_times_size_and_keeps_its_limits(seed):
    site = make_site(PLAN, 1)
    pose = random_pose(seed, site)
    rotation = acquisition.pose_rotation(pose)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(rotation) > 0
    left, _, right = np.linalg.svd(pose[:3, :3])
    np.testing.assert_allclose(left @ right, rotation, atol=1e-9)  # polar rotation
    sizes = np.linalg.norm(pose[:3, :3], axis=0)
    assert np.abs(sizes - 1).max() <= PLAN.pose_size + 1e-12
    centre = apply(pose, np.array(HEAD_CENTRE_MM))
    assert np.abs(centre - site.centre_mm).max() <= PLAN.pose_mm + 1e-9


@pytest.mark.parametrize("site_index", range(4))
def test_eddy_parameters_are_linear_in_the_gradient(site_index):
    site = make_site(PLAN, site_index)
    eddy = acquisition.eddy_parameters(site)
    regressors = site.bvecs_ras * np.sqrt(site.bvals)[:, None]
    _, residual, rank, _ = np.linalg.lstsq(regressors, eddy, rcond=None)
    assert rank == 3
    assert residual.max() < 1e-20
    weighted = site.bvals > 50
    assert np.abs(eddy[weighted, 0]).max() > 0.3
    assert np.abs(eddy[~weighted]).max() < 0.2


def test_noise_is_rician():
    rng = np.random.default_rng(0)
    background = acquisition.add_rician_noise(np.zeros(200_000, np.float32), 2.0, rng)
    assert background.mean() == pytest.approx(2 * np.sqrt(np.pi / 2), rel=0.01)
    assert background.std() == pytest.approx(2 * np.sqrt(2 - np.pi / 2), rel=0.01)
    bright = acquisition.add_rician_noise(np.full(200_000, 100, np.float32), 2.0, rng)
    assert bright.std() == pytest.approx(2.0, rel=0.01)
    assert bright.mean() == pytest.approx(100 + 2**2 / 200, abs=0.02)


def test_infinite_snr_adds_nothing():
    signal = np.linspace(0, 10, 50, dtype=np.float32)
    noisy = acquisition.add_rician_noise(signal, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(noisy, signal)


@pytest.mark.parametrize(
    ("probability", "low", "high"), [(0, 0, 0), (1, 400, 400), (0.25, 60, 140)]
)
def test_slices_are_dropped_with_their_probability_inside_the_brain(probability, low, high):
    mask = np.zeros((10, 10, 12), bool)
    mask[2:8, 2:8, 4:9] = True
    plan = PhantomSettings(outliers=probability)
    weighted = np.arange(1, 401)
    dropped = acquisition.drop_slices(plan, plan_cohort(plan)[0], mask, weighted)
    assert low <= len({v for v, _, _ in dropped}) <= high
    assert all(4 <= k < 9 and 0 < factor < 0.5 and v >= 1 for v, k, factor in dropped)
    assert len({(v, k) for v, k, _ in dropped}) == len(dropped)
