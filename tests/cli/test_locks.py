"""A work directory that several runs share is removed by the last of them only."""

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from bids_gevnet.cli.locks import claim, locked, using
from bids_gevnet.errors import InputError
from bids_gevnet.layout import WorkLayout


@pytest.fixture
def work(tmp_path: Path) -> WorkLayout:
    return WorkLayout(tmp_path / "work")


def test_only_the_last_run_removes_it(work: WorkLayout) -> None:
    with using(work) as first_is_last:
        with using(work) as second_is_last:
            assert not second_is_last()
        assert first_is_last()


def test_a_run_that_starts_meanwhile_waits_and_has_a_folder_of_its_own(work: WorkLayout) -> None:
    began, lasts = threading.Event(), []

    def start_meanwhile() -> None:
        began.set()
        with using(work) as is_last:
            lasts.append(work.in_use.exists() and is_last())

    other = threading.Thread(target=start_meanwhile)
    with using(work) as is_last:
        assert is_last()
        other.start()
        began.wait()
        other.join(0.2)
        assert lasts == []
        work.remove()
        assert not work.root.exists()
    other.join()
    assert lasts == [True]
    assert work.root.exists()


def test_a_folder_in_which_somebody_keeps_a_cache_is_refused(work: WorkLayout) -> None:
    """`--clean-workdir` would remove it."""
    (work.root / "cache").mkdir(parents=True)
    (work.root / "cache" / "mine.txt").write_text("of the user")
    with pytest.raises(InputError, match="cache, which it has not made"):
        claim(work)
    assert [path.name for path in work.root.iterdir()] == ["cache"]


def test_what_else_is_in_a_work_directory_stays(work: WorkLayout) -> None:
    work.root.mkdir()
    (work.root / "notes").mkdir()
    for _ in range(2):  # a second run finds what the first one left
        claim(work)
        for folder in work.folders:
            folder.mkdir(exist_ok=True)
    work.remove()
    assert [path.name for path in work.root.iterdir()] == ["notes"]


def test_where_files_cannot_be_locked_runs_go_on_and_nothing_is_removed(
    work: WorkLayout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a Lustre that is mounted without locks, which this machine has not."""

    def refuse(_file: int, _how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(work.root / "logs" / "locks", ["sub-01"]), using(work) as is_last:
        assert not is_last()
    assert "this file system knows no locks" in caplog.text
