"""Convolutions: Theorem 3.4, Definition 3.3 pair by pair, rotations, gradients, broken layers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from torch import nn

from bids_gevnet.errors import InputError
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gauge_convolution import DEFAULT_RADII, GEConv, GEVConv
from bids_gevnet.nn.steerable_kernels import kernel_matrices, response_scale
from bids_gevnet.sphere.frames import transport
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.sphere.mesh import TriangleMesh
from bids_gevnet.sphere.quadrature import ring_stencil, split_arcs
from bids_gevnet.testing import (
    assert_gauge_equivariant,
    assert_rotation_equivariant,
    gauge_error,
    rotation_error,
)

SMALL = [healpix(2), icosphere(0), icosphere(1)]


# --- the reference: Definition 3.3 as it is written -------------------------------------------


def averaged_kernels(grid, p, ring, n, m):
    """int K(theta) w_j(theta) dtheta / 2 pi for each j: (bases, points, d_m, d_n)."""
    r = DEFAULT_RADII[ring] * grid.spacing
    x, gauss = np.polynomial.legendre.leggauss(12)
    total = 0
    for triangles in grid.triangulations:
        charts = grid.ring_charts(grid, np.full(len(triangles), p), triangles, r)
        pair, start, end = split_arcs(charts)
        for k, a, b in zip(pair, start, end, strict=True):
            for node, weight in zip(x, gauss, strict=True):
                theta = (a + b) / 2 + (b - a) / 2 * node
                w = charts[k] @ [1, np.cos(theta), np.sin(theta)]
                w = w / w.sum() * weight * (b - a) / 2 / (2 * np.pi)
                kernels = kernel_matrices(n, m, theta)
                value = np.zeros((len(kernels), grid.n_points, *kernels.shape[1:]))
                value[:, triangles[k]] = w[None, :, None, None] * kernels[:, None]
                total = total + value / len(grid.triangulations)
    kinds = 2 if n and m else 1
    scale = [
        response_scale(m + n if kind else m - n, DEFAULT_RADII[ring]) for kind in range(kinds)
    ]
    return total * np.repeat(scale, len(total) // kinds)[:, None, None, None]


def transported(grid, p, x, n):
    """Features of all points in the frame at p, by carrying vectors through space."""
    if n == 0:
        return x
    out = np.zeros_like(x)
    for j in range(grid.n_points):
        if grid.points[p] @ grid.points[j] < -0.999:
            continue
        carried = transport(grid.frames[j], grid.points[j], grid.points[p])  # images of e1, e2
        out[j] = (grid.frames[p] @ carried.T) @ x[j]
    return out


def all_pairs(layer, grid, x, p):
    """Both orders at one point, summing over every pair of neighbours: Definition 3.3.

    The layer has one channel in and one out. x maps n to a (points, d_n) array.
    """
    out = {0: np.zeros(1), 1: np.zeros(2)}
    for n in (0, 1):
        f = transported(grid, p, x[n], n)
        scalar = np.concatenate([averaged_kernels(grid, p, ring, n, 0) for ring in (0, 1)])
        if n == 1:  # the bases are Re z and Re(i z) = -Im z, the layer's rows are Re and Im
            scalar = scalar * np.array([1, -1, 1, -1])[:, None, None, None]
        for m in (0, 1):
            rings = [averaged_kernels(grid, p, ring, n, m) for ring in (0, 1)]
            w = layer.weights[f"{n}to{m}"].detach().numpy()
            if m == 0:
                bases, weights = scalar, w[0, :, :, 0]
            else:  # the layer orders by kind, then ring; bases by kind, then (1, i)
                kinds = 2 if n else 1
                bases = np.concatenate(
                    [rings[ring][2 * k : 2 * k + 2] for k in range(kinds) for ring in (0, 1)]
                )
                weights = np.stack([w[0, 0, :, :, 0], w[1, 0, :, :, 0]], 1).reshape(len(bases), -1)
            out[m] = out[m] + np.einsum("b,bjmn,jn->m", weights[:, 0], bases, f)
            pairs = np.einsum("jn,kl->jknl", f, f)  # f(q1) (x) f(q2), all pairs
            for b, kernel in enumerate(bases):
                for c, factor in enumerate(scalar):
                    second = np.einsum("jmn,kl->jkmnl", kernel, factor[:, 0])  # Prop. 3.5
                    out[m] = out[m] + weights[b, 1 + c] * np.einsum("jkmnl,jknl->m", second, pairs)
    return np.concatenate([out[0], out[1]])


@pytest.mark.parametrize("grid", [healpix(1), icosphere(0)], ids=lambda g: g.label)
def test_factorised_second_order_equals_all_pairs(grid):
    torch.manual_seed(0)
    one = FieldType.regular(1)
    layer = GEVConv(grid, one, one).double()
    x = torch.randn(grid.n_points, 3, 1, dtype=torch.float64)
    parts = {0: x[:, :1, 0].numpy(), 1: x[:, 1:, 0].numpy()}
    with torch.no_grad():
        y = layer(x)[:, :, 0].numpy()
    for p in (0, 3, grid.n_points - 1):
        assert np.abs(y[p] - all_pairs(layer, grid, parts, p)).max() < 1e-10


# --- Theorem 3.4 ------------------------------------------------------------------------------

regular = st.integers(0, 2).map(lambda bandlimit: FieldType.regular(2, bandlimit))


@settings(deadline=None, max_examples=15)
@given(regular, regular, st.integers(1, 3), st.integers(0, 2**31))
def test_gauge_equivariance_is_exact_for_every_order_and_bandlimit(a, b, order, seed):
    assert_gauge_equivariant(
        lambda grid: GEVConv(grid, a, b, order=order), a, b, healpix(1), seed=seed
    )


@pytest.mark.parametrize("grid", SMALL, ids=lambda g: g.label)
@pytest.mark.parametrize(
    "options",
    [{"order": 1}, {"order": 2}, {"products": "full"}, {"radii": (0.0, 1.2)}, {"radii": (1.0,)}],
    ids=str,
)
def test_gauge_equivariance_on_every_grid(grid, options):
    a, b = FieldType.regular(2), FieldType.regular(3)
    assert_gauge_equivariant(lambda g: GEVConv(g, a, b, **options), a, b, grid)


def test_unequal_multiplicities():
    a, b = FieldType((3, 1)), FieldType((0, 2))
    assert_gauge_equivariant(lambda g: GEVConv(g, a, b), a, b, healpix(2))


def test_mesh_is_gauge_equivariant_too():
    sphere = icosphere(1)
    mesh = TriangleMesh.build(sphere.points * [1, 1.2, 0.8], sphere.triangles)
    a = FieldType.regular(2)
    assert_gauge_equivariant(lambda g: GEVConv(g, a, a, radii=(0.5, 1.0)), a, a, mesh)


class CentreFrequencyOne(nn.Module):
    """Broken: adds the scalar at the centre to the vector, exp(i theta) at r = 0."""

    def __init__(self, grid, field):
        super().__init__()
        self.conv = GEVConv(grid, field, field)

    def forward(self, x):
        y = self.conv(x).clone()
        y[:, 2:4] += x[:, :2]
        return y


class BiasOnVectors(CentreFrequencyOne):
    """Broken: a bias on rho1."""

    def forward(self, x):
        y = self.conv(x).clone()
        y[:, 2:4] += 0.5
        return y


class NoTransport(nn.Module):
    """Broken: vectors of neighbours are mixed as if all frames were alike."""

    def __init__(self, grid, _):
        super().__init__()
        dense = ring_stencil(grid, DEFAULT_RADII, 2).operator(0, 0, 1).real
        self.register_buffer("dense", torch.from_numpy(dense), persistent=False)

    def forward(self, x):
        return torch.einsum("pq,qcb->pcb", self.dense, x)


@pytest.mark.parametrize("broken", [CentreFrequencyOne, BiasOnVectors, NoTransport])
def test_broken_layers_fail_the_gauge_test(broken):
    field = FieldType.regular(2)
    with pytest.raises(AssertionError, match="not gauge equivariant"):
        assert_gauge_equivariant(lambda g: broken(g, field), field, field, healpix(2))
    assert gauge_error(lambda g: broken(g, field), field, field, healpix(2)) > 0.05


# --- rotations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "rotvec"),
    [
        (healpix(2), [0, 0, np.pi / 2]),
        (healpix(4), [np.pi, 0, 0]),
        (icosphere(2), [0, 0, 4 * np.pi / 5]),
    ],
    ids=["healpix quarter", "healpix half", "icosphere fifth"],
)
def test_the_grids_own_rotations_are_exact(grid, rotvec):
    a, b = FieldType.regular(2), FieldType.regular(2)
    torch.manual_seed(1)
    layer = GEVConv(grid, a, b)
    rotation = Rotation.from_rotvec(rotvec).as_matrix()
    assert_rotation_equivariant(lambda _: layer, a, b, grid, rotation, tolerance=1e-11)


def test_transport_left_out_fails_the_rotation_test():
    field, grid = FieldType.regular(1), healpix(2)
    rotation = Rotation.from_rotvec([np.pi, 0, 0]).as_matrix()
    with pytest.raises(AssertionError, match="not rotation equivariant"):
        assert_rotation_equivariant(lambda g: NoTransport(g, field), field, field, grid, rotation)


def test_other_rotations_are_better_on_finer_grids():
    """A smooth signal; the error is the interpolation's and falls with the resolution."""
    a, b = FieldType.scalars(1), FieldType.regular(2)
    rotation = Rotation.from_rotvec([0.4, -0.9, 0.7]).as_matrix()
    errors = []
    for level in (2, 3, 4):
        grid = icosphere(level)
        torch.manual_seed(3)
        layer = GEVConv(grid, a, b)
        p = torch.from_numpy(grid.points)
        x = (1.5 * p[:, 0] * p[:, 1] + p[:, 2] ** 3 - 0.5 * p[:, 1])[:, None, None]
        errors.append(rotation_error(lambda _, made=layer: made, a, b, grid, rotation, x))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.03


