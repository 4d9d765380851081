"""Run FSL's programs, and ask them what they can do."""

import functools
import os
import subprocess  # nosec B404
from collections.abc import Sequence
from pathlib import Path

from bids_gevnet.bids.writing import write_text
from bids_gevnet.dwi.fsl import ProgramOptions, fsl_environment, parse_help, wants_subcommand
from bids_gevnet.errors import ParticipantError

_TAIL = 2000
"""Characters of a failed program's output that go into the message."""

_HELP_S = 60
"""Seconds that a program may take to print its help text."""


def run_program(arguments: Sequence[str], folder: Path) -> None:
    """Run an external program in a folder, keep its output in a log, and raise if it fails."""
    name = Path(arguments[0]).name
    done = subprocess.run(  # nosec B603  # a list of arguments, no shell
        arguments,
        cwd=folder,
        env=fsl_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    write_text(folder / f"{name}.log", " ".join(arguments) + "\n" + done.stdout)
    if done.returncode:
        tail = " ".join(done.stdout[-_TAIL:].split()) or "nothing printed"
        raise ParticipantError(
            expected=f"{name} to end well",
            found=f"exit code {done.returncode}: {tail}",
            remedy=f"read {folder / f'{name}.log'}; --correction model works without FSL",
        )


def ask_options(program: Path) -> ProgramOptions:
    """Ask a program for its help text, and read from it what the program can do.

    The answer is kept for as long as the file does not change.
    """
    return _ask_options(program, program.stat().st_mtime_ns)


@functools.cache
def _ask_options(program: Path, _modified_ns: int) -> ProgramOptions:
    text = _help_text(program)
    if wants_subcommand(text):
        return parse_help(_help_text(program, "diffusion"), "diffusion")
    return parse_help(text)


def _help_text(program: Path, *subcommand: str) -> str:
    """Return what `--help` prints: FSL's programs print it to either stream, with any code."""
    try:
        done = subprocess.run(  # nosec B603  # a list of arguments, no shell
            [str(program), *subcommand, "--help"],
            env=fsl_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_HELP_S,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout
