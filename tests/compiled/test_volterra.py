"""The compiled convolution against the PyTorch code, for every instruction set of this machine."""

import pytest
import torch

from bids_gevnet.compiled.library import level, use
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gauge_convolution import GEVConv
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere

LEVELS = ("baseline", "v3", "v4")
HERE = LEVELS[: LEVELS.index(level()) + 1] if level() in LEVELS else ()
pytestmark = pytest.mark.skipif(not HERE, reason="the kernels are not compiled here")


def gradients(layer, x, grad):
    """Output and all gradients."""
    x = x.detach().requires_grad_()
    out = layer(x)
    grads = torch.autograd.grad(out, [x, *layer.parameters()], grad.to(out.dtype))
    return [out.detach(), *grads]


def assert_same(layer, x, name):
    """Compiled in float32 against PyTorch in float64."""
    grad = torch.randn(layer.n_points, layer.out_type.dim, x.shape[2])
    with use(name):
        ours = gradients(layer, x, grad)
    truth = gradients(layer.double(), x.double(), grad.double())
    layer.float()
    for got, wanted in zip(ours, truth, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(
            got.double(), wanted, rtol=0, atol=3e-6 * float(wanted.abs().max())
        )


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("batch", [1, 3, 32, 33, 70])
def test_values_and_gradients_are_those_of_the_definition(name, batch):
    torch.manual_seed(batch)
    layer = GEVConv(healpix(2), FieldType.regular(3), FieldType.regular(5))
    assert_same(layer, torch.randn(48, layer.in_type.dim, batch), name)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("ins", "outs", "order", "radii"),
    [
        (FieldType((1,)), FieldType((2, 2)), 2, (0.55, 1.2)),  # scalars in, as a first layer
        (FieldType((13, 13)), FieldType((12,)), 2, (0.55, 1.2)),  # scalars out, as a last one
        (FieldType((2, 5)), FieldType((3, 1)), 2, (0.55, 1.2)),  # unequal channels
        (FieldType((0, 3)), FieldType((0, 4)), 2, (0.55, 1.2)),  # vectors only
        (FieldType((4, 4)), FieldType((25, 25)), 1, (0.55, 1.2)),  # first order, many blocks
        (FieldType((2, 2, 2)), FieldType((2, 2, 2)), 2, (0.5, 1.0, 1.5)),  # 3 rings, 3 frequencies
    ],
)
def test_any_field_types_and_orders(name, ins, outs, order, radii):
    torch.manual_seed(0)
    layer = GEVConv(icosphere(1), ins, outs, order=order, radii=radii)
    with torch.no_grad():  # the second order is small at the start: let it count
        for weight in layer.parameters():
            weight.normal_(0, 0.2)
    assert_same(layer, torch.randn(42, ins.dim, 9), name)


@pytest.mark.parametrize("name", HERE)
def test_the_number_of_threads_does_not_change_a_bit(name):
    torch.manual_seed(0)
    layer = GEVConv(healpix(1), FieldType.regular(4), FieldType.regular(4))
    x, grad = torch.randn(12, 12, 3000), torch.randn(12, 12, 3000)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with use(name):
                results.append(gradients(layer, x, grad))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_memory_in_any_order():
    torch.manual_seed(0)
    layer = GEVConv(healpix(1), FieldType.regular(3), FieldType.regular(2))
    x = torch.randn(7, 9, 12).permute(2, 1, 0)
    grad = torch.randn(7, 6, 12).permute(2, 1, 0)
    for got, wanted in zip(
        gradients(layer, x, grad),
        gradients(layer, x.contiguous(), grad.contiguous()),
        strict=True,
    ):
        assert torch.equal(got, wanted)


def test_an_empty_batch_has_empty_gradients():
    layer = GEVConv(healpix(1), FieldType.regular(2), FieldType.regular(2))
    out, grad_x, *grads = gradients(layer, torch.zeros(12, 6, 0), torch.zeros(12, 6, 0))
    assert out.shape == grad_x.shape == (12, 6, 0)
    assert all(not g.any() for g in grads)


def test_an_input_without_gradient_costs_none():
    torch.manual_seed(0)
    layer = GEVConv(healpix(1), FieldType.scalars(2), FieldType.regular(2))
    x, grad = torch.randn(12, 2, 5), torch.randn(12, 6, 5)
    wanted = gradients(layer, x, grad)[2:]
    got = torch.autograd.grad(layer(x), list(layer.parameters()), grad)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("needs_x", [True, False])
def test_the_operators_keep_their_promises_to_pytorch(needs_x):
    layer = GEVConv(healpix(1), FieldType.regular(2), FieldType.regular(2))
    x = torch.randn(12, 6, 3, requires_grad=needs_x)
    op = torch.ops.bids_gevnet.compiled_volterra
    plan = [layer.responses.operator.n_target, 2, 2, 1, 2, 2, 2, 2, 4, 2, 4, 4, 8, 2, 4]
    entries = [layer.responses.operator.entries(n) for n in (0, 1)]
    weight = torch.cat([layer.matrix(n, m).flatten() for n in (0, 1) for m in (0, 1)]).detach()
    calls = (x, weight.requires_grad_(), entries, layer.responses.operator.index, plan)
    torch.testing.assert_close(op(*calls), layer(x))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op, calls, test_utils=checks)
