"""The zoo: every network of the paper by name, built with one call.

    from bids_gevnet.nn import zoo
    net = zoo.build("gevnet-mnist")
    net = zoo.build("gevnet-dmri", samples=None)      # options go to the builder

`python -m bids_gevnet.nn.zoo` prints name, architecture, parameters and the paper's figure.

An entry is a `ZooEntry`; the sphere networks are `SPHERE_ENTRIES` below. To add networks, write
a module with a tuple `ENTRIES` of `ZooEntry` and name it in `MORE_ENTRIES`: it is imported when
the zoo is first asked, so that it may import this one. `ZooEntry.parts` names the submodules
whose parameters are listed separately, for instance ("ckn", "gevnet", "head").
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bids_gevnet.errors import InputError
from bids_gevnet.nn.gevnet import GEVNet, count_parameters
from bids_gevnet.sphere.healpix import healpix
from bids_gevnet.sphere.icosphere import icosphere

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from bids_gevnet.sphere.grid import Grid

MORE_ENTRIES = ("bids_gevnet.nn.zoo_compound",)


@dataclass(frozen=True)
class ZooEntry:
    """One network of the paper.

    Parameters
    ----------
    name : str
    architecture : str
        Channels, with v where a pooling follows, or a sentence.
    build : callable
        Makes the network; called with the options given to `build`.
    paper : str
        The number of parameters as printed in the paper, or "" where it prints none.
    parts : tuple of str
        Submodules whose parameters `parameters` lists one by one.
    """

    name: str
    architecture: str
    build: Callable[..., nn.Module]
    paper: str = ""
    parts: tuple[str, ...] = ()

    def parameters(self) -> dict[str, int]:
        """Learnable numbers of the whole ("total") and of each part."""
        net = self.build()
        counts = {part: count_parameters(net.get_submodule(part)) for part in self.parts}
        return {"total": count_parameters(net), **counts}


def build_gevnet(architecture: str, *, grid: Callable[[], Grid], **options: Any) -> GEVNet:
    """Build a `GEVNet`; `grid` makes the finest grid, options are those of `GEVNet`."""
    return GEVNet(grid(), architecture, **options)


def _mnist(name: str, architecture: str, order: int, samples: int, paper: str = "") -> ZooEntry:
    builder = partial(
        build_gevnet,
        architecture,
        grid=partial(icosphere, 4),
        order=order,
        samples=samples,
        classes=10,
    )
    return ZooEntry(name, architecture, builder, paper, ("layers", "head"))


# Ablation on parameter counts: five sizes of 2, 3 and 4 layers. The paper prints the first pair
# of the two-layer networks only (804 and 824); the others follow its rule, a GENet with at least
# as many parameters as its GEVNet, and the closest such.
ABLATION: Mapping[int, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        2: (
            ("1-2v-2", "1-2v-4"),
            ("1-3v-3", "1-3v-7"),
            ("1-4v-4", "1-4v-9"),
            ("1-5v-5", "1-5v-12"),
            ("1-6v-6", "1-6v-16"),
        ),
        3: (
            ("1-2v-2v-2", "1-4v-4v-4"),
            ("1-3v-3v-3", "1-6v-6v-6"),
            ("1-4v-4v-4", "1-8v-8v-8"),
            ("1-5v-5v-5", "1-10v-10v-10"),
            ("1-6v-6v-6", "1-12v-12v-12"),
        ),
        4: (
            ("1-2v-2v-2v-2", "1-4v-4v-4v-4"),
            ("1-3v-3v-3v-3", "1-6v-6v-6v-6"),
            ("1-4v-4v-4v-4", "1-8v-8v-8v-9"),
            ("1-5v-5v-5v-5", "1-10v-10v-10v-11"),
            ("1-6v-6v-6v-6", "1-12v-12v-12v-14"),
        ),
    }
)
_PRINTED = {"1-2v-2": "804", "1-2v-4": "824"}


def ablation_name(kind: str, layers: int, size: int) -> str:
    """Name of an ablation network, kind "gevnet" or "genet", sizes 1 to 5; 1 has no suffix."""
    return f"{kind}-mnist-{layers}layer" + (f"-{size}" if size > 1 else "")


def _ablation_entries() -> list[ZooEntry]:
    return [
        _mnist(ablation_name(kind, layers, i), text, order, 101, _PRINTED.get(text, ""))
        for layers, pairs in ABLATION.items()
        for i, pair in enumerate(pairs, start=1)
        for kind, order, text in (("gevnet", 2, pair[0]), ("genet", 1, pair[1]))
    ]


SPHERE_ENTRIES: tuple[ZooEntry, ...] = (
    _mnist("gevnet-mnist", "1-3-3v-8-8v-12-12v-12", 2, 51, "31k"),
    _mnist("genet-mnist", "1-10-10v-16-16v-32-32v-32", 1, 51, "45k"),
    ZooEntry(
        "gevnet-dmri",
        "8-8-12-12",
        partial(build_gevnet, "8-8-12-12", grid=partial(healpix, 4), samples=7),
        "12424",
        ("layers",),
    ),
    ZooEntry(
        "gevnet-qm7",
        "5-5v-10v-10",
        partial(build_gevnet, "5-5v-10v-10", grid=partial(icosphere, 3), samples=101),
        "70k with the MLP",
        ("layers",),
    ),
    *_ablation_entries(),
)


@cache
def entries() -> Mapping[str, ZooEntry]:
    """All entries by name, those of `MORE_ENTRIES` included."""
    found = list(SPHERE_ENTRIES)
    for module in MORE_ENTRIES:
        if find_spec(module) is not None:
            found += import_module(module).ENTRIES
    by_name = {entry.name: entry for entry in found}
    assert len(by_name) == len(found), "two networks of one name"
    return MappingProxyType(by_name)


def build(name: str, **options: Any) -> nn.Module:
    """Build a network of the zoo.

    Parameters
    ----------
    name : str
        See `entries`.
    **options
        For the builder; for the sphere networks those of `GEVNet`, and grid, a callable that
        makes the finest grid.
    """
    try:
        entry = entries()[name]
    except KeyError:
        raise InputError(
            expected=f"a network of the zoo: {', '.join(sorted(entries()))}",
            found=repr(name),
            remedy="see python -m bids_gevnet.nn.zoo",
        ) from None
    return entry.build(**options)


def table() -> str:
    """Markdown table of name, architecture, parameters, their parts and the paper's figure."""
    lines = [
        "| network | architecture | parameters | of which | paper |",
        "|---|---|---:|---|---|",
    ]
    for entry in entries().values():
        counts = entry.parameters()
        total = counts.pop("total")
        parts = ", ".join(f"{part} {count:,}" for part, count in counts.items())
        lines.append(
            f"| {entry.name} | {entry.architecture} | {total:,} | {parts} | {entry.paper or '-'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
