"""Rows at a time give the convolution of the whole, forward and backward."""

import pytest
import torch

from bids_gevnet.nn.volume_convolution import convolve


@pytest.mark.parametrize(("size", "most"), [(3, 1), (3, 400), (5, 200), (7, 1), (3, 10_000)])
def test_rows_convolve_like_the_whole(size: int, most: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 6, 5, dtype=torch.float64, requires_grad=True)
    filters = torch.randn(4, 3, size, size, size, dtype=torch.float64, requires_grad=True)
    rows = convolve(x, filters, most)
    whole = torch.nn.functional.conv3d(x, filters, padding=size // 2)
    torch.testing.assert_close(rows, whole)
    weights = torch.randn_like(whole)
    found, expected = (
        torch.autograd.grad((y * weights).sum(), (x, filters)) for y in (rows, whole)
    )
    torch.testing.assert_close(found, expected)


def test_volumes_without_gradient_get_none() -> None:
    x = torch.randn(1, 1, 5, 4, 4)
    filters = torch.randn(2, 1, 3, 3, 3, requires_grad=True)
    convolve(x, filters, most=1).sum().backward()
    assert x.grad is None
    expected = torch.autograd.grad(torch.conv3d(x, filters, padding=1).sum(), filters)[0]
    torch.testing.assert_close(filters.grad, expected)


def test_lower_precision_is_that_of_the_whole() -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 2, 6, 5, 4, requires_grad=True)
    filters = torch.randn(3, 2, 3, 3, 3, requires_grad=True)
    gradients = []
    for most in (1, 10_000):
        with torch.autocast("cpu", torch.bfloat16):
            y = convolve(x, filters, most)
        assert y.dtype == torch.bfloat16
        gradients.append(torch.autograd.grad(y.float().square().sum(), (x, filters)))
    for rows, whole in zip(*gradients, strict=True):
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows, whole, rtol=0.05, atol=0.05 * float(whole.abs().max()))


def test_memory_of_the_patches_is_real() -> None:
    """What rows are for: the whole needs 27 numbers a voxel beside its input and output."""
    x = torch.rand(1, 2, 40, 32, 32)
    filters = torch.rand(2, 2, 3, 3, 3, requires_grad=True)
    assert _peak_bytes(x, filters, most=2**30) > 2 * _peak_bytes(x, filters, most=10_000)


def _peak_bytes(x: torch.Tensor, filters: torch.Tensor, most: int) -> int:
    """Highest sum of live memory in a forward and backward pass."""
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.autograd.grad(convolve(x, filters, most).sum(), filters)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
