"""Every network by name: what it is called, what the paper says of it, how it is built.

    >>> from bids_gevnet.nn import build, find_network
    >>> find_network("ckn2+gevnet").title
    'CKN2 + GEVNet'
    >>> build("gevnet-dmri").n_features
    12

Nothing here imports torch: names, titles and sentences are plain data, and a builder is imported
when its network is first built. The networks of the paper are listed in `zoo`.

A network of your own
---------------------
An installed package adds a network through the entry point group ``bids_gevnet.networks``, in
its pyproject.toml::

    [project.entry-points."bids_gevnet.networks"]
    my-network = "my_package.networks:MY_NETWORK"

where ``MY_NETWORK`` is a `Network`, or a function without arguments that returns one, of the
name to the left of the equals sign. A network that classifies scans is then accepted by
``--network``, trained, written to model folders and read back like those of the paper; its
builder is called with ``classes``, ``nside`` and ``strides``, for scans with several shells also
with their number ``shells``, and returns a `bids_gevnet.nn.ScanNetwork`; one that does not take
``shells`` is for one shell. Model folders never hold code: one that names a network which is
not installed is refused.
"""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from bids_gevnet.errors import BidsGevnetError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.metadata import EntryPoint

    from torch import nn

GROUP = "bids_gevnet.networks"
ALL = "all"
"""What ``--network`` calls every network that classifies scans: no network has this name."""
PAPER_TASKS = ("AD v. DLB", "AD v. PD", "DLB v. PD")
"""Classifications of the paper's Table 3."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network: names for people, and how to build it.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and ``+ - . _``: it becomes part of file names.
    builder : str or callable
        "package.module:function", imported when first needed, or the function itself.
    arguments : mapping
        Keyword arguments the builder is always called with.
    title : str
        As tables and figures write it; the name if not given.
    architecture : str
        Channels, with v where a pooling follows, or a few words.
    sentence : str
        What it is, for the methods text: it completes "The network is ...". Citations are keys
        of `bids_gevnet.report.references` in square brackets, ``[@gevnet]``.
    paper_parameters : str
        Number of parameters as the paper prints it; empty where it prints none.
    paper_accuracies : tuple of float
        Of the tasks `PAPER_TASKS`, from Table 3; empty for networks it does not have.
    classifies_scans : bool
        Whether the builder returns a `bids_gevnet.nn.ScanNetwork`, which the group level trains.
    parts : tuple of str
        Submodules whose parameters `count_parameters` also counts one by one.

    Examples
    --------
    >>> mine = Network(name="small", builder="bids_gevnet.nn.builders:build_gevnet",
    ...                arguments={"grid": "icosphere", "level": 1, "architecture": "1-2-2"})
    >>> mine.count_parameters()
    {'total': 144}
    """

    name: str
    builder: str | Callable[..., nn.Module]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    architecture: str = ""
    sentence: str = ""
    paper_parameters: str = ""
    paper_accuracies: tuple[float, ...] = ()
    classifies_scans: bool = False
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+._-]*", self.name) or self.name == ALL:
            raise InputError(
                expected="a network's name of lower-case letters, digits and + - . _",
                found=repr(self.name),
                remedy=f"rename the network; {ALL!r} stands for all of them",
            )
        if self.paper_accuracies and len(self.paper_accuracies) != len(PAPER_TASKS):
            raise InputError(
                expected=f"one accuracy for each of {', '.join(PAPER_TASKS)}",
                found=f"{len(self.paper_accuracies)} of {self.name}",
                remedy="give all of them or none",
            )
        if not self.title:
            object.__setattr__(self, "title", self.name)

    def build(self, **options: Any) -> nn.Module:
        """Build the network; options are the builder's and win over `arguments`."""
        return self._function()(**{**self.arguments, **options})

    def takes(self, option: str) -> bool:
        """Whether the builder has an option.

        >>> find_network("ckn2").takes("shells")
        True
        """
        parameters = inspect.signature(self._function()).parameters.values()
        return any(p.name == option or p.kind is p.VAR_KEYWORD for p in parameters)

    def _function(self) -> Callable[..., nn.Module]:
        """Return the builder, imported if it is only named."""
        if not isinstance(self.builder, str):
            return self.builder
        module, _, function = self.builder.partition(":")
        return cast("Callable[..., nn.Module]", getattr(import_module(module), function))

    def count_parameters(self) -> dict[str, int]:
        """Count the learnable numbers of the whole ("total") and of each part."""
        module = self.build()

        def count(part: nn.Module) -> int:
            return sum(p.numel() for p in part.parameters() if p.requires_grad)

        counts = {part: count(module.get_submodule(part)) for part in self.parts}
        return {"total": count(module), **counts}


