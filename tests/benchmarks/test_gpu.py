"""What is said about GPUs without one: the plan on paper, and the check that needs one."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from bids_gevnet.nn.compound import Pieces

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def load() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module


@pytest.fixture
def plan(load: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plan for scans that are small enough for a test."""
    module = load("gpu_plan")
    monkeypatch.setattr(module, "SIZE", (9, 10, 9))
    monkeypatch.setattr(module, "NSIDE", 1)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to check")
def test_without_a_gpu_the_check_is_skipped_aloud(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check_gpu.py"])
    assert load("check_gpu").main() == 77
    assert capsys.readouterr().out == "skipped: no CUDA device\n"


def test_the_check_agrees_with_itself_on_the_cpu(load: Any) -> None:
    check = load("check_gpu")
    found = [*check.compare_network("ckn2", CPU, 1), *check.compare_batches(CPU)]
    assert [line.good for line in found] == [True, True, None, True]


def test_the_check_finds_a_device_that_computes_something_else(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: one network twice, the second time on another input."""
    check = load("check_gpu")
    right, calls = check.step, []

    def wrong(network: Any, scans: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return right(network, scans if len(calls) == 1 else scans.square(), masks)

    monkeypatch.setattr(check, "step", wrong)
    scores, gradients, _ = check.compare_network("ckn2", CPU, 1)
    assert (scores.good, gradients.good) == (False, False)


def test_what_a_check_raises_is_a_line_of_the_table(load: Any) -> None:
    check = load("check_gpu")
    [line] = check.attempt(check.compare_network, "no such network", CPU, 1)
    assert line.good is False
    assert "InputError" in line.value


def test_the_plan_counts_fewer_operators_than_before(plan: Any) -> None:
    before = plan.count_step("ckn2+gevnet", 1, Pieces(volume_voxels=1620, sphere_voxels=2))
    now = plan.count_step("ckn2+gevnet", 1)
    assert now.whole
    assert not before.whole
    assert now.counts.operators < before.counts.operators / 2
    assert now.counts.waits == 0
    assert 0 < now.arithmetic < now.seconds
    row = plan.table({"ckn2+gevnet": now})[-1]
    assert f"| {now.counts.operators:,} |" in row


def test_making_a_scan_copies_half_precision_only(plan: Any) -> None:
    voxels = round(plan.INSIDE * 9 * 10 * 9)
    plan_counts, nbytes = plan.count_batch()
    assert nbytes == 2 * voxels * (2 * 96 + 4 + 4)
    assert 0 < plan_counts.operators < 50
    assert plan_counts.waits == 0


def test_hours_follow_from_seconds(plan: Any) -> None:
    step = plan.count_step("ckn2", 1)
    assert plan.hours({"ckn2": step}) == pytest.approx(180_000 * step.seconds / 3600)
    assert plan.hours({"gevnet": step}, without="gevnet") == 0
