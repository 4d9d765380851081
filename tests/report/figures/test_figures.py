"""Pictures show what they claim: positions, outlines, angles, colours."""

import numpy as np
import pytest
from report.pictures import blob, decode

from bids_gevnet.report.figures.brain import (
    PIXEL_MM,
    Sampler,
    bounding_box,
    draw_map,
    draw_overlay,
    outline,
)
from bids_gevnet.report.figures.drawing import PALETTE, figure, to_bytes, to_png_uri, to_svg
from bids_gevnet.report.figures.sphere import (
    common_radius,
    first_view,
    glyph_scene,
    gradient_scene,
    voxel_signal,
)
from bids_gevnet.report.page import show
from bids_gevnet.report.scan_files import Volume
from bids_gevnet.report.subject.sections import choose_voxels
from bids_gevnet.sphere.resampling import distinct_directions


@pytest.fixture
def affine() -> np.ndarray:
    matrix = np.diag([4.0, 4, 4, 1])
    matrix[:3, 3] = [-40, -48, -44]
    return matrix


@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, 1, 1), (1, -1, -1)])
def test_a_slice_shows_the_same_place_whatever_the_grid(affine, flips):
    turned = affine.copy()
    turned[:3] *= np.array([*flips, 1.0])
    turned[:3, 3] = -np.array(flips) * [40, 48, 44]
    box = (np.full(3, -50.0), np.full(3, 50.0))
    # A ball to the right, in front and above: right, up and up in the picture.
    ball = Sampler(blob([16, 20, 12], turned), order=1)
    for axis, right, up, position in ((2, 16, 20, 12), (1, 16, 12, 20), (0, 20, 12, 16)):
        picture = ball.slice(box, axis, position)
        rows, columns = np.nonzero(picture > 0.5)
        assert columns.mean() * PIXEL_MM - 50 == pytest.approx(right, abs=1.5)
        assert 50 - rows.mean() * PIXEL_MM == pytest.approx(up, abs=1.5)
        assert ball.slice(box, axis, position - 30).max() == 0


def test_an_outline_encloses_the_mask():
    image = np.zeros((30, 40))
    image[10:20, 5:25] = 1
    numbers = outline(image).replace("M", " ").replace("L", " ").split()
    points = np.array(numbers, float).reshape(-1, 2)
    assert points.min(axis=0) == pytest.approx([5, 10], abs=0.51)
    assert points.max(axis=0) == pytest.approx([25, 20], abs=0.51)


def test_a_mask_at_the_border_has_a_closed_outline():
    path = outline(np.ones((5, 5)))
    assert path.count("M") == 1
    first, last = path[1:].split("L")[0], path[1:].split("L")[-1]
    assert first == last


def test_an_empty_mask_has_no_box(affine):
    assert bounding_box(Volume(np.zeros((4, 4, 4), np.float32), affine)) is None


