"""The compiled spline against the PyTorch code in float64, which every other test rests on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bids_gevnet.compiled.library import level, use
from bids_gevnet.dwi.model_corrector.splines import sample_spline

LEVELS = ("baseline", "v3", "v4")
HERE = LEVELS[: LEVELS.index(level()) + 1] if level() in LEVELS else ()
pytestmark = pytest.mark.skipif(not HERE, reason="the kernels are not compiled here")


def spline_and_positions(shape, count, seed):
    """Coefficients, and positions inside, at the edge and beyond it."""
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.randn(shape, generator=generator)
    spread = torch.tensor(shape) + 3.0
    return coefficients, torch.rand(count, 3, generator=generator) * spread - 2.0


@pytest.mark.parametrize("kernels", HERE)
@given(
    shape=st.tuples(*[st.integers(1, 9)] * 3),
    count=st.integers(0, 200),
    seed=st.integers(0, 2**31),
)
def test_values_are_those_of_the_reference(kernels, shape, count, seed):
    coefficients, positions = spline_and_positions(shape, count, seed)
    truth = sample_spline(coefficients.double(), positions.double())  # never compiled
    with use(kernels):
        values = sample_spline(coefficients, positions)
    assert values.shape == (count,)
    torch.testing.assert_close(values.double(), truth, atol=2e-5, rtol=0)


def test_what_is_beyond_the_volume_or_nowhere_is_zero():
    last = 7
    coefficients = torch.ones(3, 4, last + 1)
    z = torch.tensor([-0.51, -0.5, last + 0.5, last + 0.51, torch.nan, torch.inf, 1e30])
    positions = torch.stack([torch.ones_like(z), torch.ones_like(z), z], dim=1)
    values = sample_spline(coefficients, positions)
    # A spline whose coefficients are all 1 is 1.
    torch.testing.assert_close(values, torch.tensor([0.0, 1, 1, 0, 0, 0, 0]))


def test_threads_do_not_change_a_bit():
    coefficients, positions = spline_and_positions((20, 30, 25), 100_000, 1)
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(sample_spline(coefficients, positions))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_views_are_read_as_they_look():
    coefficients, positions = spline_and_positions((6, 7, 8), 500, 2)
    turned = coefficients.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not turned.is_contiguous()
    assert torch.equal(sample_spline(turned, positions), sample_spline(coefficients, positions))
