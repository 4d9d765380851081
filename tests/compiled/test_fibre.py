"""The compiled nonlinearity and moments against the PyTorch code in float64."""

import copy

import numpy as np
import pytest
import torch

from bids_gevnet.compiled.fibre import compiled_moments
from bids_gevnet.compiled.library import level, use
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.nonlinearity import RegularNonlinearity, RegularNorm
from bids_gevnet.nn.norm import channel_moments

LEVELS = ("baseline", "v3", "v4")
HERE = LEVELS[: LEVELS.index(level()) + 1] if level() in LEVELS else ()
pytestmark = pytest.mark.skipif(not HERE, reason="the kernels are not compiled here")


def gradients(layer, x, weights):
    """Output and gradients of its weighted sum in the input and the parameters."""
    x = x.detach().requires_grad_()
    out = layer(x)
    inputs = [x, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out, inputs, weights.to(out.dtype))]


def assert_near(ours, truth, tolerance=5e-6):
    for got, wanted in zip(ours, truth, strict=True):
        atol = tolerance * float(wanted.abs().max())
        torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=atol)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("bandlimit", "samples", "channels", "batch"),
    [(1, 7, 3, 1), (1, 51, 4, 33), (2, 11, 2, 5), (1, 8, 1, 64), (3, 9, 2, 4)],
)
@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_those_of_the_definition(
    name, bandlimit, samples, channels, batch, training
):
    torch.manual_seed(0)
    field, areas = FieldType.regular(channels, bandlimit), np.linspace(0.5, 1.5, 19)
    layer = RegularNonlinearity(field, samples, areas=areas).train(training)
    with torch.no_grad():
        layer.norm.weight.uniform_(0.5, 2)
        layer.norm.bias.normal_()
    x = 3 + 2 * torch.randn(19, field.dim, batch)
    weights, exact = torch.randn_like(x), copy.deepcopy(layer).double()
    with use(name):
        ours = gradients(layer, x, weights)
    assert_near(ours, gradients(exact, x.double(), weights), 2e-5)
    torch.testing.assert_close(layer.norm.running_var, exact.norm.running_var.float())


def test_a_nonlinearity_without_norm():
    torch.manual_seed(0)
    field = FieldType.regular(3)
    layer = RegularNonlinearity(field, 7, norm=None)
    x = torch.randn(5, 9, 6)
    weights = torch.randn_like(x)
    assert_near(
        gradients(layer, x, weights),
        gradients(copy.deepcopy(layer).double(), x.double(), weights),
    )


@pytest.mark.parametrize("name", HERE)
def test_moments_do_not_cancel_far_from_zero(name):
    torch.manual_seed(0)
    x = 1000 + torch.randn(3, 4, 5001)
    with use(name):
        count, first, second = channel_moments(x, 1)
    mean = x.double().mean((0, 2))
    variance = x.double().var((0, 2), correction=0)
    torch.testing.assert_close(first / count, mean, rtol=1e-9, atol=0)
    got = second / count - (first / count).square()
    torch.testing.assert_close(got, variance, rtol=1e-4, atol=0)


@pytest.mark.parametrize("weighted", [True, False])
def test_gradients_of_the_moments(weighted):
    torch.manual_seed(0)
    x, outer = torch.randn(4, 3, 7), torch.randn(2, 3, dtype=torch.float64)
    weights = torch.rand(4) + 0.5 if weighted else torch.empty(0)
    leaf = x.clone().requires_grad_()
    moments = compiled_moments(leaf, weights)
    exact = x.double().requires_grad_()
    w = (weights if weighted else torch.ones(4)).double()[:, None, None].expand(x.shape)
    mean = (w * exact).sum((0, 2)) / w.sum((0, 2))
    var = (w * (exact - mean[:, None]).square()).sum((0, 2)) / w.sum((0, 2))
    truth = torch.stack((mean, var))
    torch.testing.assert_close(moments, truth, rtol=1e-5, atol=1e-6)
    (got,) = torch.autograd.grad(moments, leaf, outer)
    (wanted,) = torch.autograd.grad(truth, exact, outer)
    assert_near([got], [wanted])


def test_the_number_of_threads_does_not_change_a_bit():
    torch.manual_seed(0)
    field = FieldType.regular(12)
    layer = RegularNonlinearity(field, 7)
    x = torch.randn(192, field.dim, 100)
    weights, before, results = torch.randn_like(x), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(gradients(layer, x, weights))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_an_empty_piece_counts_nothing():
    field = FieldType.regular(2)
    norm, full = RegularNorm(field), torch.randn(5, 6, 4)
    with use("none"):
        reference = norm.moments(full)
    torch.testing.assert_close(norm.moments(full), reference, rtol=1e-6, atol=1e-6)
    layer = RegularNonlinearity(field, 7, norm=None)
    assert layer(full[..., :0]).shape == (5, 6, 0)


def test_the_operators_keep_their_promises_to_pytorch():
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    x, affine, synthesis = torch.randn(4, 3, 2, 5), torch.randn(2, 2), torch.randn(7, 3)
    relu = torch.ops.bids_gevnet.compiled_relu
    inputs = (x.requires_grad_(), affine.requires_grad_(), synthesis)
    torch.library.opcheck(relu, inputs, test_utils=checks)
    moments = torch.ops.bids_gevnet.compiled_moments
    inputs = (torch.randn(4, 3, 5, requires_grad=True), torch.rand(4))
    torch.library.opcheck(moments, inputs, test_utils=checks)
