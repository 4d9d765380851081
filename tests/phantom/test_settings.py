import math

import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.phantom import PhantomSettings, tiny_settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups", ()),
        ("groups", ("AD", "AD")),
        ("groups", ("A D",)),
        ("groups", ("../x",)),
        ("groups", tuple("ABCDEFGH")),
        ("per_group", 0),
        ("sites", 0),
        ("sites", 27),
        ("voxel_mm", 0.1),
        ("voxel_mm", math.nan),
        ("seed", -1),
        ("directions", 5),
        ("b_values", ()),
        ("b_values", (0.0,)),
        ("b_values", (1000.0, 1000.0)),
        ("snr", 0),
        ("snr", math.nan),
        ("micro_effect", -1),
        ("macro_effect", 3),
        ("anisotropy_effect", 3),
        ("motion_mm", -1),
        ("motion_deg", math.inf),
        ("eddy", -0.1),
        ("outliers", 1.5),
        ("pose_deg", 90),
        ("pose_mm", -1),
        ("pose_size", 0.5),
    ],
)
def test_impossible_values_are_refused_and_shown(field, value):
    with pytest.raises(InputError) as caught:
        PhantomSettings(**{field: value})
    assert caught.value.exit_code == 2
    shown = value if not isinstance(value, tuple) else (value[0] if value else "")
    assert str(shown) in caught.value.found or caught.value.found in {"none", "()"}


def test_infinite_snr_means_no_noise_and_is_allowed():
    assert math.isinf(PhantomSettings(snr=math.inf).snr)


def test_tiny_settings_keep_changes():
    settings = tiny_settings(voxel_mm=8, seed=3)
    assert (settings.voxel_mm, settings.seed, settings.directions) == (8, 3, 16)
