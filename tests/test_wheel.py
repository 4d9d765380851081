"""The wheel holds the whole app, workflows included, and runs without the source tree."""

import subprocess
import sys
import sysconfig
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


def test_the_wheel_runs_from_a_clean_environment(wheel, tmp_path):
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (site_packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    # The libraries come from this environment, by a plain path: .pth files behind it, such
    # as the one of an editable install, are not followed.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = (
        "import bids_gevnet, bids_gevnet.workflows, bids_gevnet.cli.run;"
        "print(bids_gevnet.__file__, bids_gevnet.workflows.__file__)"
    )
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert all(name.startswith(str(home)) for name in done.stdout.split())
    command = [python, "-m", "bids_gevnet.cli.run", "--version"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("bids_gevnet ")
