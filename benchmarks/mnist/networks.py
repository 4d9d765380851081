"""Networks for spherical MNIST: those of the zoo, and larger ones to see how far the design goes.

The larger ones have at most 58,000 parameters, as many as the best known result. Each spends
them on something else: more channels, a second frequency in the hidden fields, all products of
responses within a channel, or a third ring.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bids_gevnet.nn import registry
from bids_gevnet.nn.builders import build_gevnet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

LARGER: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "gevnet-wide": ("1-4-4v-11-11v-16-16v-17", {}),
        "gevnet-bandlimit-2": ("1-3-3v-6-6v-10-10v-11", {"bandlimit": 2}),
        "gevnet-all-products": ("1-3-3v-8-8v-11-11v-15", {"products": "full"}),
        "gevnet-3-rings": ("1-3-3v-8-8v-11-11v-11", {"radii": (0.4, 0.8, 1.2)}),
    }
)
"""Architecture, and what differs from the paper's layers, by name."""


def build(name: str, level: int, samples: int | None) -> nn.Module:
    """Build a network by name, on an icosphere, with N samples in its nonlinearities."""
    if name not in LARGER:
        return registry.build(name, level=level, samples=samples)
    architecture, options = LARGER[name]
    return build_gevnet(
        architecture, grid="icosphere", level=level, samples=samples, classes=10, **options
    )


def describe(name: str) -> str:
    """Architecture of a larger network, and what differs from the paper's layers."""
    architecture, options = LARGER[name]
    return ", ".join([architecture, *(f"{key} {value}" for key, value in options.items())])
