"""Whole networks: architecture lines, equivariance end to end, precision, compilation."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import InputError
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gevnet import Architecture, GEVNet
from bids_gevnet.nn.nonlinearity import RegularNorm
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.testing import grid_symmetry


def test_architecture_lines():
    plan = Architecture.parse("1-3-3v-8")
    assert plan.channels == (1, 3, 3, 8)
    assert plan.pooled == (False, True, False)


@pytest.mark.parametrize("text", ["", "3", "1-", "1-0-3", "1v-3", "1-3v", "a-b"])
def test_broken_lines_are_refused(text):
    with pytest.raises(InputError, match="1-3-3v-8"):
        Architecture.parse(text)


def test_output_does_not_depend_on_the_gauge():
    """Invariant numbers out: another frame at every point changes nothing (closed-form ReLU)."""
    grid = icosphere(2)
    angles = np.random.default_rng(0).uniform(-3, 3, grid.n_points)
    torch.manual_seed(0)
    net = GEVNet(grid, "2-3v-4-5", samples=None, classes=3).double()
    turned = GEVNet(grid.rotate_frames(angles), "2-3v-4-5", samples=None, classes=3).double()
    turned.load_state_dict(net.state_dict())
    x = torch.randn(4, 2, grid.n_points, dtype=torch.float64)
    assert torch.allclose(net(x), turned(x), atol=1e-11)


def test_output_does_not_change_under_the_grids_own_rotations():
    grid = healpix(4)
    torch.manual_seed(0)
    net = GEVNet(grid, "2-3v-4-5", samples=None).double().eval()
    image = grid_symmetry(grid, Rotation.from_rotvec([0, 0, np.pi / 2]).as_matrix())
    x = torch.randn(3, 2, 192, dtype=torch.float64)
    assert torch.allclose(net(x), net(x[:, :, image]), atol=1e-11)
    shuffled = np.random.default_rng(0).permutation(192)
    assert not torch.allclose(net(x), net(x[:, :, shuffled]), atol=1e-3)


def test_samples_of_one_batch_do_not_meet_in_evaluation():
    net = GEVNet(healpix(2), "2-3-4", samples=7).double().eval()
    x = torch.randn(5, 2, 48, dtype=torch.float64)
    assert torch.allclose(net(x)[2:3], net(x[2:3]))


def test_constant_signal_gives_the_same_at_every_point():
    """Also at the poles and at points with five neighbours."""
    grid = icosphere(2)
    net = GEVNet(grid, "1-3-4", samples=None).double().eval()
    field = net.layers(torch.ones(grid.n_points, 1, 1, dtype=torch.float64))
    assert torch.allclose(field, field[:1].expand_as(field), atol=1e-12)


def test_bandlimit_two_and_full_products_train():
    net = GEVNet(healpix(1), "1-2-2", samples=7, bandlimit=2, products="full", classes=2)
    x = torch.randn(6, 1, 12)
    net(x).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_products_do_not_start_with_heavy_tails():
    """Fourth moments after seven layers; with equal parts for both orders the ratio is 6."""
    grid = icosphere(2)
    points = torch.from_numpy(grid.points).float()

    def fourth_moment(seed, order):
        torch.manual_seed(seed)
        net = GEVNet(grid, "1-4-4-11-11-16-16-17", samples=7, order=order)
        centres = torch.nn.functional.normalize(torch.randn(16, 3), dim=1)
        blobs = torch.exp(4 * (points @ centres.T - 1))[:, None]
        with torch.no_grad():
            y = net.layers(blobs)
        y = y - y.mean((0, 2), keepdim=True)
        return (y.pow(4).mean((0, 2)) / y.square().mean((0, 2)).square()).log().mean().item()

    excess = [fourth_moment(seed, 2) - fourth_moment(seed, 1) for seed in range(4)]
    assert np.exp(np.mean(excess)) < 2


def test_training_learns_what_a_first_order_linear_map_cannot():
    """The mean of the squared gradient of a signal, from a mean-free input: even in x."""
    torch.manual_seed(0)
    grid = icosphere(1)
    x = torch.randn(64, 1, grid.n_points)
    target = x.square().mean((1, 2))
    net = GEVNet(grid, "1-4-1", samples=None)
    optimiser = torch.optim.Adam(net.parameters(), 3e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (net(x)[:, 0] - target).square().mean() / target.var()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3


def test_normalisation_can_be_replaced():
    made = []

    def norm(field: FieldType):
        made.append(RegularNorm(field, 7, momentum=0.5))
        return made[-1]

    net = GEVNet(healpix(1), "1-2-3-2", samples=7, norm=norm)
    assert [m.n_channels for m in made] == [2, 3]
    assert sum(m is module for m in made for module in net.modules()) == 2


@pytest.mark.parametrize("options", [{"samples": 7}, {"samples": None, "order": 1}], ids=str)
def test_compiles_without_a_graph_break(options):
    """fullgraph=True raises at the first break; forward and backward equal the plain network."""
    net = GEVNet(icosphere(1), "2-3v-4", classes=3, **options)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 2, 42)
    compiled(x).square().sum().backward()
    ours = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).square().sum().backward()
    for a, p in zip(ours, net.parameters(), strict=True):
        assert torch.allclose(a, p.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")
@pytest.mark.slow
def test_compiles_to_machine_code():
    net = GEVNet(icosphere(1), "2-3v-4", samples=7, classes=3).eval()
    x = torch.randn(5, 2, 42)
    assert torch.allclose(torch.compile(net, fullgraph=True)(x), net(x), atol=1e-5)


def test_autocast_trains():
    net = GEVNet(healpix(2), "2-3v-4", samples=7, classes=3)
    x = torch.randn(5, 2, 48)
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(x).float().square().sum()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())


def test_state_dict_is_small_and_complete():
    net = GEVNet(healpix(4), "8-8-12-12", samples=7)
    state = net.state_dict()
    running = 2 * (8 + 12) + 2
    assert sum(v.numel() for v in state.values()) == 12424 + running
    twin = GEVNet(healpix(4), "8-8-12-12", samples=7)
    twin.load_state_dict(state)
    x = torch.randn(2, 8, 192)
    assert torch.equal(net.eval()(x), twin.eval()(x))


def test_wrong_input_is_refused_with_the_right_shape():
    with pytest.raises(InputError, match=r"\(batch, 2, 48\)"):
        GEVNet(healpix(2), "2-3-4")(torch.zeros(2, 48, 2))
