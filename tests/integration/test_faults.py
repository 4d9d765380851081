"""Faults of the machine, through the command line: exit code, sentence, what is left on disk."""

import os
import random
import signal
import stat
import time
from pathlib import Path

import pytest
from integration.daily import DAILY
from integration.faults import FAULTS, Fault, left_on_disk, make_place, put_a_head_in

CASES = [
    pytest.param(fault, id=f"{fault.level}: {name}", marks=[pytest.mark.slow] * fault.slow)
    for faults in (FAULTS, DAILY)
    for name, fault in faults.items()
]


@pytest.mark.parametrize("fault", CASES)
def test_what_goes_wrong_on_the_way_gets_a_sentence(tmp_path: Path, fault: Fault) -> None:
    if fault.needs_root and os.geteuid() != 0:
        pytest.skip("only the superuser can make files of others and mount disks")
    place = make_place(tmp_path)
    ended = fault.run(place)
    assert ended.code == fault.code, ended.said
    assert "Traceback" not in ended.said
    for text in fault.sentence:
        assert text in ended.said
    assert left_on_disk(place, fault.level) == fault.left


@pytest.mark.slow
@pytest.mark.parametrize("level", ["participant", "group"])
def test_nothing_is_more_readable_than_the_umask_says(tmp_path: Path, level: str) -> None:
    """Work directory, caches, locks, logs and output, of the program and of its workers."""
    place = make_place(tmp_path)
    put_a_head_in(place)
    before = set(tmp_path.rglob("*"))
    run = place.participant if level == "participant" else place.group
    ended = run(before=("sh", "-c", 'umask 077; exec "$@"', "sh"))
    assert ended.code == 0, ended.said
    made = set(tmp_path.rglob("*")) - before
    assert len(made) > 100
    for folder in (place.work, place.out if level == "participant" else place.derivatives):
        assert any(path.is_relative_to(folder) for path in made)
    open_to_others = [p for p in made if stat.S_IMODE(p.lstat().st_mode) & 0o077]
    assert [path for path in open_to_others if not path.is_symlink()] == []


def weights(derivatives: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(derivatives)): path.read_bytes()
        for path in sorted(derivatives.rglob("model.safetensors"))
    }


@pytest.mark.slow
def test_killed_at_ten_moments_the_weights_are_the_same(tmp_path: Path) -> None:
    """Kill -9 at random moments of a training that resumes, then let it finish."""
    longer = ("--epochs", "20", "--samples-per-class", "8", "--resume")
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, killed = make_place(tmp_path / "whole"), make_place(tmp_path / "killed")
    started = time.monotonic()
    assert whole.group(*longer).code == 0
    duration_s = time.monotonic() - started
    moments = random.Random(0)
    for _ in range(10):
        limit = ("timeout", "--signal=KILL", f"{moments.uniform(0.1, 0.9) * duration_s:.2f}")
        ended = killed.group(*longer, before=limit)
        assert ended.code in (0, 128 + signal.SIGKILL, -signal.SIGKILL), ended.said
    ended = killed.group(*longer)
    assert ended.code == 0, ended.said
    assert weights(killed.derivatives) == weights(whole.derivatives)
    assert len(weights(whole.derivatives)) == 3
    assert not list(killed.derivatives.rglob("*.part"))
