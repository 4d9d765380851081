"""What the image is made of: facts that hold before anything is built."""

import csv
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LOCKS = sorted(CONTAINERS.glob("requirements*.lock"))


def instructions(text: str) -> list[str]:
    """Instructions of a Dockerfile, each on one line, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def stages() -> dict[str, list[str]]:
    """Name of each stage and its instructions, the FROM first."""
    found: dict[str, list[str]] = {}
    for line in instructions(DOCKERFILE):
        if line.startswith("FROM "):
            found[line.split(" AS ")[1]] = [line]
        elif found:
            found[list(found)[-1]].append(line)
    return found


def read_lock(path: Path) -> dict[str, list[str]]:
    """Requirement of each package and its hashes."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("    --hash=sha256:"):
            found[list(found)[-1]].append(line.split(":")[1].rstrip(" \\"))
        else:
            found[line.rstrip(" \\")] = []
    return found


def pins(*paths: Path) -> dict[str, str]:
    requirements = [Requirement(text) for path in paths for text in read_lock(path)]
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in requirements}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {canonicalize_name(name): number for name, number in pairs}


def test_open_is_what_docker_build_makes_and_fsl_is_the_other_target() -> None:
    names = list(stages())
    assert names[-1] == "open"
    assert "fsl" in names
    assert stages()["open"][0] == stages()["fsl"][0].replace(" AS fsl", " AS open")


def test_base_is_nvidias_runtime_and_can_be_exchanged() -> None:
    first = instructions(DOCKERFILE)[0]
    assert re.fullmatch(r"ARG BASE_IMAGE=nvidia/cuda:[\d.]+-runtime-(ubuntu|debian)[\d.]+", first)


def test_nobody_is_root_at_run_time() -> None:
    users = [line.split()[1] for line in stages()["runtime"] if line.startswith("USER ")]
    assert len(users) == 1
    assert users[0].split(":")[0] not in {"0", "root"}
    assert not any(line.startswith("USER ") for line in stages()["fsl"] + stages()["open"])


def test_entrypoint_is_the_app() -> None:
    assert 'ENTRYPOINT ["bids_gevnet"]' in stages()["runtime"]


def test_every_package_is_checked_by_hash_or_comes_from_this_build() -> None:
    commands = [part for line in instructions(DOCKERFILE) for part in line.split("&&")]
    installs = [part for part in commands if re.search(r"pip\b.* (install|wheel) ", part)]
    assert len(installs) == 4
    for command in installs:
        assert "--require-hashes" in command or "--no-index" in command, command
        assert "--no-cache-dir" in command, command


def test_fsl_is_pinned_by_version_and_build() -> None:
    listed = yaml.safe_load((CONTAINERS / "fsl-environment.yml").read_text(encoding="utf-8"))
    packages = listed["dependencies"]
    names = {package.split("=")[0] for package in packages}
    assert {"fsl-bet2", "fsl-eddy", "fsl-topup"} < names
    assert all(re.fullmatch(r"[\w.-]+=\d+\.\d+=\*_\d+", package) for package in packages)
    # The build fails where the CUDA eddy that it installs has another name than it looks for.
    (cuda,) = (name.removeprefix("fsl-eddy-") for name in names if "cuda" in name)
    assert f"eddy_{cuda.replace('-', '')}" in DOCKERFILE


def test_licence_of_fsl_has_to_be_accepted() -> None:
    lines = stages()["fsl-environment"]
    refusal = next(i for i, line in enumerate(lines) if "FSL_LICENCE}" in line)
    install = next(i for i, line in enumerate(lines) if "micromamba create" in line)
    assert refusal < install
    assert "ARG FSL_LICENCE=not-accepted" in lines


