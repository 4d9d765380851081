"""MomentNorm is torch's BatchNorm, in any number of pieces and processes."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.nn.norm import MomentNorm, add_moments, channel_moments


def _randomise(norm: MomentNorm) -> MomentNorm:
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
    return norm


def _in_pieces(norm: MomentNorm, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    pieces = x.split(sizes)
    affine = norm.batch_affine(add_moments([norm.moments(p) for p in pieces]))
    return torch.cat([norm.normalise(p, affine) for p in pieces])


@pytest.mark.parametrize("channel_dim", [1, 2])
def test_equals_torch_batch_norm_with_gradients_and_running_statistics(channel_dim: int) -> None:
    torch.manual_seed(0)
    norm = _randomise(MomentNorm(3, channel_dim=channel_dim).double())
    reference = torch.nn.BatchNorm1d(3).double()
    reference.load_state_dict(norm.state_dict())
    x = torch.randn(5, 3, 7, dtype=torch.float64).transpose(1, channel_dim).requires_grad_()

    def expected(x: torch.Tensor) -> torch.Tensor:
        return reference(x.transpose(1, channel_dim)).transpose(1, channel_dim)

    for _ in range(2):
        torch.testing.assert_close(norm(x), expected(x))
    probe = torch.randn(x.shape, dtype=x.dtype)
    grads = torch.autograd.grad((norm(x) * probe).sum(), [x, *norm.parameters()])
    wanted = torch.autograd.grad((expected(x) * probe).sum(), [x, *reference.parameters()])
    torch.testing.assert_close(grads, wanted)
    for key, value in reference.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[key], value)
    norm.eval()
    reference.eval()
    torch.testing.assert_close(norm(x), expected(x))


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 9), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_pieces_do_not_matter(cuts: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    sizes = [*cuts, 4]  # empty pieces included
    x = torch.randn(sum(sizes), 3, 2, dtype=torch.float64, requires_grad=True)
    whole, cut = _randomise(MomentNorm(3).double()), MomentNorm(3).double()
    cut.load_state_dict(whole.state_dict())
    probe = torch.randn(x.shape, dtype=x.dtype)
    y, z = whole(x), _in_pieces(cut, x, sizes)
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(
        torch.autograd.grad((y.square() * probe).sum(), [x, *whole.parameters()]),
        torch.autograd.grad((z.square() * probe).sum(), [x, *cut.parameters()]),
    )
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[key], value)


def test_a_large_offset_does_not_cancel() -> None:
    torch.manual_seed(0)
    x = 1000 + torch.randn(4096, 2)
    variance = x.double().var(0, correction=0)
    count, first, second = add_moments([channel_moments(p, 1) for p in x.split(100)])
    torch.testing.assert_close(second / count - (first / count) ** 2, variance, rtol=1e-3, atol=0)
    # Negative control: sums of squares in float32 lose the variance altogether.
    naive = x.square().mean(0) - x.mean(0) ** 2
    assert ((naive.double() - variance).abs() > 0.01 * variance).any()


def test_gradient_flows_through_the_statistics() -> None:
    torch.manual_seed(0)
    norm = _randomise(MomentNorm(2).double())
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: _in_pieces(norm, x, [2, 3, 1]), (x,))


def _joined_batch() -> torch.Tensor:
    return torch.randn(10, 3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def _network() -> torch.nn.Module:
    torch.manual_seed(9)
    return torch.nn.Sequential(
        torch.nn.Conv1d(3, 4, 1),
        MomentNorm(4),
        torch.nn.ReLU(),
        torch.nn.Conv1d(4, 2, 1),
        MomentNorm(2),
    ).double()


def _loss(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return network(x).sin().sum() / 10


def _one_of_two(rank: int, folder: str) -> None:
    """Train one step on an unequal share of the batch: 3 samples here, 7 there."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    network = _network()
    x = _joined_batch().split([3, 7])[rank].requires_grad_()
    loss = _loss(network, x)
    loss.backward()
    for parameter in network.parameters():  # gradient of the summed loss
        dist.all_reduce(parameter.grad)
    torch.save(
        {
            "loss": loss.detach(),
            "input": x.grad,
            "grads": [p.grad for p in network.parameters()],
            "state": network.state_dict(),
        },
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()


def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path) -> None:
    mp.spawn(_one_of_two, args=(str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    network = _network()
    x = _joined_batch().requires_grad_()
    loss = _loss(network, x)
    loss.backward()
    torch.testing.assert_close(parts[0]["loss"] + parts[1]["loss"], loss.detach())
    torch.testing.assert_close(torch.cat([p["input"] for p in parts]), x.grad)
    for part in parts:
        torch.testing.assert_close(part["grads"], [p.grad for p in network.parameters()])
        for key, value in network.state_dict().items():
            torch.testing.assert_close(part["state"][key], value)
