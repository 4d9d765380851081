"""Gauge equivariant learning from diffusion MRI, as a BIDS-App."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("bids_gevnet")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
