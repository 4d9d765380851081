"""Crash files as Nipype writes them, and as a full disk leaves them."""

from pathlib import Path

import pytest

from bids_gevnet.crash_files import has_crashes, read_crashes

HEAD = "Node: participant.sub_01.sub_01.mask\nWorking directory: /work\n\n"
TRACEBACK = "Traceback (most recent call last):\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "crash-20260101-mask.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Traceback:\n\tbids_gevnet.errors.ParticipantError: Expected a; found b.",
         "Expected a; found b."),
        ("Traceback:\n\tValueError: too few values", "ValueError: too few values"),
        (f"{TRACEBACK}  File\n    raise\npkg.OddError: first\nsecond: 2\n\nWhat to do: look.\n",
         "OddError: first second: 2 What to do: look."),
        (f"{TRACEBACK}  File\nA: b\n\n\t{TRACEBACK}\t  File\n\n\tKeyError: a\n\tb\x1b[31m",
         "KeyError: a b?[31m"),
        ("ValueError: first\nDuring handling\n  pkg.mod.KeyError: 'last'", "KeyError: 'last'"),
        ("subprocess.TimeoutExpired: too long", "TimeoutExpired: too long"),
        ("", "no message in the crash file"),
        ("Traceback (most recent call last):\n  File", "no message in the crash file"),
    ],
)  # fmt: skip
def test_the_last_exception_is_the_message(tmp_path, body, message):
    path = write(tmp_path, HEAD + body)
    (crash,) = read_crashes(tmp_path)
    assert crash.message == message
    assert crash.node == ("participant", "sub_01", "sub_01", "mask")
    assert crash.stage == "mask"
    assert (crash.path, crash.time_s) == (path, path.stat().st_mtime)


SHORT_OF_MEMORY = (
    "MemoryError",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.3 GiB for an array",
    "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "OSError: [Errno 12] Cannot allocate memory",
    "SystemError: error return without exception set",
    "SystemError: <built-in function loads> returned NULL without setting an exception",
)


@pytest.mark.parametrize("line", SHORT_OF_MEMORY)
def test_out_of_memory_gets_a_remedy(tmp_path, line):
    write(tmp_path, f"{HEAD}{TRACEBACK}  File\n    f()\n{line}\n")
    (crash,) = read_crashes(tmp_path)
    assert crash.message.startswith(line.split(":")[0].rsplit(".", 1)[-1])
    assert "What to do: this stage needs more memory" in crash.message
    assert "--nprocs" in crash.message


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device: '/work/x.nii'", "free some space"),
        ("PermissionError: [Errno 13] Permission denied: '/work/x.nii'", "ask the owner"),
        ("ValueError: a value that no memory of a machine explains", ""),
    ],
)
def test_errors_of_the_machine_get_a_remedy_and_others_none(tmp_path, line, remedy):
    write(tmp_path, f"{HEAD}{TRACEBACK}  File\n{line}\n")
    (crash,) = read_crashes(tmp_path)
    assert crash.message.startswith(line)
    assert ("What to do" in crash.message) == bool(remedy)
    assert remedy in crash.message


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"Node:\n", HEAD.encode()[:6]])
def test_a_damaged_file_is_still_a_crash(tmp_path, content):
    (tmp_path / "crash-1.txt").write_bytes(content)
    (crash,) = read_crashes(tmp_path)
    assert crash.stage == "?"
    assert has_crashes(tmp_path)


def test_other_files_are_no_crashes(tmp_path):
    (tmp_path / "settings.toml").write_text(HEAD)
    assert not has_crashes(tmp_path)
    assert list(read_crashes(tmp_path / "nowhere")) == []