# --- counts, gradients, precision -------------------------------------------------------------


@pytest.mark.parametrize(
    ("ins", "outs", "order", "count"),
    [
        ((1, 1), (1, 1), 1, 18),
        ((1, 1), (1, 1), 2, 78),
        ((1, 1), (1,), 2, 26),
        ((1,), (1, 1), 2, 18),
        ((1,), (1, 1), 1, 6),
        ((3, 3), (5, 5), 2, 78 * 15),
        ((1, 1), (1, 1), 3, 18 + 60 + 24 + 192),
    ],
)
def test_weights_per_pair_of_channels(ins, outs, order, count):
    layer = GEVConv(healpix(1), FieldType(ins), FieldType(outs), order=order)
    assert sum(p.numel() for p in layer.parameters()) == count


def test_full_products_add_to_the_papers():
    one = FieldType.regular(1)
    layer = GEVConv(healpix(1), one, one, products="full")
    assert sum(p.numel() for p in layer.parameters()) == 18 + 57 + 2 * 36


def test_a_dead_ring_at_the_centre_and_living_ones_elsewhere():
    """maths: with a knot at r = 0, 6 of 18 and 36 of 60 weights never matter."""
    one = FieldType.regular(1)
    for radii, dead in (((0.0, 1.2), 42), (DEFAULT_RADII, 0)):
        layer = GEVConv(healpix(2), one, one, radii=radii).double()
        x = torch.randn(48, 3, 4, dtype=torch.float64)
        layer(x).square().sum().backward()
        gradients = torch.cat([w.grad.flatten() for w in layer.weights.values()])
        assert int((gradients.abs() < 1e-14).sum()) == dead


