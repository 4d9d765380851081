"""Nothing mixes the host's tensors with a GPU's: tried on a GPU without content."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bids_gevnet.fake_gpu import Counts, FakeGpu, MixedDevicesError, fake_gpu
from bids_gevnet.nn import ckn as ckn_module
from bids_gevnet.nn.attribution import saliency
from bids_gevnet.nn.blocks import BlockBatch, RegionMeans
from bids_gevnet.nn.ckn import CKN, CKNLayer, keep_on_sphere
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.kmeans import spherical_kmeans
from bids_gevnet.nn.registry import build, scan_networks

SHAPE = (6, 7, 5)
NSIDE = 1
PIECES = {
    "small": Pieces(volume_voxels=4 * 210, sphere_voxels=40),
    "kept": Pieces(volume_voxels=4 * 210, sphere_voxels=40, keep_sphere=True),
    "whole": Pieces(whole=True),
}


def scans(gpu: FakeGpu, n: int = 2, shells: int = 1) -> tuple[Tensor, Tensor]:
    """Scans on the device, masks on the host."""
    volumes = torch.empty(n, shells * 6 * NSIDE**2, *SHAPE, device=gpu.device)
    return volumes, torch.empty(n, *SHAPE, dtype=torch.bool)


def train_step(gpu: FakeGpu, network: nn.Module, *inputs: Tensor) -> None:
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-5)
    keep_on_sphere(optimiser, network)
    labels = torch.empty(len(inputs[0]), dtype=torch.long, device=gpu.device)
    F.cross_entropy(network(*inputs), labels).backward()
    optimiser.step()


@pytest.mark.parametrize(
    ("name", "pieces"),
    [(name, "whole") for name in scan_networks()[:6]]
    + [("ckn2+gevnet", "small"), ("ckn1+deepsphere", "kept")],
)
def test_a_step_of_training_stays_on_the_device(name: str, pieces: str) -> None:
    network = build(name, nside=NSIDE)
    network.pieces = PIECES[pieces]
    with fake_gpu() as gpu:
        gpu.take(network)
        train_step(gpu, network, *scans(gpu))
        parameters = list(network.parameters())
        assert {p.grad.device for p in parameters if p.grad is not None} == {gpu.device}
        assert all(p.grad is not None for p in parameters)
    assert gpu.counts.waits == 0  # masks on the host: nobody waits for their size
    assert gpu.counts.operators > 100


def test_several_shells_stay_on_the_device() -> None:
    network = build("ckn2+gevnet", nside=NSIDE, shells=2)
    with fake_gpu() as gpu:
        gpu.take(network)
        train_step(gpu, network, *scans(gpu, shells=2))
    assert gpu.counts.waits == 0


@pytest.mark.parametrize("pieces", ["whole", "small"])
def test_a_step_on_blocks_stays_on_the_device(pieces: str) -> None:
    network = build("ckn2+gevnet", nside=NSIDE)
    assert isinstance(network, CompoundNetwork)
    network.block_pieces = PIECES[pieces]
    with fake_gpu(inside=1.0) as gpu:
        network.regions = RegionMeans(100, network.n_features)
        gpu.take(network)
        gpu.take(network.regions)
        n_inside = 2  # coarse voxels of a window of two
        batch = BlockBatch(
            signals=tuple(torch.empty(6 * NSIDE**2, 8, 8, 8) for _ in range(2)),
            masks=tuple(torch.empty(8, 8, 8, dtype=torch.bool) for _ in range(2)),
            insides=(((0, 0, 0), (n_inside, n_inside, n_inside)),) * 2,
            cells=tuple(torch.empty(n_inside**3, dtype=torch.long) for _ in range(2)),
            brains=tuple(torch.empty(60, dtype=torch.long) for _ in range(2)),
            boxes=8,
        ).to(gpu.device)
        scores = network(batch)
        labels = torch.empty(2, dtype=torch.long, device=gpu.device)
        F.cross_entropy(scores, labels).backward()
        assert scores.device == gpu.device
    assert gpu.counts.waits == 0


@pytest.mark.parametrize("name", ["ckn2", "ckn1+deepsphere", "ckn2+gevnet"])
def test_scores_and_saliency_stay_on_the_device(name: str) -> None:
    network = build(name, nside=NSIDE)
    with fake_gpu() as gpu:
        gpu.take(network)
        volumes, masks = scans(gpu, 1)
        network.eval()
        with torch.no_grad():
            scores = network(volumes, masks)
        assert (scores.device, gpu.counts.waits) == (gpu.device, 0)
        explained = saliency(
            network, volumes[0], masks[0].to(gpu.device), method="integrated", n_steps=2
        )
        everything = (explained.attribution, explained.voxels, explained.on_sphere())
        assert {tensor.device for tensor in everything} == {gpu.device}


def test_every_tensor_of_a_network_moves_with_it() -> None:
    for name in scan_networks()[:6]:
        network = build(name, nside=NSIDE).to("meta")
        left = [k for k, v in [*network.named_parameters(), *network.named_buffers()]
                if v.device.type != "meta"]  # fmt: skip
        assert not left, name


def test_a_backward_pass_on_the_host_does_no_harm() -> None:
    """PyTorch starts threads of devices once, at the first backward pass of a process."""
    layer = nn.Linear(3, 1)
    layer(torch.rand(2, 3)).sum().backward()
    with fake_gpu() as gpu:
        gpu.take(layer)
        layer(torch.empty(2, 3, device=gpu.device)).sum().backward()
    assert gpu.counts.operators > 0


def test_kmeans_and_patches_stay_on_the_device() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = CKNLayer(1, 4, build("ckn2", nside=1).ckn.layers[0].kappa)
    with fake_gpu() as gpu:
        gpu.take(layer)
        volume = torch.empty(1, *SHAPE, device=gpu.device)
        patches = layer.sample_patches(volume, volume[0] != 0, 50, generator)
        centres = spherical_kmeans(patches, 4, generator=generator, n_iterations=3)
        assert centres.device == gpu.device


# --- negative controls --------------------------------------------------------------------------


class Shifts(nn.Module):
    """Adds a tensor that does not move with the module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.arange(3)


