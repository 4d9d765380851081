"""The compound network: the same numbers however it is cut up, and what it may not depend on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.nn.ckn import keep_on_sphere
from bids_gevnet.nn.compound import Bumps, CompoundNetwork, Pieces, brain_index
from bids_gevnet.nn.registry import build
from bids_gevnet.sphere.resampling import antipode, distinct_points, expand_index

TABLE_3 = {
    "ckn2": {"ckn": 3_164, "sphere": 0},
    "gevnet": {"ckn": 0, "sphere": 12_424},
    "ckn1+deepsphere": {"ckn": 3_164, "sphere": 13_696},
    "ckn1+gevnet": {"ckn": 3_164, "sphere": 12_424},
    "ckn2+deepsphere": {"ckn": 3_164, "sphere": 13_696},
    "ckn2+gevnet": {"ckn": 3_164, "sphere": 12_424},
}
WHOLE = Pieces(10**9, 10**9, keep_volumes=True, keep_sphere=True)


def _scans(batch: int = 2, *, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    scans = torch.rand(batch, 6, 9, 10, 8, generator=generator, dtype=dtype)
    masks = torch.rand(batch, 9, 10, 8, generator=generator) < 0.7
    return scans * masks[:, None], masks


def _build(name: str, dtype: torch.dtype = torch.float64) -> CompoundNetwork:
    torch.manual_seed(0)
    network = build(name, nside=1, classes=3, pieces=WHOLE).to(dtype)
    assert isinstance(network, CompoundNetwork)
    return network


def _loss_and_gradients(
    network: CompoundNetwork, scans: torch.Tensor, masks: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss = F.cross_entropy(network(scans, masks), torch.arange(len(scans)) % 3)
    return loss.detach(), list(torch.autograd.grad(loss, list(network.parameters())))


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE_3)
@pytest.mark.parametrize("classes", [2, 4])
def test_networks_of_table_3_have_the_counts_of_the_paper(name: str, classes: int) -> None:
    network = build(name, classes=classes)
    assert isinstance(network, CompoundNetwork)
    counts = network.part_counts()
    n_features = network.head[0].in_features
    head = (n_features + 1) * 50 + 51 * classes
    assert counts == TABLE_3[name] | {"head": head}
    assert sum(counts.values()) == sum(p.numel() for p in network.parameters())


TWO_SHELLS = {
    "ckn2": {"ckn": 3_272, "sphere": 0},
    "gevnet": {"ckn": 0, "sphere": 13_576},
    "ckn1+deepsphere": {"ckn": 3_272, "sphere": 13_696},
    "ckn2+gevnet": {"ckn": 3_272, "sphere": 12_424},
}


@pytest.mark.parametrize("name", TWO_SHELLS)
def test_a_second_shell_adds_input_channels_and_nothing_else(name: str) -> None:
    counts = build(name, shells=2).part_counts()
    assert {part: counts[part] for part in ("ckn", "sphere")} == TWO_SHELLS[name]
    assert counts["head"] == build(name).part_counts()["head"]


def test_geometry_is_not_saved() -> None:
    network = _build("ckn2+gevnet")
    saved = sum(v.numel() for v in network.state_dict().values())
    trained = sum(p.numel() for p in network.parameters())
    assert saved - trained < 200  # running statistics


# --- pieces -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE_3)
@pytest.mark.parametrize(
    "pieces",
    [
        Pieces(1, 5, keep_volumes=True, keep_sphere=True),
        Pieces(3000, 7, keep_volumes=False, keep_sphere=False),
        Pieces(whole=True),
        Pieces(),
    ],
    ids=["kept", "not kept", "whole", "default"],
)
def test_loss_and_gradients_do_not_depend_on_the_pieces(name: str, pieces: Pieces) -> None:
    scans, masks = _scans()
    whole, cut = _build(name), _build(name)
    if name == "gevnet":  # 1,000 voxels instead of 30
        masks[:, 4:] = False
        pieces = replace(pieces, sphere_voxels=10 * pieces.sphere_voxels)
    cut.pieces = pieces
    expected = _loss_and_gradients(whole, scans, masks)
    found = _loss_and_gradients(cut, scans, masks)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for key, value in whole.state_dict().items():  # running statistics too
        torch.testing.assert_close(cut.state_dict()[key], value)


def test_single_precision_agrees_to_1e_5() -> None:
    scans, masks = _scans(dtype=torch.float32)
    whole, cut = _build("ckn2+gevnet", torch.float32), _build("ckn2+gevnet", torch.float32)
    cut.pieces = Pieces(1, 3)
    loss, grads = _loss_and_gradients(whole, scans, masks)
    other, others = _loss_and_gradients(cut, scans, masks)
    assert abs(loss - other) < 1e-5 * loss
    flat, flats = (torch.cat([g.flatten() for g in gs]) for gs in (grads, others))
    assert (flat - flats).norm() < 1e-5 * flat.norm()


@pytest.mark.parametrize("name", ["ckn2+deepsphere", "ckn2+gevnet"])
def test_equals_the_network_written_out_with_torch_alone(name: str) -> None:
    """The plain composition of the parts, all voxels and directions at once."""
    scans, masks = _scans()
    network, parts = _build(name), _build(name)
    network.pieces = Pieces(2000, 9)
    volumes = parts.ckn(scans.flatten(0, 1)[:, None])  # type: ignore[misc]
    volumes = volumes.unflatten(0, (2, 6))  # (batch, directions, channels, x, y, z)
    coarse = masks[:, ::4, ::4, ::4]
    # (V, channels, directions) to (V, channels, points)
    voxels = volumes.permute(0, 3, 4, 5, 2, 1)[coarse][..., torch.from_numpy(expand_index(1))]
    features = parts.sphere(voxels)
    if features.ndim == 3:
        features = features.mean(2)
    of_scan = torch.repeat_interleave(torch.arange(2), coarse.flatten(1).sum(1))
    mean = torch.stack([features[of_scan == b].mean(0) for b in range(2)])
    expected = parts.head(mean)
    found = network(scans, masks)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), list(network.parameters())),
        torch.autograd.grad(expected.square().sum(), list(parts.parameters())),
    )


def test_statistics_per_piece_would_be_seen() -> None:
    # Negative control: normalising each piece by itself changes the result by far more than 1e-5.
    scans, masks = _scans()
    network = _build("ckn2")
    assert network.ckn is not None
    together = network.ckn(scans[0][:, None])
    apart = torch.cat([network.ckn(v[None, None]) for v in scans[0]])
    assert (together - apart).norm() > 0.01 * together.norm()
    assert masks.any()


def test_evaluation_uses_running_statistics_and_no_other_scan() -> None:
    scans, masks = _scans()
    network = _build("ckn2+gevnet")
    network(scans, masks)
    network.eval()
    state = {k: v.clone() for k, v in network.state_dict().items()}
    with torch.no_grad():
        both = network(scans, masks)
        alone = torch.cat([network(s[None], m[None]) for s, m in zip(scans, masks, strict=True)])
    torch.testing.assert_close(both, alone)
    assert all(torch.equal(network.state_dict()[k], v) for k, v in state.items())


def test_volumes_are_computed_once_for_both_opposite_directions() -> None:
    scans, masks = _scans(1)
    network = _build("ckn2+deepsphere").eval()
    seen = []
    assert network.ckn is not None
    network.ckn.layers[0].register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    network(scans, masks)
    assert sum(seen) == 6
    assert len(network.expand) == 12


# --- meaning ------------------------------------------------------------------------------------


def test_points_and_their_antipodes_get_the_same_volume() -> None:
    for nside in (1, 2, 4):
        index = expand_index(nside)
        assert (index == index[antipode(nside)]).all()
        assert (index[distinct_points(nside)] == range(6 * nside**2)).all()


@pytest.mark.parametrize("name", ["ckn2+gevnet", "ckn2+deepsphere", "ckn2", "gevnet"])
def test_order_of_directions_counts_only_where_there_is_a_sphere(name: str) -> None:
    scans, masks = _scans(1)
    masks[:, 5:] = False
    network = _build(name).eval()
    shuffled = scans[:, [3, 0, 5, 1, 4, 2]]
    difference = (network.features(scans, masks) - network.features(shuffled, masks)).norm()
    size = network.features(scans, masks).norm()
    if name == "ckn2":
        assert difference < 1e-12 * size
    else:
        assert difference > 1e-6 * size


def test_lone_gevnet_ignores_where_a_voxel_is() -> None:
    scans, masks = _scans(1)
    masks[:] = False
    masks[:, 2:5, 2:5, 2:5] = True
    shuffled = scans.clone()
    order = torch.randperm(27, generator=torch.Generator().manual_seed(0))
    shuffled[:, :, masks[0]] = scans[:, :, masks[0]][..., order]
    lone, compound = _build("gevnet").eval(), _build("ckn2+gevnet").eval()
    masks_4 = torch.zeros_like(masks)
    masks_4[:, ::4, ::4, ::4] = True
    torch.testing.assert_close(lone(scans, masks), lone(shuffled, masks))
    here, there = compound.features(scans, masks_4), compound.features(shuffled, masks_4)
    assert (here - there).norm() > 1e-3 * here.norm()


def test_only_brain_voxels_reach_the_sphere() -> None:
    scans, masks = _scans(1)
    network = _build("gevnet").eval()
    masks[:, 3:] = False
    outside = scans.clone()
    outside[:, :, 3:] += 10
    assert torch.equal(network(scans, masks), network(outside, masks))


def test_bumps_sort_the_signal_by_size() -> None:
    centres = torch.linspace(0, 1, 8)
    values = Bumps()(centres.view(8, 1, 1))[..., 0]  # (points, channels)
    torch.testing.assert_close(values.diagonal(), torch.ones(8))
    assert (values.argmax(1) == torch.arange(8)).all()


def test_a_step_of_training_lowers_the_loss_and_keeps_filters_on_the_sphere() -> None:
    scans, masks = _scans(dtype=torch.float32)
    network = _build("ckn2+gevnet", torch.float32)
    network.pieces = Pieces()
    network.initialise_((v for scan in scans for v in scan), n_volumes=4, n_patches=400)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    keep_on_sphere(optimizer, network)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(scans, masks), torch.tensor([0, 2]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert network.ckn is not None
    for layer in network.ckn.layers:
        lengths = layer.filters.flatten(1).norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("name", TABLE_3)
def test_bfloat16_autocast_trains(name: str) -> None:
    scans, masks = _scans(dtype=torch.float32)
    masks[:, 5:] = False
    network = _build(name, torch.float32)
    network.initialise_(list(scans[0]), n_patches=400)
    network.pieces = Pieces()
    exact = network(scans, masks).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = network(scans, masks)
        loss = F.cross_entropy(rough, torch.tensor([0, 1]))
    loss.backward()
    assert (rough.float() - exact).abs().max() < 0.1 * exact.abs().max()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_half_precision_scans_are_accepted() -> None:
    scans, masks = _scans(1, dtype=torch.float32)
    for name in ("ckn2+gevnet", "gevnet"):
        network = _build(name, torch.float32).eval()
        exact = network(scans, masks)
        torch.testing.assert_close(network(scans.half(), masks), exact, rtol=1e-2, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", TABLE_3)
def test_cuda_equals_the_processor(name: str) -> None:
    scans, masks = _scans()
    loss, grads = _loss_and_gradients(_build(name), scans, masks)
    on_gpu = _build(name).cuda()
    with torch.device("cuda"):
        found = _loss_and_gradients(on_gpu, scans.cuda(), masks.cuda())
    torch.testing.assert_close(found[0].cpu(), loss)
    torch.testing.assert_close([g.cpu() for g in found[1]], grads, rtol=1e-6, atol=1e-9)


# --- broken input -------------------------------------------------------------------------------


def test_a_mask_without_coarse_voxels_is_refused() -> None:
    mask = torch.zeros(8, 8, 8, dtype=torch.bool)
    mask[1:3, 1:3, 1:3] = True
    assert len(brain_index(mask, 1)) == 8
    with pytest.raises(ParticipantError, match="8 brain voxels among 512"):
        brain_index(mask, 4)


def test_wrong_shapes_are_refused() -> None:
    scans, masks = _scans(1)
    network = _build("ckn2")
    with pytest.raises(InputError, match=r"\(batch, 6, X, Y, Z\)"):
        network(scans[:, :5], masks)
    with pytest.raises(InputError, match="boolean masks"):
        network(scans, masks.float())
    with pytest.raises(InputError, match="boolean masks"):
        network(scans, masks[:, 1:])


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1 output"):
        build("ckn2", classes=0)
    with pytest.raises(InputError, match="no CKN and no spherical"):
        CompoundNetwork(None, None)
    with pytest.raises(InputError, match="at least one voxel"):
        Pieces(sphere_voxels=0)


# --- processes ----------------------------------------------------------------------------------


def _uneven() -> tuple[torch.Tensor, torch.Tensor]:
    scans, masks = _scans()
    masks[1, 4:] = False  # one process has more pieces than the other
    return scans, masks


def _one_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    network = _build("ckn2+gevnet")
    network.pieces = Pieces(2000, 4)
    parallel = torch.nn.parallel.DistributedDataParallel(network)
    scans, masks = _uneven()
    loss = F.cross_entropy(
        parallel(scans[rank : rank + 1], masks[rank : rank + 1]), torch.tensor([rank])
    )
    loss.backward()
    grads = [p.grad for p in network.parameters()]
    torch.save(
        {"loss": loss.detach(), "grads": grads, "state": network.state_dict()},
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()


def test_two_processes_train_as_one_on_both_scans(tmp_path: Path) -> None:
    mp.spawn(_one_of_two, args=(str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    network = _build("ckn2+gevnet")
    loss, grads = _loss_and_gradients(network, *_uneven())
    torch.testing.assert_close((parts[0]["loss"] + parts[1]["loss"]) / 2, loss)
    for part in parts:
        torch.testing.assert_close(part["grads"], grads, rtol=1e-9, atol=1e-12)
        for key, value in network.state_dict().items():
            torch.testing.assert_close(part["state"][key], value)


# --- several shells -----------------------------------------------------------------------------


def _two_shells() -> tuple[torch.Tensor, ...]:
    scans, masks = _scans()
    generator = torch.Generator().manual_seed(2)
    second = torch.rand(scans.shape, generator=generator, dtype=scans.dtype) * masks[:, None]
    return scans, second, masks


def _build_for_two(name: str) -> CompoundNetwork:
    torch.manual_seed(0)
    network = build(name, nside=1, classes=3, shells=2, pieces=WHOLE).double()
    assert isinstance(network, CompoundNetwork)
    return network


@pytest.mark.parametrize("name", ["ckn2", "gevnet", "ckn2+gevnet"])
@pytest.mark.parametrize("pieces", [Pieces(3000, 7), Pieces(whole=True)], ids=["cut", "whole"])
def test_two_shells_do_not_depend_on_the_pieces(name: str, pieces: Pieces) -> None:
    first, second, masks = _two_shells()
    masks[:, 3:] = False
    whole, cut = _build_for_two(name), _build_for_two(name)
    cut.pieces = pieces
    scans = torch.cat([first, second], 1)
    expected = _loss_and_gradients(whole, scans, masks)
    found = _loss_and_gradients(cut, scans, masks)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_filters_that_ignore_the_second_shell_give_the_network_of_one_shell() -> None:
    """CKN1 is linear in its patches: entries of zero leave the first shell alone."""
    first, second, masks = _two_shells()
    one, two = _build("ckn1+deepsphere"), _build_for_two("ckn1+deepsphere")
    state = one.state_dict()
    name = "ckn.layers.0.filters"
    state[name] = torch.cat([state[name], torch.zeros_like(state[name])], 1)
    two.load_state_dict(two.state_dict() | state)
    expected = one(first, masks)
    torch.testing.assert_close(two(torch.cat([first, second], 1), masks), expected)
    # The control: in the other order the network sees the other shell.
    assert (two(torch.cat([second, first], 1), masks) - expected).abs().max() > 1e-3


def test_shells_of_one_direction_meet_in_one_volume() -> None:
    """Directions of both shells may be reordered together, but not one shell's alone."""
    first, second, masks = _two_shells()
    network = _build_for_two("ckn2")
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    expected = network.features(torch.cat([first, second], 1), masks)
    together = network.features(torch.cat([first[:, order], second[:, order]], 1), masks)
    torch.testing.assert_close(together, expected)
    alone = network.features(torch.cat([first, second[:, order]], 1), masks)
    assert (alone - expected).abs().max() > 1e-5 * expected.abs().max()


def test_scans_with_another_number_of_shells_are_refused() -> None:
    first, _, masks = _two_shells()
    with pytest.raises(InputError, match=r"\(batch, 12, X, Y, Z\)"):
        _build_for_two("ckn2")(first, masks)
