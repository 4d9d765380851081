"""Versions of everything that decides a result, for model folders and reports."""

import platform
from importlib.metadata import PackageNotFoundError, metadata, version

try:
    __version__ = version("bids_gevnet")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"


def code_url() -> str:
    """Return the address of the source code, as the installed package states it; empty if not."""
    try:
        urls = metadata("bids_gevnet").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = dict(entry.split(", ", 1) for entry in urls if ", " in entry)
    return str(named.get("Source") or named.get("Homepage", ""))


LIBRARIES = (
    "antspyx",
    "dipy",
    "healpy",
    "matplotlib",
    "nibabel",
    "nilearn",
    "nipype",
    "numpy",
    "pandas",
    "pybids",
    "safetensors",
    "scikit-learn",
    "scipy",
    "torch",
)


def list_versions() -> dict[str, str]:
    """List versions by name: bids_gevnet, Python, the system and the libraries.

    Examples
    --------
    >>> list(list_versions())[:3]
    ['bids_gevnet', 'python', 'system']
    """
    return {
        "bids_gevnet": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: _version(name) for name in LIBRARIES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
