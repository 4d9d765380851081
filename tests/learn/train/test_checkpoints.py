"""A checkpoint brings everything back, or nothing: damage anywhere is noticed."""

import logging
from pathlib import Path

import pytest
import torch

from bids_gevnet.learn.train.checkpoints import Position, load_checkpoint, save_checkpoint


def trained(seed: int, steps: int) -> tuple[torch.nn.Module, torch.optim.Adam]:
    torch.manual_seed(seed)
    network = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(network.parameters())
    for _ in range(steps):
        network(torch.ones(1, 3)).sum().backward()
        optimiser.step()
    return network, optimiser


def test_network_optimiser_and_position_come_back(tmp_path: Path) -> None:
    network, optimiser = trained(0, steps=3)
    position = Position(epoch=1, step=2, loss_sum=0.5, curve=[{"epoch": 1, "loss": 0.25}])
    save_checkpoint(tmp_path / "c", network, optimiser, position, "job")
    other, other_optimiser = trained(1, steps=0)
    assert load_checkpoint(tmp_path / "c", other, other_optimiser, "job") == position
    for name, value in network.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        for moment, value in optimiser.state[mine].items():
            assert torch.equal(value, other_optimiser.state[theirs][moment])


def test_a_byte_changed_anywhere_starts_again_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "c"
    save_checkpoint(path, *trained(0, steps=3), Position(epoch=1), "job")
    content = path.read_bytes()
    other, optimiser = trained(1, steps=0)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        assert load_checkpoint(path, other, optimiser, "job") is None, place
    path.write_bytes(content[:-1])
    assert load_checkpoint(path, other, optimiser, "job") is None
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())
    assert "is damaged" in caplog.text
    assert "starts from the beginning" in caplog.text
