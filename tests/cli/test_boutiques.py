"""The Boutiques descriptor is the parser's: what it builds, the parser understands."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bids_gevnet.cli.boutiques import describe_app
from bids_gevnet.cli.parser import build_parser

DESCRIPTOR = Path(__file__).parents[2] / "containers" / "boutiques.json"
BOSH = Path(sys.executable).with_name("bosh")


def bosh(*arguments: str | Path) -> str:
    done = subprocess.run([BOSH, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def test_the_file_is_what_the_parser_says():
    kept = json.loads(DESCRIPTOR.read_text(encoding="utf-8"))
    assert kept == describe_app(), "run: make boutiques"


def test_boutiques_accepts_it():
    assert "OK" in bosh("validate", DESCRIPTOR)


def test_it_names_every_option_once():
    flags = [entry.get("command-line-flag") for entry in describe_app()["inputs"]]
    assert len(flags) == len(set(flags)) + flags.count(None) - 1
    for action in build_parser()._actions:
        if action.dest not in ("help", "version") and action.option_strings:
            assert set(action.option_strings) & set(flags), action.option_strings


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"participant_label": ["01", "02"]}, {"participant_label": ["01", "02"]}),
        ({"strides": [1, 1, 2, 1]}, {"strides": [1, 1, 2, 1]}),
        ({"dry_run": True, "nside": 8}, {"action": "dry-run", "nside": 8}),
        ({"no_leave_site_out": True}, {"leave_site_out": False}),
    ],
)
def test_a_command_line_it_builds_is_understood(tmp_path, values, expected):
    (tmp_path / "data").mkdir()
    invocation = tmp_path / "invocation.json"
    places = {"bids_dir": str(tmp_path / "data"), "output_dir": "out", "analysis_level": "group"}
    invocation.write_text(json.dumps(places | values), encoding="utf-8")
    line = bosh("exec", "simulate", DESCRIPTOR, "-i", invocation).strip().splitlines()[-1]
    command = shlex.split(line)
    assert command[0] == "bids_gevnet"
    parsed = vars(build_parser().parse_args(command[1:]))
    assert parsed.items() >= expected.items()
    assert (str(parsed["bids_dir"]), parsed["analysis_level"]) == (places["bids_dir"], "group")
