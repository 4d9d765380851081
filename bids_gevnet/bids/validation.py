"""Ask the BIDS validator, offline, what it thinks of a dataset."""

import json
import shutil
import subprocess  # nosec B404
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.errors import InputError, printable

_TIMEOUT_S = 3600
_NAMED = 5  # findings of one kind before "in n more places"


@dataclass(frozen=True, slots=True)
class ValidatorIssue:
    """One finding of the BIDS validator."""

    code: str
    severity: str
    location: str
    message: str

    @property
    def participant(self) -> str | None:
        """Label of the one participant the finding is about, None for the whole dataset."""
        top = self.location.lstrip("/").split("/", 1)[0]
        return top.removeprefix("sub-") if top.startswith("sub-") else None

    @property
    def concerns_everybody(self) -> bool:
        """Whether nobody's scan can be trusted, rather than that of single participants.

        Somebody with a scan and no row in participants.tsv can be processed like the others; the
        group level names them.
        """
        return self.participant is None and self.code != "PARTICIPANT_ID_MISMATCH"

    def __str__(self) -> str:
        return printable(
            f"{self.code} in {self.location or 'the dataset'}"
            + (f": {self.message}" if self.message else "")
        )


def name_issues(issues: Iterable[ValidatorIssue]) -> Iterator[str]:
    """Give a line for every finding, but for kinds with many of them the first few and a count."""
    by_code: dict[str, list[ValidatorIssue]] = {}
    for issue in issues:
        by_code.setdefault(issue.code, []).append(issue)
    for code, alike in by_code.items():
        yield from map(str, alike[:_NAMED])
        if len(alike) > _NAMED:
            more = len(alike) - _NAMED
            yield printable(f"{code} in {more} more place{'s' * (more > 1)}")


def validate_dataset(dataset_dir: Path) -> tuple[ValidatorIssue, ...]:
    """Run bids-validator-deno on a dataset and return its errors and warnings."""
    # Without --max-rows it reads 1000 rows of a table, and misses the participants of the rest.
    command = [_find_validator(), str(dataset_dir), "--format", "json", "--no-color"]
    command += ["--max-rows=-1"]
    try:
        done = subprocess.run(  # nosec B603  # a list of arguments, no shell
            command,
            capture_output=True,
            text=True,
            errors="replace",  # file names need not be UTF-8
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            expected=f"a report of the BIDS validator within {_TIMEOUT_S} s",
            found="none",
            remedy="look for a file that never ends (a pipe, a link to a device), or give "
            "--skip-bids-validation",
        ) from None
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise InputError(
            expected="a report of the BIDS validator",
            found=f"{(done.stderr or done.stdout).strip()[-300:]!r}",
            remedy="check that the dataset can be read, or give --skip-bids-validation",
        ) from None
    return tuple(
        ValidatorIssue(
            code=issue.get("code", "UNKNOWN"),
            severity=issue.get("severity", "error"),
            location=issue.get("location", ""),
            message=" ".join(str(issue.get("issueMessage") or issue.get("subCode") or "").split()),
        )
        for issue in report["issues"]["issues"]
    )


def _find_validator() -> str:
    """Prefer the validator installed with this Python over one that happens to be on PATH."""
    beside = Path(sys.executable).parent / "bids-validator-deno"
    program = str(beside) if beside.is_file() else shutil.which("bids-validator-deno")
    if program is None:
        raise InputError(
            expected="the program bids-validator-deno",
            found="none beside this Python or on PATH",
            remedy="pip install bids-validator-deno, or give --skip-bids-validation",
        )
    return program
