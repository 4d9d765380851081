"""Stages whose files are damaged run again; all others are kept."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bids_gevnet.cli.intermediates import discard_damaged_stages, seal_stage


def make_stage(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "dwi.nii").write_bytes(b"voxels")
    (folder / "_inputs.pklz").write_bytes(gzip.compress(b"inputs"))
    (folder / f"result_{folder.name}.pklz").write_bytes(gzip.compress(b"a record" * 50))
    (folder / "_0x12.json").write_text("written after the record")
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def change_later(path: Path) -> None:
    flip(path)
    later_ns = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later_ns, later_ns))


def turn_a_bit(path: Path) -> None:
    """Change one bit as a failing disk does: no time and no size tells of it."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("result_mask.pklz", flip),
        ("_inputs.pklz", flip),
        ("result_mask.pklz", lambda path: path.write_bytes(b"")),
        ("result_mask.pklz", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("dwi.nii", change_later),
        ("dwi.nii", turn_a_bit),
        ("dwi.nii", Path.unlink),
        ("_sha256.json", lambda path: path.write_text("[]")),
        ("_sha256.json", lambda path: path.write_text("{")),
    ],
)
def test_only_the_damaged_stage_is_removed(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    mask, register = (make_stage(tmp_path / "sub_01" / stage) for stage in ("mask", "register"))
    for stage in (mask, register):
        seal_stage(stage)
    discard_damaged_stages(tmp_path)
    assert mask.is_dir()
    damage(mask / name)
    discard_damaged_stages(tmp_path)
    assert not mask.exists()
    assert len(list(register.iterdir())) == 5
