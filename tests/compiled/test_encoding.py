"""The compiled layer of the kernel network against the PyTorch code in float64."""

import copy

import pytest
import torch

from bids_gevnet.compiled.library import level, use
from bids_gevnet.nn.ckn import CKNLayer
from bids_gevnet.nn.kappa import LINEAR, QUADRATIC, Kappa

LEVELS = ("baseline", "v3", "v4")
HERE = LEVELS[: LEVELS.index(level()) + 1] if level() in LEVELS else ()
pytestmark = pytest.mark.skipif(not HERE, reason="the kernels are not compiled here")


def gradients(layer, x, weights):
    """Output and gradients of its weighted sum in the input and the filters."""
    x = x.detach().requires_grad_()
    out = layer(x)
    return [out.detach(), *torch.autograd.grad(out, [x, layer.filters], weights.to(out.dtype))]


def random_weights(layer, x):
    with torch.no_grad():
        return torch.randn_like(layer(x))


def assert_near(ours, truth):
    for got, wanted in zip(ours, truth, strict=True):
        assert got.dtype == torch.float32
        atol = 5e-6 * float(wanted.abs().max())
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("n_in", "n_out", "stride", "size", "kappa", "shape"),
    [
        (1, 4, 2, 3, QUADRATIC, (9, 7, 11)),  # the paper's first layer, odd sides
        (4, 8, 2, 3, QUADRATIC, (6, 5, 40)),  # its third, even and odd
        (3, 5, 1, 3, QUADRATIC, (5, 6, 7)),  # no pooling, channels that fill no block
        (2, 9, 3, 5, Kappa(degree=3, offset=0.5), (7, 4, 20)),
        (2, 3, 2, 3, LINEAR, (4, 5, 6)),
        (2, 2, 2, 1, QUADRATIC, (1, 1, 1)),  # one voxel, patches of one voxel
        (1, 1, 4, 3, QUADRATIC, (2, 1, 3)),  # smaller than a window of the pooling
    ],
)
def test_values_and_gradients_are_those_of_the_definition(
    name, n_in, n_out, stride, size, kappa, shape
):
    torch.manual_seed(0)
    layer = CKNLayer(n_in, n_out, kappa, size=size, stride=stride)
    x = torch.randn(2, n_in, *shape)
    weights = random_weights(layer, x)
    with use(name):
        ours = gradients(layer, x, weights)
    assert_near(ours, gradients(copy.deepcopy(layer).double(), x.double(), weights))


def test_background_of_zeros_has_finite_gradients():
    torch.manual_seed(0)
    layer = CKNLayer(1, 4, QUADRATIC, stride=2)
    x = torch.zeros(1, 1, 12, 12, 12)
    x[..., 4:7, 4:7, 4:7] = torch.rand(3, 3, 3)
    weights = random_weights(layer, x)
    ours = gradients(layer, x, weights)
    with use("none"):
        reference = gradients(layer, x, weights)
    inside = (slice(None), slice(None), *[slice(2, 9)] * 3)
    assert all(t.isfinite().all() for t in ours)
    ours[1], reference[1] = ours[1][inside], reference[1][inside]
    for got, wanted in zip(ours, reference, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("n", [1, 3])
def test_the_number_of_threads_does_not_change_a_bit(n):
    torch.manual_seed(0)
    layer = CKNLayer(2, 4, QUADRATIC, stride=2)
    x = torch.randn(n, 2, 11, 9, 10)
    weights = random_weights(layer, x)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4, 16):
            torch.set_num_threads(threads)
            results.append(gradients(layer, x, weights))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_memory_in_any_order_and_no_volumes_at_all():
    torch.manual_seed(0)
    layer = CKNLayer(2, 3, QUADRATIC)
    x = torch.randn(6, 5, 4, 2, 3).permute(4, 3, 2, 1, 0)
    weights = torch.randn(6, 5, 4, 3, 3).permute(4, 3, 2, 1, 0)
    plain = gradients(layer, x.contiguous(), weights.contiguous())
    assert all(map(torch.equal, gradients(layer, x, weights), plain))
    out, _, grad_filters = gradients(layer, x[:0], weights[:0])
    assert out.shape == (0, 3, 4, 5, 6)
    assert torch.equal(grad_filters, torch.zeros_like(layer.filters))


def test_an_input_without_gradient_costs_none():
    torch.manual_seed(0)
    layer = CKNLayer(1, 4, QUADRATIC, stride=2)
    x = torch.randn(1, 1, 6, 6, 6)
    weights = random_weights(layer, x)
    (grad,) = torch.autograd.grad(layer(x), [layer.filters], weights)
    assert torch.equal(grad, gradients(layer, x, weights)[2])


def test_other_kernels_and_precisions_take_the_pytorch_code():
    x = torch.randn(1, 1, 4, 4, 4)
    exponential = CKNLayer(1, 2, Kappa("exponential"))
    with use("none"):
        wanted = exponential(x)
    assert torch.equal(exponential(x), wanted)
    assert CKNLayer(1, 2, QUADRATIC).double()(x.double()).dtype == torch.float64


def test_the_operators_keep_their_promises_to_pytorch():
    x, filters = torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 3, 3, 3)
    torch.library.opcheck(
        torch.ops.bids_gevnet.compiled_encode,
        (x.requires_grad_(), filters.requires_grad_(), 2, False, 2, 0.0),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
