"""Pictures of directions, carpets and glyphs show what was put into them."""

import numpy as np
import pytest
from report.pictures import blob, decode

from bids_gevnet.report.figures.before_after import draw_before_after
from bids_gevnet.report.figures.brain import bounding_box
from bids_gevnet.report.figures.carpet import standardise
from bids_gevnet.report.figures.direction_colours import (
    draw_direction_colours,
    draw_direction_key,
)
from bids_gevnet.report.figures.glyph_field import draw_glyph_field, facing_directions
from bids_gevnet.report.scan_files import Volume

AFFINE = np.array([[4.0, 0, 0, -40], [0, 4, 0, -48], [0, 0, 4, -44], [0, 0, 0, 1]])


@pytest.mark.parametrize("component", range(3))
def test_directions_along_an_axis_have_its_colour(component):
    mask = blob([0, 0, 0], AFFINE, radius_mm=24.0)
    channels = [Volume(0.7 * mask.data * (i == component), AFFINE) for i in range(3)]
    box = bounding_box(mask)
    pictures = draw_direction_colours(channels, mask, box, positions=[(2, 0.0), (1, 0.0)])
    for picture in pictures:
        colours = decode(picture.images["colours"])
        middle = colours[colours.shape[0] // 2, colours.shape[1] // 2]
        assert middle[component] == 255
        assert middle.sum() == 255
        assert colours[0, 0].sum() == 0  # black beyond the brain


def test_the_key_is_red_to_the_side_and_shows_the_axis_in_its_middle():
    for axis, right, up in ((2, 0, 1), (1, 0, 2), (0, 1, 2)):
        ball = decode(draw_direction_key(axis))
        half = len(ball) // 2
        assert np.argmax(ball[half, half]) == axis
        assert np.argmax(ball[half, 2]) == right
        assert np.argmax(ball[2, half]) == up
        assert ball[0, 0].sum() == 0


def test_before_and_after_lie_on_the_same_pixels_and_show_what_moved():
    still, moved = (blob([x, 0, 0], AFFINE, radius_mm=20.0) for x in (0, 12))
    box = bounding_box(still, margin_mm=24.0)
    (picture,) = draw_before_after(moved, still, still, box, positions=[(2, 0.0)])
    before, after = (decode(picture.images[name])[..., 0] for name in ("before", "after"))
    assert before.shape == after.shape
    columns = [np.nonzero(image > 128)[1].mean() for image in (before, after)]
    assert (columns[0] - columns[1]) * 1.5 == pytest.approx(12, abs=1.5)
    assert "mask" in picture.paths


def test_a_carpet_shows_the_volume_that_lost_signal_and_no_anatomy():
    rng = np.random.default_rng(0)
    level = rng.uniform(100, 1000, (300, 1))
    shell_of = np.array([-1] + [0] * 10 + [1] * 10)
    signals = level * np.where(shell_of == 1, 0.3, 0.6) * rng.normal(1, 0.05, (300, 21))
    signals[:, 14] *= 0.5
    distance = standardise(signals, shell_of)
    means = distance.mean(axis=0)
    assert np.argmin(means) == 14
    assert means[14] < -4
    assert np.abs(np.delete(means, 14)).max() < 0.7  # neither shell nor voxel shows
    assert np.all(distance[:, 0] == 0)  # a single b0 cannot be compared
    assert abs(np.corrcoef(level[:, 0], distance[:, 3])[0, 1]) < 0.2


def test_glyphs_point_along_their_fibre_on_one_scale():
    directions = facing_directions()
    across, up = (directions[:, axis] ** 16 for axis in (0, 2))
    # One row of five voxels with two glyphs that do not touch; the second is half as long.
    odf = np.stack([0 * up, across, 0 * up, 0.5 * up, 0 * up])[:, None]
    inside = np.array([[False], [True], [False], [True], [False]])
    drawn = draw_glyph_field(odf, inside, inside, pixels_per_voxel=40)
    picture = decode(drawn.by_direction).astype(int)
    assert picture.shape == (40, 200, 3)
    first, second = picture[:, :100], picture[:, 120:160]
    bright = [np.nonzero(part.max(axis=-1) > 80) for part in (first, second)]
    spans = [(np.ptp(rows), np.ptp(columns)) for rows, columns in bright]
    assert spans[0][1] > 2 * spans[0][0]  # wide
    assert spans[1][0] > 2 * spans[1][1]  # high
    assert spans[1][0] == pytest.approx(0.5 / drawn.longest * spans[0][1], rel=0.1)
    assert np.argmax(first.sum(axis=(0, 1))) == 0
    assert np.argmax(second.sum(axis=(0, 1))) == 2


def test_glyphs_are_drawn_inside_only():
    odf = np.ones((3, 2, len(facing_directions())), np.float32)
    inside = np.zeros((3, 2), bool)
    inside[1, 0] = True  # the middle of the lower row
    picture = decode(draw_glyph_field(odf, inside, inside, pixels_per_voxel=20).by_amplitude).sum(
        axis=-1
    )
    rows, columns = np.nonzero(picture > 60)
    assert rows.mean() > 20
    assert 18 < columns.mean() < 42
