"""Field types and the action of the gauge group on them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.errors import InputError
from bids_gevnet.nn.fields import FieldType

types = (
    st.lists(st.integers(0, 3), min_size=1, max_size=4)
    .filter(any)
    .map(lambda m: FieldType(tuple(m)))
)
angle = st.floats(-7, 7)


@settings(deadline=None)
@given(types, angle, angle)
def test_gauge_changes_compose_and_invert(field, s, t):
    x = torch.randn(5, field.dim, 2, dtype=torch.float64)
    a, b = torch.full((5,), s, dtype=torch.float64), torch.full((5,), t, dtype=torch.float64)
    both = field.gauge_transform(field.gauge_transform(x, a), b)
    assert torch.allclose(both, field.gauge_transform(x, a + b), atol=1e-10)
    assert torch.allclose(field.gauge_transform(field.gauge_transform(x, a), -a), x, atol=1e-10)


@settings(deadline=None)
@given(types, angle)
def test_gauge_changes_keep_lengths_and_scalars(field, t):
    x = torch.randn(4, field.dim, 2, dtype=torch.float64)
    y = field.gauge_transform(x, torch.full((4,), t, dtype=torch.float64))
    assert torch.equal(y[:, field.span(0)], x[:, field.span(0)])
    for n in field.frequencies:
        assert torch.allclose(field.part(x, n).square().sum(1), field.part(y, n).square().sum(1))


def test_a_vector_keeps_its_place_in_space_when_the_frame_turns():
    """Coordinates change by rho(t^-1) so that Re z e1 + Im z e2 does not."""
    field, t = FieldType((0, 1)), 0.7
    frame = np.eye(3)[:2]
    turned = np.array(
        [np.cos(t) * frame[0] + np.sin(t) * frame[1], np.cos(t) * frame[1] - np.sin(t) * frame[0]]
    )
    x = torch.tensor([[[0.3], [-1.1]]], dtype=torch.float64)
    y = field.gauge_transform(x, torch.tensor([t], dtype=torch.float64))
    assert np.allclose(x[0, :, 0].numpy() @ frame, y[0, :, 0].numpy() @ turned)


def test_frequency_two_turns_twice_as_fast():
    field = FieldType((0, 1, 1))
    x = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64).view(1, 4, 1)
    y = field.gauge_transform(x, torch.tensor([np.pi / 2], dtype=torch.float64))[0, :, 0]
    assert torch.allclose(y, torch.tensor([0.0, -1, -1, 0], dtype=torch.float64), atol=1e-12)


def test_layout():
    field = FieldType((2, 3))
    assert field.dim == 8
    assert (field.span(0), field.span(1)) == (slice(0, 2), slice(2, 8))
    x = torch.arange(8.0).view(1, 8, 1)
    assert field.part(x, 1)[0, 1, :, 0].tolist() == [5, 6, 7]
    assert str(FieldType.regular(2)) == "2 rho0 + 2 rho1"


@pytest.mark.parametrize("multiplicities", [(), (0, 0), (-1, 2)])
def test_empty_types_are_refused(multiplicities):
    with pytest.raises(InputError):
        FieldType(multiplicities)


def test_wrong_shapes_are_refused_with_the_right_one():
    with pytest.raises(InputError, match=r"\(12, 6, batch\)"):
        FieldType.regular(2).check(torch.zeros(3, 6, 12), 12)
    with pytest.raises(InputError, match=r"found a ndarray.*torch\.as_tensor"):
        FieldType.scalars(1).check(torch.zeros(12, 1, 3).numpy(), 12)