def test_what_is_copied_exists_and_is_let_through() -> None:
    allowed = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    text = DOCKERFILE.replace("${TORCH}", "cuda")
    wanted = [
        word
        for line in instructions(text)
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    wanted += re.findall(r"type=bind,source=([^,]+)", text)
    assert len(wanted) >= 8
    for name in wanted:
        assert (ROOT / name).exists(), name
        assert any(Path(name).match(pattern) for pattern in allowed), name


def test_no_secret_and_nothing_of_one_machine_is_named() -> None:
    for line in instructions(DOCKERFILE):
        assert not re.search(r"(?i)password|token|secret|api_key", line)
        assert not re.search(r"https?://", line), "packages come from where pip is told to look"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_a_version_and_hashes(path: Path) -> None:
    packages = read_lock(path)
    assert packages
    for text, hashes in packages.items():
        assert str(Requirement(text).specifier).startswith("=="), text
        assert hashes, text
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in hashes), text


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_locks_agree_with_the_versions_that_are_tested(path: Path) -> None:
    tested = constraints()
    for name, number in pins(path).items():
        if name in tested:
            assert number.split("+")[0] == tested[name], f"{name}: run make lock"


@pytest.mark.parametrize("torch", ["cuda", "cpu"])
def test_locks_hold_every_dependency(torch: str) -> None:
    names = ("requirements.lock", f"requirements-torch-{torch}.lock", "requirements-sdist.lock")
    locked = pins(*(CONTAINERS / name for name in names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        number = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(number.split("+")[0]), text


def test_cpu_lock_brings_no_cuda() -> None:
    assert pins(CONTAINERS / "requirements-torch-cpu.lock").keys() == {"torch"}
    shared = pins(CONTAINERS / "requirements.lock")
    assert not [name for name in shared if name.startswith(("nvidia-", "cuda-"))]
    assert "nvidia-nccl-cu13" in pins(CONTAINERS / "requirements-torch-cuda.lock")


def test_packages_without_a_wheel_are_the_only_ones_built() -> None:
    assert pins(CONTAINERS / "requirements-sdist.lock").keys() == {"docopt"}
    assert "docopt" not in pins(CONTAINERS / "requirements.lock")


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licences", CONTAINERS / "licences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["licences"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_licence_table_and_sbom_of_this_environment(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(CONTAINERS / "licences.py"), str(tmp_path)], check=True)
    with (tmp_path / "licences.tsv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream, dialect="excel-tab"))
    ours = {row["name"]: row for row in rows if row["kind"] == "pypi"}
    assert ours["numpy"]["version"] == version("numpy")
    assert ours["healpy"]["licence"].startswith("GPL-2.0")
    assert ours["bids-gevnet"]["licence"] == "BSD-3-Clause"
    sbom = json.loads((tmp_path / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert sbom["bomFormat"] == "CycloneDX"
    assert len(sbom["components"]) == len(rows)
    references = [component["bom-ref"] for component in sbom["components"]]
    assert len(set(references)) == len(references)
    assert f"pkg:pypi/numpy@{version('numpy')}" in references


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License")], "BSD License"),
        ([("Classifier", "License :: OSI Approved"), ("License", "ISC\nlong text")], "ISC"),
        ([("License", "UNKNOWN")], "see package"),
        ([], "see package"),
    ],
)
def test_licence_of_a_package(licences: Any, fields: Any, expected: str) -> None:
    message = Message()
    for name, value in fields:
        message[name] = value

    class Distribution:
        metadata = message

    assert licences.python_licence(Distribution()) == expected


def test_licence_of_a_debian_package(licences: Any, tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing/copyright").write_text(
        "Files: *\nLicense: GPL-2+\n\nLicense: Expat\n text\n"
    )
    assert licences.debian_licence("thing", tmp_path) == "Expat AND GPL-2+"
    assert licences.debian_licence("other", tmp_path) == "see package"


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("NAME=x\nID=ubuntu\nID_LIKE=debian\n", "pkg:deb/ubuntu/thing@2%3A1.0%2Bb1"),
        ('VERSION_ID="12"\nID="debian"\n', "pkg:deb/debian/thing@2%3A1.0%2Bb1"),
    ],
)
def test_address_of_a_package_names_its_distribution(
    licences: Any, tmp_path: Path, release: str, expected: str
) -> None:
    (tmp_path / "os-release").write_text(release)
    kind = licences.debian_kind(tmp_path / "os-release")
    assert licences.Package(kind, "thing", "2:1.0+b1", "Expat", "").purl == expected
