import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import pytest

from bids_gevnet.cli.execute import (
    PLUGINS,
    choose_plugin,
    read_failures,
    read_plugin,
    run_workflow,
)
from bids_gevnet.cli.locks import locked
from bids_gevnet.cli.progress import WorkflowProgress
from bids_gevnet.errors import InputError
from bids_gevnet.settings import ExecutionSettings

CRASH = """\
Node: participant.sub_01.sub_01.mask
Working directory: /work

Traceback (most recent call last):
nipype.pipeline.engine.nodes.NodeExecutionError: Exception raised while executing Node mask.

Traceback:
\tTraceback (most recent call last):
\t  File "mask.py", line 1, in brain_mask
\t    raise ParticipantError(
\tbids_gevnet.errors.ParticipantError: Expected a brain; found none. What to do: look at it.
"""


def test_local_processes_by_default():
    plugin, arguments = choose_plugin(ExecutionSettings(nprocs=3, mem_mb=2048))
    assert plugin == "MultiProc"
    assert arguments["n_procs"] == 3
    assert arguments["memory_gb"] == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.toml", "plugin = 'SLURM'\n[plugin_args]\nsbatch_args = '--mem=4G'\n"),
        ("p.yml", "plugin: SLURM\nplugin_args: {sbatch_args: --mem=4G}\n"),
    ],
)
def test_plugin_of_a_file(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    expected = ("SLURM", {"sbatch_args": "--mem=4G"})
    assert choose_plugin(ExecutionSettings(use_plugin=path)) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [("p.toml", "a = 1"), ("p.toml", "["), ("p.yml", "[1"), ("p.yml", "3"), ("p.yaml", None)],
)
def test_unusable_plugin_file_is_named(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        read_plugin(path)


def test_the_plugins_are_those_of_nipype():
    from nipype.pipeline import plugins

    names = {name.removesuffix("Plugin") for name in dir(plugins) if name.endswith("Plugin")}
    assert names == PLUGINS


def test_failures_name_participant_stage_and_our_sentence(tmp_path):
    (tmp_path / "crash-1.txt").write_text(CRASH)
    (failure,) = read_failures(tmp_path, {"sub_01": "sub-01"})
    assert (failure.owner, failure.stage) == ("sub-01", "mask")
    assert failure.message == "Expected a brain; found none. What to do: look at it."


def test_errors_of_others_keep_their_kind(tmp_path):
    text = CRASH.replace("bids_gevnet.errors.ParticipantError: Expected", "MemoryError: cannot")
    (tmp_path / "crash-1.txt").write_text(text)
    (failure,) = read_failures(tmp_path, {"sub_01": "sub-01"})
    assert failure.message.startswith("MemoryError: cannot")


def _hold(folder, ready):
    with locked(folder, ["sub-01"]):
        ready.set()
        time.sleep(60)


def test_lock_refuses_a_second_run_and_dies_with_the_first(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(InputError, match="no other run on sub-01"), locked(tmp_path, ["sub-01"]):
        pass
    with locked(tmp_path, ["sub-02"]):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with locked(tmp_path, ["sub-01"]):
        pass


def test_progress_names_participant_and_stage(caplog):
    caplog.set_level("INFO")
    progress = WorkflowProgress(
        {"sub_01": "sub-01"}, {"mask": "brain mask"}, nodes=["mask", "mask"]
    )
    node = SimpleNamespace(name="mask", fullname="participant.sub_01.scan.mask")
    never_run = SimpleNamespace(name="mask", fullname="participant.sub_01.other.mask")
    progress(node, "start")
    progress(node, "end")
    progress(never_run, "end")
    progress(node, "start")
    progress(node, "exception")
    progress.close()
    first, second = caplog.messages
    assert first.startswith("sub-01")
    assert "brain mask" in first
    assert first.endswith(" s")
    assert second.endswith("FAILED")


def test_the_rest_is_estimated_from_what_each_stage_took(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("bids_gevnet.cli.progress.time.monotonic", lambda: now[0])
    names = [f"sub_0{k}.scan.{stage}" for k in (1, 2, 3) for stage in ("conform", "register")]
    progress = WorkflowProgress({}, {}, nodes=names)
    estimates = []
    for name in names[:3]:
        node = SimpleNamespace(name=name.rsplit(".", 1)[-1], fullname=f"participant.{name}")
        progress(node, "start")
        now[0] += {"conform": 10.0, "register": 50.0}[node.name]
        progress(node, "end")
        estimates.append(progress.seconds_left())
    progress.close()
    # Nobody knows how long registration takes before it has run once.
    assert estimates == [None, 120.0, 110.0]


def test_a_failure_that_no_node_left_is_not_swallowed(tmp_path):
    def fail(**_):
        raise RuntimeError("the scheduler is gone")

    workflow = SimpleNamespace(run=fail)
    with pytest.raises(RuntimeError, match="scheduler is gone"):
        run_workflow(workflow, plugin="SLURM", crash_dir=tmp_path)
    (tmp_path / "crash-1.txt").write_text(CRASH)
    run_workflow(workflow, plugin="SLURM", crash_dir=tmp_path)
