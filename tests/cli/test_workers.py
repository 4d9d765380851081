"""Workers that die, and programs that have used threads before they start any."""

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from nipype.interfaces.utility import Function
from nipype.pipeline.engine import Node, Workflow

from bids_gevnet.cli.execute import LOCAL, configure, read_failures, run_workflow
from bids_gevnet.settings import ExecutionSettings


def _die(after):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    return after


def _write(path, after):
    from pathlib import Path

    Path(path).write_text("done")
    return after


def _multiply(path):
    from pathlib import Path

    import torch

    torch.set_num_threads(2)
    product = torch.ones(400, 400) @ torch.ones(400, 400)
    (torch.rand(500_000) * 2).sum()
    Path(path).write_text(str(float(product[0, 0])))
    return path


def _step(folder, step, num_threads, until, after=0):
    """Write down one's threads, and wait until another step has begun."""
    import time
    from pathlib import Path

    (Path(folder) / step).write_text(str(num_threads))
    for _ in range(600):
        if until == "" or (Path(folder) / until).exists():
            break
        time.sleep(0.1)
    else:
        raise RuntimeError(f"{until} never began")
    if step == "first_wide":
        time.sleep(1)  # in which the next participant has nothing to begin with
        (Path(folder) / "seen").write_text(
            " ".join(sorted(p.name for p in Path(folder).iterdir()))
        )
    (Path(folder) / f"{step}_ended").touch()
    return after


PROGRAM = """\
import sys
from nipype.interfaces.utility import Function
from nipype.pipeline.engine import Node, Workflow
from bids_gevnet.cli.workers import LocalProcessesPlugin

def wait(path):
    import os, time
    from pathlib import Path
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    node = Node(Function(function=wait, output_names=["out"]), name="waits")
    node.inputs.path = sys.argv[1] + "/worker.pid"
    workflow = Workflow("work", base_dir=sys.argv[1])
    workflow.add_nodes([node])
    workflow.run(plugin=LocalProcessesPlugin({"n_procs": 1}))
"""


def _is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


@pytest.fixture
def run(tmp_path):
    def run(*nodes, chained=False):
        workflow = Workflow("work", base_dir=str(tmp_path))
        workflow.add_nodes(list(nodes))
        if chained:
            for before, after in pairwise(nodes):
                workflow.connect(before, "out", after, "after")
        crash_dir = tmp_path / "crash"
        crash_dir.mkdir()
        configure(workflow, ExecutionSettings(), crash_dir=crash_dir)
        run_workflow(workflow, plugin=LOCAL, crash_dir=crash_dir, arguments={"n_procs": 1})
        return read_failures(crash_dir, {})

    return run


def node(name, function, **inputs):
    made = Node(Function(function=function, output_names=["out"]), name=name)
    for key, value in inputs.items():
        setattr(made.inputs, key, value)
    return made


def test_a_killed_worker_is_a_failure_and_the_others_go_on(run, tmp_path):
    written = tmp_path / "written"
    failures = run(
        node("dies", _die, after=0), node("goes_on", _write, path=str(written), after=0)
    )
    assert [failure.stage for failure in failures] == ["dies"]
    assert "memory" in failures[0].message
    assert written.read_text() == "done"


def test_workers_end_with_the_program(tmp_path):
    """Not even kill -9 leaves someone behind who goes on computing."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, script, tmp_path])
    told = tmp_path / "worker.pid"
    while not told.exists() or not told.read_text():
        assert process.poll() is None
        time.sleep(0.1)
    worker = int(told.read_text())
    assert _is_running(worker)
    process.kill()
    process.wait()
    for _ in range(300):
        if not _is_running(worker):
            break
        time.sleep(0.1)
    assert not _is_running(worker)


def test_what_depends_on_a_killed_worker_does_not_run(run, tmp_path):
    written = tmp_path / "written"
    failures = run(
        node("dies", _die, after=0), node("waits", _write, path=str(written)), chained=True
    )
    assert [failure.stage for failure in failures] == ["dies"]
    assert not written.exists()


def test_threads_of_this_program_do_not_stop_its_workers(run, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (torch.rand(2_000_000) * 2).sum()  # starts the threads that a fork would not copy
        written = tmp_path / "written"
        assert run(node("multiplies", _multiply, path=str(written))) == []
    finally:
        torch.set_num_threads(before)
    assert written.read_text() == "400.0"


def test_whose_turn_it_is_gets_all_cores_and_the_next_one_those_that_are_free(tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    whole = Workflow("work", base_dir=str(tmp_path))
    # A stage of the second participant is running when the wide one of the first begins; and
    # the first is at a narrow one when the wide stage of the second begins.
    people = {
        "first": [
            ("begin", 1, "second_begin"),
            ("wide", 2, "second_begin_ended"),
            ("end", 1, "second_wide"),
        ],
        "second": [("begin", 1, "first_wide"), ("wide", 2, "")],
    }
    for person, stages in people.items():
        flow = Workflow(person)
        nodes = []
        for stage, threads, until in stages:
            made = node(stage, _step, folder=str(steps), step=f"{person}_{stage}", until=until)
            made.n_procs = threads
            made.inputs.num_threads = threads
            nodes.append(made)
        flow.add_nodes(nodes)
        for before, after in pairwise(nodes):
            flow.connect(before, "out", after, "after")
        whole.add_nodes([flow])
    crash_dir = tmp_path / "crash"
    crash_dir.mkdir()
    configure(whole, ExecutionSettings(), crash_dir=crash_dir)
    run_workflow(whole, plugin=LOCAL, crash_dir=crash_dir, arguments={"n_procs": 2})
    assert read_failures(crash_dir, {}) == []
    threads = {path.name: path.read_text() for path in steps.iterdir()}
    assert threads["first_wide"] == "2"
    assert "second_begin_ended" in threads["seen"]
    assert "second_wide" not in threads["seen"]
    assert threads["second_wide"] == "1"


def test_a_stage_of_whose_turn_it_is_never_waits_for_the_others(tmp_path):
    """Two cores: the second participant holds one when the first can begin two stages."""
    steps = tmp_path / "steps"
    steps.mkdir()

    def one(person, stage, until):
        made = node(stage, _step, folder=str(steps), step=f"{person}_{stage}", until=until)
        made.inputs.num_threads = 1
        return made

    first, second = Workflow("first"), Workflow("second")
    begin, wide = one("first", "begin", "second_begin"), one("first", "wide", "")
    narrow = one("first", "narrow", "first_wide")
    first.connect([(begin, narrow, [("out", "after")]), (begin, wide, [("out", "after")])])
    second.add_nodes([one("second", "begin", "first_wide_ended"), one("second", "more", "")])
    whole = Workflow("work", base_dir=str(tmp_path))
    whole.add_nodes([first, second])
    crash_dir = tmp_path / "crash"
    crash_dir.mkdir()
    configure(whole, ExecutionSettings(), crash_dir=crash_dir)
    run_workflow(whole, plugin=LOCAL, crash_dir=crash_dir, arguments={"n_procs": 2})
    assert read_failures(crash_dir, {}) == []
    assert "second_more" not in (steps / "seen").read_text()
    assert (steps / "second_more").exists()
