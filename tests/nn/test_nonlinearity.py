"""Regular nonlinearity: BatchNorm by Parseval, N^-2, the closed form, gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import InputError
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gevnet import GEVNet
from bids_gevnet.nn.nonlinearity import (
    RegularNonlinearity,
    RegularNorm,
    exact_relu,
    regular_relu,
    synthesis_matrix,
)
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.testing import gauge_error, relative_error


def sample(x, bandlimit, n_samples):
    """(points, dim, batch) to (points, N, channels, batch) by explicit sums."""
    h = x.view(x.shape[0], 2 * bandlimit + 1, -1, x.shape[2])
    theta = 2 * np.pi * torch.arange(n_samples, dtype=x.dtype) / n_samples
    out = h[:, :1].expand(-1, n_samples, -1, -1).clone()
    for n in range(1, bandlimit + 1):
        c, s = torch.cos(n * theta), torch.sin(n * theta)
        out += 2**0.5 * torch.einsum("k,pcb->pkcb", c, h[:, 2 * n - 1])
        out += 2**0.5 * torch.einsum("k,pcb->pkcb", s, h[:, 2 * n])
    return out


@pytest.mark.parametrize("bandlimit", [0, 1, 2])
@pytest.mark.parametrize("n_samples", [5, 7, 12])
def test_statistics_from_coefficients_are_those_of_the_samples(bandlimit, n_samples):
    field = FieldType.regular(3, bandlimit)
    x = torch.randn(10, field.dim, 4, dtype=torch.float64) + 0.7
    count, first, second = RegularNorm(field, n_samples).moments(x)
    samples = sample(x, bandlimit, n_samples)
    assert torch.allclose(first / count, samples.mean((0, 1, 3)))
    assert torch.allclose(second / count, samples.square().mean((0, 1, 3)))
    assert count[0] == samples[:, :, 0].numel()


def test_norm_equals_batchnorm_on_the_samples_in_training_and_evaluation():
    field, n = FieldType.regular(3), 7
    ours, theirs = RegularNorm(field, n).double(), torch.nn.BatchNorm1d(3).double()
    with torch.no_grad():
        for module in (ours, theirs):
            module.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
            module.bias.copy_(torch.tensor([0.1, 0.0, 3.0]))
    for _ in range(3):
        x = 2 * torch.randn(10, 9, 4, dtype=torch.float64) - 1
        y = sample(ours(x), 1, n)
        expected = theirs(sample(x, 1, n).permute(0, 1, 3, 2).reshape(-1, 3))
        assert torch.allclose(y.permute(0, 1, 3, 2).reshape(-1, 3), expected)
    assert torch.allclose(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    expected = theirs(sample(x, 1, n).permute(0, 1, 3, 2).reshape(-1, 3))
    assert torch.allclose(sample(ours(x), 1, n).permute(0, 1, 3, 2).reshape(-1, 3), expected)


def test_points_count_by_their_area_and_healpix_points_all_the_same():
    field, grid = FieldType.regular(3, 1), icosphere(2)
    assert RegularNorm(field, areas=healpix(2).areas).mean is None
    x = torch.randn(grid.n_points, field.dim, 5, dtype=torch.float64)
    count, first, second = RegularNorm(field, areas=grid.areas).double().moments(x)
    share = torch.tensor(grid.areas / grid.areas.sum())[:, None]
    mean = (share * x[:, :3].mean(2)).sum(0)
    power = (share * x.unflatten(1, (3, 3)).square().sum(1).mean(2)).sum(0)
    torch.testing.assert_close(first / count, mean)
    torch.testing.assert_close(second / count, power)


def _rotation_error_in_training(level: int, *, weighted: bool) -> float:
    """How much the output for a turned signal differs, relative to the output."""
    grid = icosphere(level)
    torch.manual_seed(0)
    network = GEVNet(grid, "1-4-4", samples=None).double().train()
    for module in network.modules():
        if isinstance(module, RegularNorm) and not weighted:
            module.mean = None
    rotation = Rotation.from_rotvec([0.3, -1.1, 0.8]).as_matrix()

    def signals(points: np.ndarray) -> torch.Tensor:
        x, y, z = points.T
        return torch.tensor(np.stack([np.exp(3 * x) * y, np.cos(4 * z + x)]))[:, None]

    with torch.no_grad():
        upright, turned = network(signals(grid.points)), network(signals(grid.points @ rotation))
    return relative_error(turned, upright)


def test_rotations_are_exact_in_the_limit_of_fine_grids_while_training():
    coarse, fine = (_rotation_error_in_training(level, weighted=True) for level in (2, 4))
    assert fine < coarse / 10
    assert _rotation_error_in_training(4, weighted=False) > 10 * fine  # without areas it stays


def test_moments_add_over_chunks():
    field = FieldType.regular(2)
    norm = RegularNorm(field, 7)
    x = torch.randn(10, 6, 8, dtype=torch.float64)
    assert torch.allclose(norm.moments(x), norm.moments(x[:, :, :3]) + norm.moments(x[:, :, 3:]))


@pytest.mark.parametrize("bandlimit", [1, 2])
def test_identity_function_gives_the_field_back(bandlimit):
    field = FieldType.regular(2, bandlimit)
    layer = RegularNonlinearity(field, 7, function=lambda h: h, norm=None).double()
    x = torch.randn(5, field.dim, 3, dtype=torch.float64)
    assert torch.allclose(layer(x), x)


def test_relu_kernel_equals_the_plain_formula():
    field = FieldType.regular(2, 2)
    fused = RegularNonlinearity(field, 9, norm=None).double()
    plain = RegularNonlinearity(field, 9, function=torch.relu, norm=None).double()
    x = torch.randn(5, field.dim, 3, dtype=torch.float64)
    assert torch.allclose(fused(x), plain(x), atol=1e-14)


def error_at(samples, seed=0, **options):
    field = FieldType.regular(4)
    return gauge_error(
        lambda _: RegularNonlinearity(field, samples, norm=None, **options),
        field,
        field,
        healpix(2),
        seed=seed,
    )


def test_gauge_error_falls_with_the_square_of_n():
    errors = {n: error_at(n) for n in (5, 11, 51, 101)}
    assert all(error < 4 / n**2 for n, error in errors.items())
    slope = np.polyfit(np.log(list(errors)), np.log(list(errors.values())), 1)[0]
    assert -2.6 < slope < -1.6


def test_closed_form_is_gauge_equivariant_to_rounding_and_sampling_is_not():
    assert error_at(None) < 1e-14
    assert error_at(7) > 1e-3


@settings(deadline=None)
@given(*[st.floats(-3, 3) for _ in range(3)])
def test_closed_form_is_the_limit_of_many_samples(s, a, b):
    h = torch.tensor([s, a, b], dtype=torch.float64).view(1, 3, 1)
    matrix = torch.from_numpy(synthesis_matrix(1, 20_001))
    assert torch.allclose(exact_relu(h), regular_relu(h, matrix), atol=1e-6)


@pytest.mark.parametrize("h", [(2.0, 0, 0), (-2.0, 0, 0), (0, 0, 0), (5.0, 1, 1), (-5.0, 1, 1)])
def test_closed_form_without_a_change_of_sign(h):
    """All positive: unchanged; all negative: nothing; also where |z| = 0."""
    x = torch.tensor(h, dtype=torch.float64).view(1, 3, 1).requires_grad_()
    y = exact_relu(x)
    assert torch.allclose(y, x if h[0] > 0 else torch.zeros_like(x), atol=1e-12)
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("samples", [7, None])
def test_gradients(samples):
    field = FieldType.regular(2)
    layer = RegularNonlinearity(field, samples).double()
    torch.manual_seed(0)
    x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


def test_any_pointwise_function():
    field = FieldType.regular(2)
    layer = RegularNonlinearity(field, 25, function=F.gelu).double()
    x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)
    assert error_at(25, function=F.gelu) < 1e-6  # smooth: far better than N^-2


@pytest.mark.parametrize(
    ("field", "options"),
    [
        (FieldType((2, 1)), {}),
        (FieldType.regular(2, 2), {"samples": None}),
        (FieldType.regular(2), {"samples": None, "function": F.gelu}),
        (FieldType.regular(2), {"samples": 2}),
        (FieldType.regular(2), {"norm": "layer"}),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(field, options):
    with pytest.raises(InputError):
        RegularNonlinearity(field, **options)