@pytest.mark.parametrize("options", [{"order": 1}, {"order": 2}, {"order": 3}], ids=str)
def test_gradients(options):
    field = FieldType.regular(1)
    layer = GEVConv(icosphere(0), field, FieldType((2, 1)), **options).double()
    x = torch.randn(12, 3, 2, dtype=torch.float64, requires_grad=True)
    names = list(dict(layer.named_parameters()))
    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *weights))


@pytest.mark.parametrize("batch", [1, 63, 64, 65, 130])
def test_result_does_not_depend_on_how_the_batch_is_cut(batch):
    field = FieldType.regular(2)
    layer = GEVConv(healpix(2), field, field).double()
    x = torch.randn(48, 6, batch, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    one_by_one = torch.cat([layer(x[:, :, i : i + 1]) for i in range(batch)], dim=2)
    assert torch.allclose(y, one_by_one, atol=1e-12)
    g = torch.randn_like(y)
    (together,) = torch.autograd.grad(y, x, g)
    (apart,) = torch.autograd.grad(one_by_one, x, g)
    assert torch.allclose(together, apart, atol=1e-12)


def test_float32_and_bfloat16_agree_with_float64():
    a, b = FieldType.regular(3), FieldType.regular(2)
    layer = GEVConv(healpix(2), a, b)
    x = torch.randn(48, 9, 5)
    y32 = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y16 = layer(x)
    y64 = layer.double()(x.double())
    scale = y64.abs().max()
    assert y16.dtype == torch.bfloat16
    assert (y32 - y64).abs().max() / scale < 1e-5
    assert (y16 - y64).abs().max() / scale < 0.1


def test_geometry_is_not_saved():
    layer = GEVConv(healpix(4), FieldType.regular(1), FieldType.regular(1))
    assert sum(v.numel() for v in layer.state_dict().values()) == 78


def test_first_order_is_linear_and_second_is_not():
    field = FieldType.regular(1)
    x = torch.randn(48, 3, 2, dtype=torch.float64)
    first = GEConv(healpix(2), field, field).double()
    second = GEVConv(healpix(2), field, field).double()
    assert torch.allclose(first(3 * x), 3 * first(x))
    even = second(x) + second(-x)  # what is quadratic
    assert torch.allclose(second(3 * x) + second(-3 * x), 9 * even)
    assert even.abs().max() > 0.1


def test_output_variance_is_of_order_one_on_a_smooth_signal():
    torch.manual_seed(0)
    grid = icosphere(3)
    distance = torch.from_numpy(grid.points @ grid.points.T).clamp(-1, 1).arccos() / grid.spacing
    factor = torch.linalg.cholesky(
        torch.exp(-distance.square() / 2) + 1e-2 * torch.eye(642, dtype=torch.float64)
    )
    x = torch.einsum("pq,qcb->pcb", factor, torch.randn(642, 4, 6, dtype=torch.float64))
    y = GEVConv(grid, FieldType.scalars(4), FieldType.regular(8)).double()(x)
    assert 0.2 < y.var() < 3


@pytest.mark.parametrize("options", [{"order": 0}, {"products": "all"}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError):
        GEVConv(healpix(1), FieldType.scalars(1), FieldType.scalars(1), **options)


def test_full_products_need_matching_channels():
    with pytest.raises(InputError, match="equally many"):
        GEVConv(healpix(1), FieldType((1, 2)), FieldType.scalars(1), products="full")
