"""Stages run as often as documented, with the gradients of the whole."""

import pytest
import torch

from bids_gevnet.nn.norm import MomentNorm
from bids_gevnet.nn.staged import Staged


def _staged(runs: list[int]) -> tuple[Staged, torch.nn.ModuleList]:
    """Three linear stages with two normalisations; `runs` counts how often each stage runs."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3).double() for _ in range(3))
    norms = torch.nn.ModuleList(MomentNorm(3).double() for _ in range(2))

    def make(number: int):
        def stage(x: torch.Tensor, affine: torch.Tensor | None, /) -> torch.Tensor:
            runs[number] += 1
            if affine is not None:
                x = torch.tanh(norms[number - 1].normalise(x, affine))
            return layers[number](x)

        return stage

    modules = torch.nn.ModuleList([layers, norms])
    return Staged([make(k) for k in range(3)], list(norms), list(layers.parameters())), modules


@pytest.mark.parametrize(
    ("keep", "forward", "total"), [(True, [1, 1, 1], [2, 2, 2]), (False, [3, 2, 1], [6, 4, 2])]
)
def test_stages_run_as_often_as_documented(
    keep: bool, forward: list[int], total: list[int]
) -> None:
    runs = [0, 0, 0]
    staged, _ = _staged(runs)
    x = torch.randn(4, 3, dtype=torch.float64)
    y = staged.run(x, lambda x: [x], keep=keep)
    assert runs == forward
    y.sum().backward()
    assert runs == total


def test_without_gradients_nothing_runs_twice_after_training() -> None:
    runs = [0, 0, 0]
    staged, modules = _staged(runs)
    modules.eval()
    with torch.no_grad():
        staged.run(torch.randn(6, 3, dtype=torch.float64), lambda x: x.split(2), keep=False)
    assert runs == [3, 3, 3]


@pytest.mark.parametrize("keep", [True, False])
def test_gradients_are_those_of_finite_differences(keep: bool) -> None:
    staged, _ = _staged([0, 0, 0])
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return staged.run(x, lambda x: x.split([2, 3]), keep=keep)

    assert torch.autograd.gradcheck(run, (x,))


def test_one_normalisation_between_two_stages() -> None:
    staged, _ = _staged([0, 0, 0])
    with pytest.raises(ValueError, match="3 stages and 1 norms"):
        Staged(staged.stages, staged.norms[:1], [])
