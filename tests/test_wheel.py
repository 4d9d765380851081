"""The wheel holds the whole app, workflows included, and runs without the source tree."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, SOURCE],
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    folders = [SOURCE / "bids_gevnet", SOURCE / "workflows"]
    files = [
        path.relative_to(SOURCE)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    wanted = {
        str(path if path.parts[0] == "bids_gevnet" else Path("bids_gevnet") / path)
        for path in files
    }
    assert "bids_gevnet/workflows/scan.py" in wanted
    assert "bids_gevnet/report/templates/style.css" in wanted
    assert wanted <= packed
    assert not [name for name in packed if name.startswith(("workflows/", "tests/"))]


def test_a_compiler_makes_a_wheel_for_this_platform_and_none_makes_a_pure_one(wheel, tmp_path):
    library = "bids_gevnet/compiled/kernels.so"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    assert library in zipfile.ZipFile(wheel).namelist()
    without = dict(os.environ, CXX="/no/such/compiler")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(SOURCE / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(SOURCE / "bids_gevnet", source / "bids_gevnet", ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", source]
    done = subprocess.run(command, env=without, check=True, capture_output=True, text=True)
    assert (
        "PyTorch takes their place: /no/such/compiler does not start" in done.stdout + done.stderr
    )
    (pure,) = (source / "dist").glob("*.whl")
    assert pure.name.endswith("-py3-none-any.whl")
    assert library not in zipfile.ZipFile(pure).namelist()
    refused = subprocess.run(
        command, env=without | {"BIDS_GEVNET_COMPILE": "always"}, check=False, capture_output=True
    )
    assert refused.returncode != 0


def test_the_package_index_would_take_the_wheel(wheel):
    command = [sys.executable, "-m", "twine", "check", "--strict", wheel]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_wheel_runs_from_a_clean_environment(wheel, tmp_path):
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (site_packages,) = home.glob("lib/python*/site-packages")
    # The libraries come from this environment, by a plain path: .pth files behind it, such
    # as the one of an editable install, are not followed.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    code = (
        "import bids_gevnet, bids_gevnet.workflows, bids_gevnet.cli.run;"
        "print(bids_gevnet.__file__, bids_gevnet.workflows.__file__)"
    )
    assert all(name.startswith(str(home)) for name in run(python, "-c", code).split())
    scripts = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["scripts"]
    assert run(home / "bin" / "bids_gevnet", "--version").startswith("bids_gevnet ")
    for script in scripts:
        assert "usage" in run(home / "bin" / script, "--help")
