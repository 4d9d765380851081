"""The library: public names, and nothing imported before it is used."""

import ast
import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import bids_gevnet

PACKAGES = ["dwi", "harmonisation", "learn", "nn", "phantom", "sphere"]


def package(name: str):
    return import_module(f"bids_gevnet.{name}")


def names_for_type_checkers(module) -> set[str]:
    """Names that the ``if TYPE_CHECKING`` block of a package imports."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    return {alias.asname for n in block.body for alias in n.names}


def test_dir_shows_the_public_names_and_nothing_else():
    assert set(dir(bids_gevnet)) == {*PACKAGES, "testing", "errors", "__version__"}
    assert {"GEVConv", "GEVNet", "RegularNonlinearity", "build"} <= set(dir(bids_gevnet.nn))
    for name in PACKAGES:
        assert dir(package(name)) == sorted(package(name).__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_see_what_runs(name):
    assert names_for_type_checkers(package(name)) == set(dir(package(name)))


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_exists_and_has_an_example(name):
    for public in dir(package(name)):
        thing = getattr(package(name), public)
        assert ">>> " in (inspect.getdoc(thing) or ""), f"bids_gevnet.{name}.{public}"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_public_name_is_hidden_by_a_module(name):
    modules = {module.name for module in pkgutil.iter_modules(package(name).__path__)}
    assert not modules & set(dir(package(name)))


def test_importing_the_library_imports_nothing_heavy():
    code = (
        "import sys, bids_gevnet\n"
        f"[getattr(bids_gevnet, name) for name in {PACKAGES}]\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'nipype', 'nibabel')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'bids_gevnet.nn' has no attribute 'GEVcov'"):
        bids_gevnet.nn.GEVcov  # noqa: B018
