"""What the tab key is offered, asked as a shell asks: through argcomplete's protocol."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def offered(line: str, folder: Path) -> list[str]:
    """Complete a command line by its console script's function."""
    module, function = PROJECT["scripts"][line.split(maxsplit=1)[0]].split(":")
    answer = folder / "answer"
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)
    return [word.strip() for word in answer.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bids_gevnet --output-r", ["--output-resolution"]),
        ("bids_gevnet data out par", ["participant"]),
        ("bids_gevnet data out group --harmonisation ri", ["rish"]),
        ("bids_gevnet data out group --no-such", []),
        ("bids_gevnet_phantom out --per-g", ["--per-group"]),
        ("bids_gevnet-docker --print", ["--print-command"]),
        ("bids_gevnet-docker data out participant --corr", ["--correction"]),
    ],
)
def test_the_tab_key_is_offered_what_the_parser_takes(tmp_path, line, expected):
    assert offered(line, tmp_path) == expected
