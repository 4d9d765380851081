"""Files around the code agree with pyproject.toml, the one source of the version."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from bids_gevnet.cli.docker import DEFAULT_IMAGE

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    version = PROJECT["version"]
    assert yaml.safe_load(text_of("CITATION.cff"))["version"] == version
    assert re.search(r"^ARG VERSION=(.*)$", text_of("Dockerfile"), re.MULTILINE)[1] == version
    newest = re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest[1] == version


def test_the_image_that_is_built_is_the_one_that_the_wrapper_runs():
    shown = subprocess.run(
        ["make", "-C", ROOT, "--dry-run", "image"], capture_output=True, text=True, check=True
    ).stdout
    assert DEFAULT_IMAGE in shown.split()


def test_hooks_use_the_ruff_that_is_tested():
    (tested,) = re.findall(r"^ruff==(.*)$", text_of("constraints.txt"), re.MULTILINE)
    hooks = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    pinned = {name for hook in hooks for name in hook.get("additional_dependencies", [])}
    assert pinned == {f"ruff=={tested}"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_make_has(path):
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    called = {
        word
        for command in commands
        for line in re.findall(r"\bmake ([a-z -]+)", command)
        for word in line.split()
    }
    assert called <= targets


def test_every_python_that_is_promised_is_tested():
    promised = {
        line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d", line)
    }
    jobs = yaml.safe_load(text_of(".github/workflows/ci.yml"))["jobs"]
    assert set(jobs["tests"]["strategy"]["matrix"]["python"]) == promised
