"""What continuous integration makes of the tests and the checks, whatever they say."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"

CHECK = """#!/bin/bash
. "$(dirname "$0")/common.sh"
{body}
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose tests pass at once and whose checks pass, until a test says otherwise."""
    (tmp_path / "clone/.ci").mkdir(parents=True)
    (tmp_path / "clone/containers").mkdir()
    shutil.copy2(RUN, tmp_path / "clone/.ci/run")
    shutil.copy2(RUN.parents[1] / "containers/common.sh", tmp_path / "clone/containers/common.sh")
    executable(tmp_path / "bin/make", "#!/bin/sh\necho '=== 7 passed in 1.00s ==='\n")
    for name in ("container", "slurm"):
        write_check(tmp_path / "clone", name, "pass one\nsay 'all 1 checks passed'")
    return tmp_path / "clone"


def write_check(clone: Path, name: str, body: str) -> None:
    executable(clone / f"containers/check_{name}.sh", CHECK.format(body=body))


def run(clone: Path, **extra: str) -> tuple[int, list[str]]:
    path = f"{clone.parent / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(clone / ".ci/run")],
        env={"PATH": path, "CI": "true"} | extra,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_everything_passes_and_the_last_lines_say_what_ran(clone: Path) -> None:
    code, lines = run(clone)
    assert code == 0
    assert lines[-3] == "=== 7 passed in 1.00s ==="
    assert lines[-2].startswith("check-container: ")
    assert lines[-2].endswith("all 1 checks passed")
    assert lines[-1].startswith("check-slurm: ")


def test_a_check_that_cannot_run_is_named_and_fails_nothing(clone: Path) -> None:
    write_check(clone, "slurm", "skip 'no cluster here'")
    code, lines = run(clone)
    assert code == 0
    assert lines[-1].startswith("check-slurm: ")
    assert lines[-1].endswith("skipped: no cluster here")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("fail 'other weights'", "FAILED: other weights"),
        ("false", "FAILED: line 3: false"),
        ("exit 3", "no verdict"),
        ("say begun; kill -KILL $$", "not finished, the last thing it said: [   0s] begun"),
    ],
)
def test_a_check_that_fails_fails_the_run_after_the_other_has_run(
    clone: Path, body: str, word: str
) -> None:
    write_check(clone, "container", body)
    code, lines = run(clone)
    assert code == 1
    assert lines[-2].startswith("check-container: ")
    assert lines[-2].endswith(word)
    assert lines[-1].endswith("all 1 checks passed")


def test_tests_that_fail_end_the_run_with_their_own_summary(clone: Path) -> None:
    executable(clone.parent / "bin/make", "#!/bin/sh\necho '=== 1 failed ==='\nexit 2\n")
    code, lines = run(clone)
    assert code == 2
    assert lines == ["=== 1 failed ==="]