def test_overlay_layers_share_their_pixels(affine):
    ball = blob([0, 0, 0], affine)
    finer = blob([0, 0, 0], np.diag([2.0, 2, 2, 1]) + np.eye(4, 4, 3) * 0, (10, 10, 10))
    box = (np.full(3, -30.0), np.full(3, 30.0))
    (picture,) = draw_overlay(ball, finer, ball, box, positions=[(2, 0.0)])
    scan, template = decode(picture.images["scan"]), decode(picture.images["template"])
    assert scan.shape == template.shape == (picture.height, picture.width, 3)
    assert scan[picture.height // 2, picture.width // 2].min() > 200


def test_a_map_is_black_outside_the_brain_and_never_inside(affine):
    mask = blob([0, 0, 0], affine)
    values = Volume(np.zeros_like(mask.data) + 0.0, affine)
    box = bounding_box(mask)
    drawn = draw_map("m", values, mask, box, positions=[(2, 0.0)])
    picture = decode(drawn.slices[0].images["map"])
    assert picture[0, 0].tolist() == [0, 0, 0]
    assert picture[picture.shape[0] // 2, picture.shape[1] // 2].sum() > 60


def test_png_keeps_the_values():
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(decode(to_png_uri(values))[..., 0], values)
    assert to_bytes(np.array([-1.0, 0, 5, 10, 20]), 0, 10).tolist() == [0, 0, 128, 255, 255]


def test_view_is_a_rotation_with_left_left_and_up_up():
    view = first_view()
    assert view @ view.T == pytest.approx(np.eye(3))
    assert np.linalg.det(view) == pytest.approx(1)
    assert (view @ [1, 0, 0])[0] > 0.8
    assert (view @ [0, 0, 1])[1] > 0.8


def test_gradients_are_drawn_where_they_point():
    table = np.array([[0.0, 0, 0], [1, 0, 0], [0, 0.6, 0.8]])
    scene = gradient_scene([("before", table)], np.array([-1, 0, 1]))
    dots = [mark for mark in scene.marks if mark.group == "before"]
    assert len(dots) == 4  # two directions and their opposites; no b0
    large = np.array([scene.points[mark.points[0]] for mark in dots if mark.size > 3])
    assert large == pytest.approx(table[1:])
    assert {mark.colour for mark in dots} == {"var(--c0)", "var(--c1)"}


def test_residuals_are_measured_minus_sampled():
    points = distinct_directions(4)
    directions = points[::3]
    fibre = np.array([0.0, 0, 1])
    signal = lambda g: np.exp(-0.3 - 1.4 * (g @ fibre) ** 2)  # noqa: E731
    exact = voxel_signal(directions, signal(directions), signal(points), 4)
    assert exact.residual_rms < 0.02
    assert abs(exact.axis @ fibre) == pytest.approx(1, abs=1e-3)
    off = voxel_signal(directions, signal(directions) + 0.1, signal(points), 4)
    assert off.residual_rms == pytest.approx(0.1, abs=0.01)


def test_glyph_surface_has_the_radius_of_the_signal():
    points = distinct_directions(4)
    samples = np.linspace(0.2, 0.8, len(points))
    voxel = voxel_signal(points[::4], samples[::4], samples, 4)
    rim = common_radius([voxel])
    scene = glyph_scene(voxel, rim)
    radii = np.linalg.norm(scene.points[:192], axis=1)
    assert radii.max() == pytest.approx(1)
    assert radii.min() == pytest.approx(0.25)
    other = voxel_signal(points[::4], 2 * samples[::4], 1.4 * samples, 4)
    shared = common_radius([voxel, other])
    assert shared == pytest.approx(1.2)  # S/b0 beyond it is noise, and cut
    smaller = np.linalg.norm(glyph_scene(voxel, shared).points[:192], axis=1)
    np.testing.assert_allclose(smaller, radii * rim / shared)
    faces = [mark for mark in scene.marks if mark.group == "face"]
    assert len(faces) == 2 * 192 - 4  # Euler: a closed surface


def test_chosen_voxels_are_what_they_are_called_and_lie_in_white_matter(affine):
    rng = np.random.default_rng(0)
    shape = (20, 20, 20)
    mask = Volume(np.ones(shape, np.float32), affine)
    rish = {
        degree: Volume(scale * (1 + 0.1 * rng.random(shape).astype(np.float32)), affine)
        for degree, scale in ((0, 4.0), (2, 0.1), (4, 0.01))
    }
    bundle = np.zeros(shape, bool)
    bundle[5:15, 7:12, 6:14] = True
    rish[2].data[bundle] *= 5
    rish[2].data[8, 9, 10] = 1.0
    rish[0].data[10, 9, 8] = 3.0
    rish[4].data[9, 9, 9] = 0.2
    rish[2].data[16, 16, 16] = 9.0  # a voxel of noise
    rish[0].data[3, 16, 4] = 0.1  # fluid
    rish[2].data[:, :, 0] = 9.0  # the rim
    voxels = dict(choose_voxels(mask, rish))
    assert voxels["Most anisotropic"] == (8, 9, 10)
    assert voxels["Strongest attenuation"] == (10, 9, 8)
    assert voxels["Most structure of degree 4"] == (9, 9, 9)
    assert all(bundle[voxel] for voxel in voxels.values())
    assert choose_voxels(mask, {0: rish[0]}) == []


def test_charts_are_the_same_bytes_and_have_their_own_identifiers():
    def draw(name: str) -> str:
        with figure(3, 2) as (drawing, ax):
            ax.plot([1, 2], [3, 4], color=PALETTE[0], label="<b>&")
            ax.plot([1, 2, 3], [4, 5, 9], "o")
            ax.legend()
            return str(to_svg(drawing, name, 'a "quoted" <description>'))

    assert draw("one") == draw("one")
    assert 'id="one-' in draw("one")
    assert 'id="two-' not in draw("one")
    assert "&lt;description&gt;" in draw("one")
    assert "<b>" not in draw("one")
    assert "xmlns" not in draw("one")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234.5, "1234"), (0.0, "0"), (0.98765, "0.988"), (2, "2"), (True, "yes"), (1e-5, "1e-05"),
     ([2.0, 2.5], "2 × 2.5"), ("x", "x"), (100.0, "100"), (30, "30")],
)  # fmt: skip
def test_numbers_are_short(value, shown):
    assert show(value) == shown


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "", [], {}])
def test_what_is_missing_says_so(value):
    assert "not available" in show(value)