def networks() -> Mapping[str, Network]:
    """All networks by name: those of the paper, then those of installed packages.

    A package whose entry cannot be loaded is left out here, and `find_network` says why. Two
    networks of one name are refused.

    Examples
    --------
    >>> list(networks())[:3]
    ['gevnet-mnist', 'genet-mnist', 'gevnet-dmri']
    """
    return _read()[0]


def scan_networks() -> tuple[str, ...]:
    """Names of the networks that classify scans: in the order of Table 3, then installed ones.

    Examples
    --------
    >>> scan_networks()[:2]
    ('ckn2', 'gevnet')
    """
    return tuple(name for name, entry in networks().items() if entry.classifies_scans)


def find_network(name: str, *, classifies_scans: bool = False) -> Network:
    """Find a network by name; an unknown name is answered with the nearest.

    Parameters
    ----------
    name : str
    classifies_scans : bool
        Whether only networks that classify scans are meant.

    Examples
    --------
    >>> find_network("gevnet-mnist").paper_parameters
    '31k'
    >>> find_network("gevnet-mnits")
    Traceback (most recent call last):
    ...
    bids_gevnet.errors.InputError: ... What to do: did you mean 'gevnet-mnist'?...
    """
    known, broken = _read()
    if name in broken:
        raise broken[name]
    entry = known.get(name)
    if entry is not None and (entry.classifies_scans or not classifies_scans):
        return entry
    names = scan_networks() if classifies_scans else tuple(known)
    kind = "a network that classifies scans" if classifies_scans else "the name of a network"
    close = difflib.get_close_matches(name.lower(), names, n=1)
    choice = f"did you mean {close[0]!r}? If not, choose" if close else "choose"
    raise InputError(
        expected=f"{kind}: {', '.join(names)}",
        found=repr(name),
        remedy=f"{choice} one of these, or install the package that provides {name!r}",
    )


def build(name: str, **options: Any) -> nn.Module:
    """Build a network by name.

    Parameters
    ----------
    name : str
        See `networks`, or ``python -m bids_gevnet.nn.zoo``.
    **options
        For the builder: those of `bids_gevnet.nn.GEVNet` for networks of the sphere, those of
        `bids_gevnet.nn.builders.build_compound` for networks that classify scans.

    Examples
    --------
    >>> import torch
    >>> sphere = build("gevnet-dmri")
    >>> sphere(torch.randn(5, 8, 192)).shape
    torch.Size([5, 12])
    """
    return find_network(name).build(**options)


@cache
def _read() -> tuple[Mapping[str, Network], Mapping[str, BidsGevnetError]]:
    """Networks by name, and why entries could not be loaded, by name."""
    from bids_gevnet.nn.zoo import PAPER_NETWORKS

    known = {entry.name: entry for entry in PAPER_NETWORKS}
    origin = dict.fromkeys(known, "bids_gevnet")
    broken: dict[str, BidsGevnetError] = {}
    for point in _installed(entry_points(group=GROUP)):
        package = point.dist.name if point.dist else point.value
        if point.name in origin:
            raise InputError(
                expected="networks of different names",
                found=f"{point.name!r} in both {origin[point.name]} and {package}",
                remedy=f"uninstall one of them, or rename the network of {package}",
            )
        origin[point.name] = package
        try:
            known[point.name] = _load(point)
        except InputError as error:
            broken[point.name] = error
    return MappingProxyType(known), MappingProxyType(broken)


def _installed(points: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Entry points by name; one that the path finds twice counts once."""
    unique = {(p.name, p.value, p.dist.name if p.dist else ""): p for p in points}
    return [unique[key] for key in sorted(unique)]


def _load(point: EntryPoint) -> Network:
    """Load the network of an entry point: whatever goes wrong there is told as a sentence."""
    package = point.dist.name if point.dist else point.value
    try:
        entry = point.load()
        entry = entry() if callable(entry) and not isinstance(entry, Network) else entry
    except Exception as error:  # noqa: BLE001 - somebody else's code
        raise InputError(
            expected=f"a network {point.name!r} in the package {package} ({point.value})",
            found=f"{type(error).__name__}: {error}",
            remedy=f"update or uninstall {package}",
        ) from None
    if not isinstance(entry, Network) or entry.name != point.name:
        raise InputError(
            expected=f"a bids_gevnet.nn.Network of the name {point.name!r} from {package}",
            found=f"one called {entry.name!r}" if isinstance(entry, Network) else f"{entry!r:.60}",
            remedy=f"correct the entry point {point.name} = {point.value} of {package}",
        )
    return entry
