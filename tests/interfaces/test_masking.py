"""The mask after the registration: what refines it, what leaves it alone, what leaves it."""

from dataclasses import dataclass

import numpy as np
import pytest

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.mask import dice
from bids_gevnet.facts import MaskFacts, RegistrationFacts
from bids_gevnet.interfaces.masking import RefineMask
from bids_gevnet.interfaces.series import Series, read_facts, read_mask, write_facts, write_series
from bids_gevnet.phantom import simulate


@dataclass(frozen=True)
class Head:
    """A phantom in its conformed space."""

    series: Series
    brain: np.ndarray
    to_template: np.ndarray


@pytest.fixture(scope="module")
def head():
    scan = simulate(voxel_mm=8, directions=6, seed=2)
    image = conform(scan.data, scan.affine, scan.bvecs_ras)
    return Head(
        Series(image.data, image.affine, scan.bvals, image.bvecs_ras),
        conform(scan.truth.mask, scan.affine).data,
        np.linalg.inv(image.old_to_new @ scan.truth.pose),
    )


def refine(head, folder, first, *, method="otsu", poor=False, data=None):
    series = head.series if data is None else Series(data, *_rest(head.series))
    image, gradients = write_series(folder, series)
    write_image(folder / "first.nii", first, series.affine)
    for name, facts in (
        ("mask", MaskFacts(method=method, volume_ml=1.0)),
        ("registration", RegistrationFacts(poor=poor)),
    ):
        (folder / name).mkdir()
        write_facts(folder / name, facts)
    interface = RefineMask(
        image=str(image),
        gradients=str(gradients),
        mask=str(folder / "first.nii"),
        mask_facts=str(folder / "mask" / "facts.json"),
        to_template=head.to_template.tolist(),
        registration_facts=str(folder / "registration" / "facts.json"),
    )
    outputs = interface.run(cwd=str(folder)).outputs
    return read_mask(outputs.mask)[0], read_facts(outputs.facts, MaskFacts)


def _rest(series):
    return series.affine, series.bvals, series.bvecs_ras


def half(brain):
    """A first mask that lost the lower half of the brain."""
    middle = int(np.argwhere(brain)[:, 2].mean())
    return brain & (np.arange(brain.shape[2]) > middle)


def test_the_template_brings_back_what_the_first_mask_lost(head, tmp_path):
    mask, facts = refine(head, tmp_path, half(head.brain))
    assert dice(mask, head.brain) > 0.9
    assert facts.refined is True
    assert facts.without_data == 0
    volume_ml = mask.sum() * 8**3 / 1000
    assert facts.volume_ml == pytest.approx(volume_ml, abs=0.1)


@pytest.mark.parametrize(("method", "poor"), [("bet", False), ("otsu", True)])
def test_a_mask_of_bet_or_with_a_poor_registration_stays(head, tmp_path, method, poor):
    first = half(head.brain)
    mask, facts = refine(head, tmp_path, first, method=method, poor=poor)
    np.testing.assert_array_equal(mask, first)
    assert facts.refined is False
    assert facts.method == method


def test_a_slice_that_some_volumes_did_not_see_leaves_every_mask(head, tmp_path):
    top = int(np.argwhere(head.brain)[:, 2].max())
    data = np.array(head.series.data)
    data[:, :, top:, 1::2] = 0
    mask, facts = refine(head, tmp_path, head.brain, method="bet", data=data)
    expected = head.brain & (np.arange(head.brain.shape[2]) < top)
    np.testing.assert_array_equal(mask, expected)
    assert facts.without_data == head.brain[:, :, top].sum() > 0
