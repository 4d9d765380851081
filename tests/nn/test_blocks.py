"""Blocks: exact inside, every voxel once, and estimates without bias of the whole brain."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.nn.block_features import block_features, features_by_block
from bids_gevnet.nn.blocks import BlockBatch, Box, RegionMeans, draw_box
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.norm import MomentNorm, renormalising
from bids_gevnet.nn.registry import build

SHAPE = (41, 46, 37)
BOXES = 6
PIECES = {
    "whole": Pieces(whole=True),
    "kept": Pieces(30_000, 50, keep_volumes=True, keep_sphere=True),
    "not kept": Pieces(30_000, 50, keep_volumes=False, keep_sphere=False),
}


def ball(shape: tuple[int, ...]) -> np.ndarray:
    axes = np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij")
    inside: np.ndarray = sum(axis**2 for axis in axes) < 0.95
    return inside


def make_network(name: str, strides: tuple[int, ...] = (2, 1, 2, 1)) -> CompoundNetwork:
    torch.manual_seed(0)
    network = build(name, nside=1, classes=2, strides=strides).double()
    assert isinstance(network, CompoundNetwork)
    with torch.no_grad():  # shifts that make padding with zeros visible
        for part in network.modules():
            if isinstance(part, MomentNorm):
                part.bias.uniform_(0.2, 0.5)
                part.running_mean.uniform_(-0.2, 0.2)
    return network


def make_scan(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.from_numpy(ball(SHAPE))
    signal = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(seed)).double()
    return signal * mask, mask


def cut_blocks(
    network: CompoundNetwork, scan: tuple[torch.Tensor, torch.Tensor], *, lost: int = 0
) -> BlockBatch:
    """All blocks of a scan as one batch; with `lost` voxels less of a margin than are needed."""
    signal, mask = scan
    stride, reach = network.stride, network.reach - lost
    coarse = mask[::stride, ::stride, ::stride].numpy()
    cells = np.argwhere(coarse)
    draws = np.random.default_rng(0).random((BOXES, 4))
    parts = []
    for number in range(BOXES):
        box = draw_box(cells, coarse.shape, boxes=BOXES, number=number, draws=draws)
        window = box.window(SHAPE, stride=stride, reach=reach)
        start = np.array([part.start // stride for part in window])
        own = torch.zeros(SHAPE, dtype=torch.bool)
        own[
            tuple(slice(stride * a, stride * b) for a, b in zip(box.low, box.high, strict=True))
        ] = True
        places = np.ravel_multi_index(tuple(cells.T), coarse.shape)
        parts.append(
            (
                signal[(slice(None), *window)].contiguous(),
                (mask & own)[window],
                (tuple(box.low - start), tuple(box.high - start)),
                torch.from_numpy(places[box.holds(cells)]),
                torch.from_numpy(places),
            )
        )
    return BlockBatch(*zip(*parts, strict=True), boxes=BOXES)


# --- cuts ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    shape=st.tuples(*[st.integers(6, 14)] * 3), boxes=st.integers(1, 12), seed=st.integers(0, 99)
)
def test_boxes_cover_the_grid_once_and_share_the_brain(
    shape: tuple[int, ...], boxes: int, seed: int
) -> None:
    brain = ball(shape)
    cells = np.argwhere(brain)
    draws = np.random.default_rng(seed).random((boxes, 4))
    covered, counts = np.zeros(shape, int), []
    for number in range(boxes):
        box = draw_box(cells, shape, boxes=boxes, number=number, draws=draws)
        covered[tuple(slice(a, b) for a, b in zip(box.low, box.high, strict=True))] += 1
        counts.append(int(box.holds(cells).sum()))
    assert (covered == 1).all()
    assert sum(counts) == len(cells)
    # A cut is off by half a plane of voxels at most, at each of log2(boxes) levels.
    plane = brain.any(axis=0).sum()
    assert max(counts) - len(cells) / boxes <= plane * np.ceil(np.log2(boxes)) / 2 + 1


def test_other_draws_cut_elsewhere() -> None:
    cells = np.argwhere(ball((12, 12, 12)))
    found = {
        draw_box(
            cells, (12, 12, 12), boxes=8, number=0, draws=np.random.default_rng(i).random((8, 4))
        )
        for i in range(20)
    }
    assert len(found) > 5


def test_a_window_ends_where_the_grid_does() -> None:
    box = Box((0, 2, 4), (2, 4, 5))
    window = box.window((17, 17, 17), stride=4, reach=5)
    assert window == (slice(0, 10), slice(0, 17), slice(8, 17))


# --- exact values -------------------------------------------------------------------------------


@pytest.mark.parametrize("strides", [(2, 1, 2, 1), (1, 1, 2, 1), (1, 3, 1, 2)])
def test_reach_is_as_far_as_a_voxel_is_felt(strides: tuple[int, ...]) -> None:
    """By autograd: the input voxels on which an output voxel depends."""
    network = make_network("ckn2", strides)
    assert network.ckn is not None
    n = 2 * network.reach + 4 * network.stride
    volume = torch.rand(1, 1, n, n, n, dtype=torch.float64, requires_grad=True)
    network.ckn.eval()
    out = network.ckn(volume)
    middle = out.shape[2] // 2
    (grad,) = torch.autograd.grad(out[0, :, middle, middle, middle].sum(), volume)
    felt = grad[0, 0].nonzero()[:, 0] - network.stride * middle
    assert (int(felt.min()), int(felt.max())) == (-network.reach, network.reach)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("ckn2", "whole"),
        ("ckn2", "not kept"),
        ("ckn2+gevnet", "whole"),
        ("ckn2+gevnet", "kept"),
        ("ckn1+deepsphere", "not kept"),
        pytest.param("gevnet", "kept", marks=pytest.mark.slow),
    ],
)
def test_features_of_a_block_are_those_of_the_whole_scan(name: str, pieces: str) -> None:
    network = make_network(name).eval()
    network.block_pieces = PIECES[pieces]
    scan = make_scan(1)
    with torch.no_grad():
        (whole,) = network.features_by_voxel(scan[0][None], scan[1][None])
        batch = cut_blocks(network, scan)
        found = features_by_block(network, batch)
    order = torch.cat(batch.cells).argsort()
    torch.testing.assert_close(torch.cat(found)[order], whole, rtol=1e-9, atol=1e-12)


def test_a_smaller_margin_gives_other_features() -> None:
    """Negative control: the reach is not larger than it must be."""
    network = make_network("ckn2").eval()
    scan = make_scan(1)
    with torch.no_grad():
        (whole,) = network.features_by_voxel(scan[0][None], scan[1][None])
        batch = cut_blocks(network, scan, lost=network.stride)
        found = torch.cat(features_by_block(network, batch))[torch.cat(batch.cells).argsort()]
    assert (found - whole).abs().max() > 1e-6


@pytest.mark.parametrize("pieces", PIECES)
def test_all_blocks_together_have_the_statistics_and_gradients_of_the_whole(pieces: str) -> None:
    """In training, without renormalisation: a batch of all blocks is the whole scan."""
    scan = make_scan(2)
    whole, cut = make_network("ckn2+gevnet"), make_network("ckn2+gevnet")
    whole.pieces = Pieces(whole=True)
    cut.block_pieces = PIECES[pieces]
    (expected,) = whole.features_by_voxel(scan[0][None], scan[1][None])
    batch = cut_blocks(cut, scan)
    found = torch.cat(features_by_block(cut, batch))[torch.cat(batch.cells).argsort()]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], value, msg=name)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).double()
    grads = [
        torch.autograd.grad((f * weights).sum(), [*net.ckn.parameters(), *net.sphere.parameters()])
        for f, net in ((expected, whole), (found, cut))
    ]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-8, atol=1e-10)


# --- estimates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["wrong means", "right means"])
def test_the_mean_over_all_blocks_is_that_of_the_brain(known: bool) -> None:
    network = make_network("ckn2").eval()
    scan = make_scan(3)
    with torch.no_grad():
        (voxels,) = network.features_by_voxel(scan[0][None], scan[1][None])
        batch = cut_blocks(network, scan)
        n_cells = int(np.prod([-(-n // 4) for n in SHAPE]))
        network.regions = RegionMeans(n_cells, voxels.shape[1]).double()
        if known:
            network.regions.update_([batch.brains[0]], [voxels])
        else:
            network.regions.means.normal_()
        found = block_features(network, batch)
    torch.testing.assert_close(found.mean(0), voxels.mean(0))
    if known:  # then every block alone says it, too
        torch.testing.assert_close(found, voxels.mean(0).expand_as(found))


def test_region_means_follow_the_batches() -> None:
    regions = RegionMeans(4, 1, momentum=0.25)
    regions.update_(
        [torch.tensor([0, 1]), torch.tensor([1])], [torch.ones(2, 1), 3 * torch.ones(1, 1)]
    )
    assert regions.means.flatten().tolist() == [1, 2, 0, 0]
    regions.update_([torch.tensor([1, 3])], [torch.tensor([[6.0], [5.0]])])
    assert regions.means.flatten().tolist() == [1, 3, 0, 5]
    assert regions.seen.tolist() == [True, True, False, True]


# --- normalisations -----------------------------------------------------------------------------


def test_renormalised_values_are_those_of_the_running_statistics() -> None:
    torch.manual_seed(0)
    norm = MomentNorm(3).double()
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
    x = torch.randn(50, 3, dtype=torch.float64) * 2 + 1
    with renormalising(norm):
        y = norm.normalise(x, norm.batch_affine(norm.moments(x)))
    torch.testing.assert_close(y, norm.normalise(x, norm.running_affine()))
    assert not norm.renormalise


def test_renormalised_gradients_are_those_of_batch_normalisation_scaled() -> None:
    """d y / d x by the running spread instead of the batch's, as in Ioffe 2017."""
    torch.manual_seed(0)
    norm, plain = MomentNorm(2).double(), MomentNorm(2).double()
    norm.momentum = 0.0
    with torch.no_grad():
        norm.running_var.fill_(4.0)
    x = torch.randn(20, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(20, 2, dtype=torch.float64)
    with renormalising(norm):
        y = norm.normalise(x, norm.batch_affine(norm.moments(x)))
    (found,) = torch.autograd.grad((y * weights).sum(), x)
    z = plain.normalise(x, plain.batch_affine(plain.moments(x)))
    (expected,) = torch.autograd.grad((z * weights).sum(), x)
    ratio = ((x.var(0, correction=0) + norm.eps) / (4.0 + norm.eps)).sqrt()
    torch.testing.assert_close(found, expected * ratio)


def test_running_statistics_of_parts_become_those_of_the_whole() -> None:
    """Regions with other means: their spread is part of the variance of the whole."""
    generator = torch.Generator().manual_seed(0)
    regions = [torch.randn(400, 1, generator=generator) + 3 * k for k in range(4)]
    norm = MomentNorm(1, momentum=0.02)
    with renormalising(norm):
        for _ in range(400):
            for k in torch.randperm(4, generator=generator).tolist():
                norm.batch_affine(norm.moments(regions[k]))
    whole = torch.cat(regions)
    assert norm.running_mean.item() == pytest.approx(whole.mean().item(), abs=0.15)
    assert norm.running_var.item() == pytest.approx(whole.var().item(), rel=0.03)
    alone = np.mean([region.var().item() for region in regions])
    assert alone < 0.2 * whole.var().item()
