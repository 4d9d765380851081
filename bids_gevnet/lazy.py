"""Public names of a package, imported when they are first used (PEP 562).

A package that exports its classes by importing them would import torch for whoever wants a
name or a help text. In a package's ``__init__``::

    if TYPE_CHECKING:  # what mypy and editors see
        from bids_gevnet.nn.gevnet import GEVNet as GEVNet
    else:
        __getattr__, __dir__, __all__ = export(__name__, {"gevnet": ["GEVNet"]})

A name is never that of a module of the package: importing the module would hide it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def export(
    package: str, modules: Mapping[str, Sequence[str]], *, submodules: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make what a package needs to export names lazily.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    modules : mapping
        From module, relative to the package, to the names that it defines.
    submodules : sequence of str
        Modules that are public themselves.

    Returns
    -------
    getattr, dir, all
        For ``__getattr__``, ``__dir__`` and ``__all__``.
    """
    origin = {name: module for module, names in modules.items() for name in names}
    public = sorted([*origin, *submodules])

    def get(name: str) -> object:
        if name in origin:
            value: object = getattr(import_module(f"{package}.{origin[name]}"), name)
            setattr(sys.modules[package], name, value)  # asked for once only
            return value
        if name in submodules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return list(public)

    return get, list_names, public
