"""A GPU is used by one node at a time, and by none where only CPUs were asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.cli.execute import choose_plugin
from bids_gevnet.cli.workers import LocalProcessesPlugin
from bids_gevnet.interfaces.correction import CorrectSeries
from bids_gevnet.learn.train import torchrun
from bids_gevnet.learn.train.distributed import join_processes
from bids_gevnet.learn.train.torchrun import Devices
from bids_gevnet.settings import ExecutionSettings, PreprocessingSettings
from bids_gevnet.workflows.tools import choose_tools, may_use_gpu


def use_device(use_gpu: bool, path: str) -> str:
    import json
    import time
    from pathlib import Path

    start = time.time()
    time.sleep(0.6)
    Path(path).write_text(json.dumps([start, time.time(), use_gpu]))
    return path


@pytest.mark.filterwarnings("ignore")
def test_nodes_that_use_a_gpu_take_turns(tmp_path: Path) -> None:
    workflow = pe.Workflow(name="turns", base_dir=str(tmp_path))
    files = [tmp_path / f"{number}.json" for number in range(3)]
    for number, path in enumerate(files):
        function = niu.Function(["use_gpu", "path"], ["out"], function=use_device)
        node = pe.Node(function, name=f"node{number}")
        node.inputs.use_gpu, node.inputs.path = True, str(path)
        workflow.add_nodes([node])
    _, arguments = choose_plugin(ExecutionSettings(nprocs=3))
    workflow.run(plugin=LocalProcessesPlugin(arguments))
    spans = sorted(json.loads(path.read_text()) for path in files)
    for before, after in zip(spans[:-1], spans[1:], strict=True):  # noqa: RUF007
        assert before[1] <= after[0]


def test_the_correction_says_that_it_uses_a_gpu() -> None:
    for use_gpu in (True, False):
        node = pe.Node(CorrectSeries(use_gpu=use_gpu), name="motion")
        assert node.is_gpu_node() == use_gpu


def test_cpu_processes_keep_the_correction_off_a_gpu() -> None:
    assert not may_use_gpu("cpu:2")
    settings = PreprocessingSettings()
    assert choose_tools(settings, gpu=True).gpu
    assert not choose_tools(settings, gpu=may_use_gpu("cpu:2")).gpu


def test_one_cpu_process_is_not_moved_to_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--devices cpu:1` trains in this process, where nobody set a variable."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("BIDS_GEVNET_DEVICE", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_processes(gpu=False) as processes:
        assert processes.device.type == "cpu"
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torchrun, "train_all", lambda _file, **options: asked.update(options))
    torchrun.train(tmp_path / "jobs.json", Devices(processes=1, gpu=False, threads=1))
    assert asked["gpu"] is False
