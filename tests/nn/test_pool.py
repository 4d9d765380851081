"""Pooling with transport and the mean over the sphere."""

import numpy as np
import pytest
import torch

from bids_gevnet.errors import InputError
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.pool import SphereMean, TransportPool
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere
from bids_gevnet.testing import assert_gauge_equivariant, gauge_error

FIELD = FieldType.regular(2)


@pytest.mark.parametrize("fine", [healpix(2), icosphere(2)], ids=lambda g: g.label)
def test_pooling_is_gauge_equivariant_in_the_fine_frames(fine):
    coarse = fine.coarse()
    assert_gauge_equivariant(
        lambda g: TransportPool(g, FIELD, coarse), FIELD, FIELD, fine, out_grid=coarse
    )


def test_pooling_is_gauge_equivariant_in_the_coarse_frames():
    fine, coarse = healpix(4), healpix(2)
    angles = np.random.default_rng(0).uniform(-3, 3, coarse.n_points)
    x = torch.randn(192, 6, 2, dtype=torch.float64)
    plain = TransportPool(fine, FIELD, coarse).double()(x)
    turned = TransportPool(fine, FIELD, coarse.rotate_frames(angles)).double()(x)
    assert torch.allclose(FIELD.gauge_transform(plain, torch.from_numpy(angles)), turned)


def test_a_plain_mean_of_the_children_fails():
    """Negative control: averaging coordinates of different frames."""

    class ChildrenMean(torch.nn.Module):
        def forward(self, x):
            return x.view(-1, 4, *x.shape[1:]).mean(1)

    error = gauge_error(lambda _: ChildrenMean(), FIELD, FIELD, healpix(2), out_grid=healpix(1))
    assert error > 0.1


@pytest.mark.parametrize("fine", [healpix(4), icosphere(3)], ids=lambda g: g.label)
def test_constants_stay_and_smooth_vector_fields_are_met(fine):
    """The gradient of a linear function is a smooth vector field, known at both resolutions."""
    a = np.array([0.3, -0.5, 0.8])
    one = FieldType.regular(1)

    def field(grid):
        vector = grid.frames @ a  # (n, 2): coordinates of a projected on the tangent plane
        return torch.from_numpy(np.concatenate([np.ones((grid.n_points, 1)), vector], 1))[
            ..., None
        ]

    pooled = TransportPool(fine, one).double()(field(fine))
    expected = field(fine.coarse())
    assert torch.allclose(pooled[:, 0], expected[:, 0])
    assert (pooled - expected).abs().max() < 0.06


def test_mean_weighs_by_area():
    grid = icosphere(1)
    x = torch.from_numpy(grid.points[:, 2] ** 2)[:, None, None]
    mean = SphereMean(grid, FieldType.scalars(1)).double()
    expected = (grid.areas * grid.points[:, 2] ** 2).sum() / (4 * np.pi)
    assert mean(x).item() == pytest.approx(expected)
    fine = icosphere(4)
    z = torch.from_numpy(fine.points[:, 2] ** 2)[:, None, None]
    assert SphereMean(fine, FieldType.scalars(1)).double()(z).item() == pytest.approx(
        1 / 3, abs=1e-3
    )


def test_mean_leaves_vectors_out():
    assert SphereMean(healpix(1), FIELD)(torch.randn(12, 6, 5)).shape == (5, 2)


def test_wrong_number_of_points_is_refused():
    with pytest.raises(InputError):
        TransportPool(healpix(2), FIELD)(torch.zeros(12, 6, 1))
