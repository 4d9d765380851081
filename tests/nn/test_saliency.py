"""Saliency: closed forms, completeness, and a lesion that it must find."""

import pytest
import torch
from torch import nn

from bids_gevnet.errors import InputError
from bids_gevnet.nn.attribution import attribute, margin, saliency, sphere_saliency
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.registry import build
from bids_gevnet.sphere.resampling import antipode

TABLE_3 = ["ckn2", "gevnet", "ckn1+deepsphere", "ckn1+gevnet", "ckn2+deepsphere", "ckn2+gevnet"]


def _case(
    name: str, pieces: Pieces | None = None
) -> tuple[CompoundNetwork, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    network = build(name, nside=1, strides=(2, 1, 1, 1), pieces=pieces)
    assert isinstance(network, CompoundNetwork)
    scan = torch.rand(6, 6, 6, 6)
    mask = torch.zeros(6, 6, 6, dtype=torch.bool)
    mask[1:5, 1:5, 1:5] = True
    scan *= mask
    network.initialise_(scan, n_patches=300)
    network(scan[None], mask[None])  # running statistics of some batch
    return network, scan, mask


def test_margin_of_two_classes_is_their_difference() -> None:
    torch.testing.assert_close(margin(torch.tensor([[3.0, 1.0]]), 0), torch.tensor([2.0]))
    torch.testing.assert_close(
        margin(torch.tensor([[3.0, 1.0, 2.0]]), 1), torch.tensor([1.0 - 2.5])
    )


def test_linear_network_has_its_weights_as_gradient() -> None:
    torch.manual_seed(0)
    network = nn.Linear(5, 2).double()
    x = torch.randn(1, 5, dtype=torch.float64)
    weights = (network.weight[1] - network.weight[0]).detach()
    for method, expected in {
        "gradient": weights,
        "product": weights * x[0],
        "integrated": weights * x[0],
    }.items():
        found, scores, target = attribute(network, network, x, 1, method=method)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected)
        assert target == 1
        torch.testing.assert_close(scores, network(x)[0].detach())


@pytest.mark.parametrize("name", TABLE_3)
def test_gradient_is_that_of_finite_differences_in_any_pieces(name: str) -> None:
    network, scan, mask = _case(name)
    network = network.double()
    x, m = scan.double()[None], mask[None]
    whole, _, target = attribute(network, lambda x: network(x, m), x)
    network.pieces = Pieces(500, 5, keep_volumes=False)
    cut, _, _ = attribute(network, lambda x: network(x, m), x, target)
    torch.testing.assert_close(whole, cut, rtol=1e-8, atol=1e-12)
    network.eval()
    probe = torch.randn_like(x) * mask
    with torch.no_grad():
        ends = [margin(network(x + s * 1e-7 * probe, m), target) for s in (1, -1)]
    slope = (ends[0] - ends[1]) / 2e-7
    torch.testing.assert_close((whole * probe[0]).sum()[None], slope, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["ckn2", "ckn2+gevnet"])
def test_integrated_gradients_add_up_to_the_change_of_the_score(name: str) -> None:
    network, scan, mask = _case(name)
    baseline = 0.5 * mask.expand_as(scan).float()
    result = saliency(network, scan, mask, 1, method="integrated", baseline=baseline, n_steps=64)
    network.eval()
    with torch.no_grad():
        change = margin(network(scan[None], mask[None]), 1) - margin(
            network(baseline[None], mask[None]), 1
        )
    torch.testing.assert_close(result.attribution.sum()[None], change, rtol=0.02, atol=1e-5)


def test_maps_are_root_mean_squares() -> None:
    network, scan, mask = _case("ckn2+deepsphere")
    result = saliency(network, scan, mask)
    a = result.attribution
    torch.testing.assert_close(result.voxels, a.square().mean(0).sqrt())
    torch.testing.assert_close(result.directions, a[:, mask].square().mean(1).sqrt())
    sphere = result.on_sphere()
    assert sphere.shape == (12,)
    assert torch.equal(sphere, sphere[torch.from_numpy(antipode(1))])
    assert result.target == int(result.scores.argmax())


def test_lone_gevnet_is_sensitive_in_the_brain_only() -> None:
    network, scan, mask = _case("gevnet")
    result = saliency(network, scan, mask)
    assert (result.voxels[~mask] == 0).all()
    assert (result.voxels[mask] > 0).all()


def test_a_network_that_learned_a_lesion_points_at_it() -> None:
    # Two groups that differ in one corner of the brain and in two directions only.
    generator = torch.Generator().manual_seed(0)
    network, _, mask = _case("ckn2")
    label = torch.arange(8) % 2
    scans = 0.3 + 0.02 * torch.randn(8, 6, 6, 6, 6, generator=generator)
    scans[label == 1, 2:4, 1:3, 1:3, 1:3] += 0.5
    scans *= mask
    masks = mask.expand(8, -1, -1, -1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(scans, masks), label)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3
    reference = scans[label == 0].mean(0)
    result = saliency(network, scans[1], mask, 1, method="integrated", baseline=reference)
    lesion = torch.zeros_like(mask)
    lesion[1:3, 1:3, 1:3] = True
    inside = result.voxels[lesion].mean()
    assert inside > 5 * result.voxels[mask & ~lesion].mean()
    others = result.directions[[0, 1, 4, 5]]
    assert result.directions[2:4].min() > 2 * others.max()


def test_mode_and_gradients_of_the_network_are_left_alone() -> None:
    network, scan, mask = _case("ckn2+gevnet")
    assert network.ckn is not None
    network.ckn.eval()
    saliency(network, scan, mask)
    assert network.training
    assert not network.ckn.training
    assert network.sphere.training
    assert all(p.grad is None for p in network.parameters())
    with pytest.raises(InputError, match="a class from 0 to 1"):
        saliency(network, scan, mask, 2)
    assert network.training


def test_one_sample_at_a_time() -> None:
    network = nn.Linear(3, 2)
    with pytest.raises(InputError, match="a batch of 2"):
        attribute(network, network, torch.zeros(2, 3))


def test_spherical_networks_of_the_zoo() -> None:
    torch.manual_seed(0)
    network = build("gevnet-mnist-2layer")
    signal = torch.zeros(1, 2562)
    signal[0, :200] = 1.0
    network(torch.rand(4, 1, 2562))
    directions = sphere_saliency(network, signal, 3)
    assert directions.shape == (2562,)
    assert directions.isfinite().all()
    assert directions.max() > 0
    product = sphere_saliency(network, signal, 3, method="product")
    assert (product[200:] == 0).all()


def test_shares_of_shells_are_those_of_the_squares() -> None:
    network = build("ckn2+gevnet", nside=1, shells=2)
    scan, mask = torch.rand(12, 4, 4, 4), torch.ones(4, 4, 4, dtype=torch.bool)
    found = saliency(network, scan, mask)
    squares = found.attribution.square().unflatten(0, (2, 6))
    shares = squares.sum((1, 2, 3, 4)) / squares.sum()
    torch.testing.assert_close(found.shell_shares(), shares)
    torch.testing.assert_close(found.over_shells(), squares.mean((0, 2, 3, 4)).sqrt())
    assert found.on_sphere().shape == (12,)
