import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from bids_gevnet.dwi.ants_linear import Schedule, register, to_ants_image

SHAPE = (48, 40, 36)
AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
SCHEDULE = Schedule("Rigid", "MI", 32, 1.0, (60,), (1,), (0.0,))


@pytest.fixture(scope="module")
def halves():
    """Two images: the left half is the same, in the right half everything has moved by 4 mm."""
    texture = gaussian_filter(np.random.default_rng(0).normal(size=SHAPE), 2.5)
    texture = (texture - texture.min()).astype(np.float32)
    moved = texture.copy()
    moved[24:] = np.roll(texture, 2, axis=1)[24:]
    return texture, moved


@pytest.mark.parametrize(("half", "shift_mm"), [(slice(2, 20), 0.0), (slice(28, 46), -4.0)])
def test_the_metric_looks_where_the_mask_is(halves, half, shift_mm):
    fixed, moving = halves
    mask = np.zeros(SHAPE, bool)
    mask[half, 4:-4, 4:-4] = True
    found = register(
        to_ants_image(fixed, AFFINE),
        moving,
        AFFINE,
        SCHEDULE,
        fixed_mask=to_ants_image(mask, AFFINE),
    )
    centre = AFFINE @ np.append(np.argwhere(mask).mean(axis=0), 1)
    np.testing.assert_allclose((found @ centre - centre)[:3], [0, shift_mm, 0], atol=0.5)


def test_masks_are_bytes_and_images_are_floats():
    assert to_ants_image(np.ones(SHAPE, bool), AFFINE).pixeltype == "unsigned char"
    assert to_ants_image(np.ones(SHAPE, np.int16), AFFINE).pixeltype == "float"