class Picks(Shifts):
    """Indexes with a tensor of the host, which CUDA would accept and wait for."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, torch.tensor([0, 2])]


class ShiftsBack(Shifts):
    """Mixes devices in the backward pass only."""

    def forward(self, x: Tensor) -> Tensor:
        return _MixedBackward.apply(self.linear(x))


class _MixedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004
        return grads[0] * torch.ones(3)


@pytest.mark.parametrize("kind", [Shifts, Picks, ShiftsBack])
def test_a_module_that_mixes_devices_is_found(kind: type[nn.Module]) -> None:
    module = kind()
    with fake_gpu() as gpu:
        gpu.take(module)
        x = torch.empty(5, 3, device=gpu.device)
        with pytest.raises(MixedDevicesError, match="cpu"):
            module(x).sum().backward()


def test_mixing_inside_our_own_operators_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are opened: `register_fake` would hide what they do."""
    network = build("gevnet", nside=NSIDE)
    with fake_gpu() as gpu:
        gpu.take(network)
        operator = next(m for m in network.modules() if hasattr(m, "sources"))
        operator._buffers["sources"] = torch.empty(operator.sources.shape, dtype=torch.long)
        with pytest.raises(MixedDevicesError, match="index_select"):
            network(*scans(gpu))


def test_a_pooling_that_stays_on_the_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network = CKN()

    def on_host(layer: CKNLayer, n: int, _: Tensor) -> Tensor:
        return ckn_module.pooling_matrix(n, layer.stride).float()

    monkeypatch.setattr(CKNLayer, "_pooling", on_host)
    with fake_gpu() as gpu:
        gpu.take(network)
        with pytest.raises(MixedDevicesError):
            network(torch.empty(2, 1, *SHAPE, device=gpu.device))


# --- what is copied, launched and waited for ----------------------------------------------------


def test_pooling_matrices_are_copied_once() -> None:
    network = CKN().eval()
    with fake_gpu() as gpu:
        gpu.take(network)
        volumes = torch.empty(2, 1, *SHAPE, device=gpu.device)
        network(volumes)
        copied = gpu.counts.to_device
        network(volumes)
        assert copied > 0
        assert gpu.counts.to_device == copied


def test_pooling_made_without_autograd_serves_training() -> None:
    network = CKN()
    with torch.inference_mode():
        network.eval()(torch.rand(1, 1, *SHAPE))
    network.train()(torch.rand(1, 1, *SHAPE)).sum().backward()
    assert all(layer.filters.grad is not None for layer in network.layers)


def test_larger_pieces_launch_fewer_operators() -> None:
    counts = []
    for pieces in (PIECES["small"], Pieces(volume_voxels=10**9, sphere_voxels=10**9),
                   PIECES["whole"]):  # fmt: skip
        network = build("ckn2+gevnet", nside=NSIDE)
        network.pieces = pieces
        with fake_gpu() as gpu:
            gpu.take(network)
            train_step(gpu, network, *scans(gpu))
        counts.append(gpu.counts.operators)
    assert counts[0] > counts[1] > counts[2]
    assert counts[0] > 2 * counts[2]


def test_memory_is_counted_until_it_is_given_back() -> None:
    with fake_gpu() as gpu:
        a = torch.empty(1000, device=gpu.device)
        b = a * 2
        part = b[:10]
        del b
        assert gpu.counts.live == 8000
        del part
        assert (gpu.counts.live, gpu.counts.peak) == (4000, 8000)


def test_arithmetic_and_bytes_of_a_product_are_counted() -> None:
    with fake_gpu() as gpu:
        a, b = (torch.empty(n, m, device=gpu.device) for n, m in ((7, 5), (5, 3)))
        _ = a @ b
        [launch] = gpu.counts.launches
        assert launch.flops == 2 * 7 * 5 * 3
        assert launch.moved == 4 * (7 * 5 + 5 * 3 + 7 * 3)
        torch.mm(a, b, out=a.new_empty(7, 3))
        assert gpu.counts.launches[1] == launch
        least = Counts(launches=[launch]).seconds(bandwidth=1e3, flops=lambda _: 1e3, launch=0.0)
        assert least == pytest.approx(max(launch.moved, launch.flops) / 1e3)


def test_numbers_that_the_host_waits_for_are_counted() -> None:
    with fake_gpu() as gpu:
        x = torch.empty(5, device=gpu.device)
        float(x.sum())
        x.cpu()
        _ = x[x > 0]
        assert gpu.counts.waits == 3
        assert gpu.counts.to_host == 20


# --- compilers ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["ckn2", "ckn2+gevnet", "ckn1+deepsphere"])
def test_a_compiler_sees_the_whole_network(name: str) -> None:
    """One graph for all that follows the indices of brain voxels, and the same numbers."""
    torch.manual_seed(0)
    network = build(name, nside=1)
    assert isinstance(network, CompoundNetwork)
    network.pieces = Pieces(whole=True)
    network.eval()
    volumes, masks = torch.rand(2, 6, *SHAPE), torch.ones(2, *SHAPE, dtype=torch.bool)
    index = network.brain_indices(volumes, masks)
    compiled = torch.compile(network.features_at, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(volumes, index), network.features(volumes, masks))
