"""Crash files as Nipype writes them, and as a full disk leaves them."""

from pathlib import Path

import pytest

from bids_gevnet.crash_files import has_crashes, read_crashes

HEAD = "Node: participant.sub_01.sub_01.mask\nWorking directory: /work\n\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "crash-20260101-mask.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Traceback:\n\tbids_gevnet.errors.ParticipantError: Expected a; found b.",
         "Expected a; found b."),
        ("Traceback:\n\tMemoryError: cannot allocate", "MemoryError: cannot allocate"),
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
