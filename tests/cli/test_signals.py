"""A signal at any moment: one sentence, its exit code, no traceback, nobody left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from integration.faults import make_place

from bids_gevnet.cli.signals import stopping_on_signals
from bids_gevnet.errors import StoppedError
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

STARTING = """\
import os, signal, sys, threading, time
from multiprocessing import forkserver
from nipype.interfaces.utility import Function
from nipype.pipeline.engine import Node, Workflow
from bids_gevnet.cli.signals import stopping_on_signals
from bids_gevnet.cli.workers import LocalProcessesPlugin
from bids_gevnet.errors import StoppedError

connect = forkserver.connect_to_new_process

def connect_and_signal(fds):
    connected = connect(fds)  # the worker is there and waits to be told what it is
    os.kill(os.getpid(), int(sys.argv[2]))
    return connected

def wait():
    import time
    time.sleep(10)

if __name__ == "__main__":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # it may get the signal
    forkserver.connect_to_new_process = connect_and_signal
    workflow = Workflow("work", base_dir=sys.argv[1])
    workflow.add_nodes([Node(Function(function=wait, output_names=["out"]), name="waits")])
    try:
        with stopping_on_signals():
            workflow.run(plugin=LocalProcessesPlugin({"n_procs": 1}))
    except StoppedError as stop:
        sys.exit(stop.exit_code)
"""


STAGE = """\
import os, signal
from multiprocessing import util
import numpy as np
from bids_gevnet.dwi.motion import estimate_motion
from bids_gevnet.dwi.shells import find_shells

spawn = util.spawnv_passfds

def spawn_and_signal(*arguments):
    process = spawn(*arguments)
    if b"multiprocessing.spawn" in b"".join(map(os.fsencode, arguments[1])):
        os.kill(os.getpid(), signal.SIGTERM)  # the process waits to be told what it is
    return process

if __name__ == "__main__":
    util.spawnv_passfds = spawn_and_signal
    series = np.random.default_rng(0).random((8, 8, 8, 3))
    estimate_motion(series, np.diag([8, 8, 8, 1.0]), find_shells([0, 0, 0]), n_procs=2)
"""


class SignalsWhenItGoes:
    """An object in whose `__del__` a signal arrives."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def _meet_a_signal() -> None:
    with stopping_on_signals():
        SignalsWhenItGoes()
        time.sleep(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_worker_is_being_started(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "program.py"
    script.write_text(STARTING)
    done = subprocess.run(
        [sys.executable, script, tmp_path, str(int(number))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_while_a_stage_starts_processes_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "stage.py"
    script.write_text(STAGE)
    quiet = os.environ | {"PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker"}
    done = subprocess.run(
        [sys.executable, script], env=quiet, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stderr == ""


def test_a_signal_where_python_lets_no_exception_out(capfd: pytest.CaptureFixture[str]) -> None:
    printed_before = sys.unraisablehook
    with pytest.raises(StoppedError):
        _meet_a_signal()
    assert sys.unraisablehook is printed_before
    assert "Traceback" not in capfd.readouterr().err


def _swallow_a_signal() -> None:
    with stopping_on_signals():
        with suppress(BaseException):  # as libraries do while they are imported
            signal.raise_signal(signal.SIGTERM)
        time.sleep(60)


class SignalsWhenItIsNamed:
    """A descriptor in whose making a signal arrives, which Python 3.11 turns into RuntimeError."""

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(signal.SIGTERM)


def _meet_a_signal_in_a_class() -> None:
    with stopping_on_signals():
        type("Named", (), {"field": SignalsWhenItIsNamed()})


def test_a_signal_of_which_python_makes_another_error() -> None:
    with pytest.raises(StoppedError):
        _meet_a_signal_in_a_class()


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    with pytest.raises(KeyError), stopping_on_signals():
        raise KeyError


def test_a_signal_that_a_library_swallows_comes_again() -> None:
    started = time.monotonic()
    with pytest.raises(StoppedError):
        _swallow_a_signal()
    assert time.monotonic() - started < 30


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals") / "cohort"
    write_cohort(folder, tiny_settings(groups=("AD",), per_group=2, sites=1))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("correction", ["none", "ants"])
def test_signals_at_random_moments(
    cohort: Path, tmp_path: Path, correction: str, number: signal.Signals
) -> None:
    """Ctrl-C reaches all processes of a terminal, SIGTERM of a batch system the first alone."""
    moments = random.Random(int(number))
    for attempt in range(12):
        out = tmp_path / f"out-{attempt}"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bids_gevnet.cli.start", cohort, out),
                *("participant", "--output-resolution", "12", "--correction", correction),
                *("--skip-bids-validation", "--nprocs", "2"),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        time.sleep(moments.uniform(0.3, 12))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        assert process.returncode in (0, 128 + number), said
        assert "Traceback" not in said
        assert "leaked" not in said
        if process.returncode:
            assert said.count("stopped by a signal") == 1
        _wait_for_the_end_of_all(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_signals_at_random_moments_of_a_training(
    tmp_path: Path, devices: str, number: signal.Signals
) -> None:
    """A training in this process and one in processes of its own, of one model after the other."""
    place = make_place(tmp_path)
    moments = random.Random(f"{devices} {number}")
    for _ in range(5):
        process = subprocess.Popen(
            [*place.command("group", "--epochs", "9999", "--resume"), "--devices", devices],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        time.sleep(moments.uniform(0.3, 25))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 128 + number, said
        assert "Traceback" not in said
        assert "leaked" not in said
        assert said.count("stopped by a signal") == 1, said
        _wait_for_the_end_of_all(process.pid)


def _wait_for_the_end_of_all(session: int) -> None:
    for _ in range(100):
        if not _members(session):
            return
        time.sleep(0.1)
    pytest.fail(f"still running: {_members(session)}")


def _members(session: int) -> list[int]:
    """List the processes of a session, but for those that have ended and were not asked."""
    members = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = status.read_text().rsplit(")", 1)
        except OSError:  # it has just ended
            continue
        state, _, _, its_session = fields.split()[:4]
        if int(its_session) == session and state != "Z":
            members.append(int(name.split()[0]))
    return members
