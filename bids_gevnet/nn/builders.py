"""Builders of the paper's networks: on a sphere, and for whole scans.

`bids_gevnet.nn.registry` imports this module when a network is first built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from bids_gevnet.nn.ckn import CKN
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.deepsphere import DeepSphere
from bids_gevnet.nn.gevnet import GEVNet
from bids_gevnet.nn.kappa import Kappa
from bids_gevnet.settings import DEFAULT_STRIDES
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.icosphere_grid import icosphere

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_gevnet(
    architecture: str, *, grid: Literal["healpix", "icosphere"], level: int, **options: Any
) -> GEVNet:
    """Build a network on a sphere.

    Parameters
    ----------
    architecture : str
        Channels, with v where a pooling follows.
    grid : {"healpix", "icosphere"}
    level : int
        nside of HEALPix, or how often the icosahedron is subdivided.
    **options
        Those of `GEVNet`.

    Examples
    --------
    >>> build_gevnet("1-2-2", grid="healpix", level=2, classes=3).n_points
    48
    """
    make = {"healpix": healpix, "icosphere": icosphere}[grid]
    return GEVNet(make(level), architecture, **options)


def build_compound(
    degree: int | None,
    sphere: Literal["gevnet", "deepsphere"] | None,
    *,
    classes: int = 2,
    nside: int = 4,
    strides: Sequence[int] = DEFAULT_STRIDES,
    shells: int = 1,
    samples: int | None = 7,
    pieces: Pieces | None = None,
) -> CompoundNetwork:
    """Build a network of Table 3.

    Parameters
    ----------
    degree : int or None
        m of the CKN's kernel t^m; None for no CKN.
    sphere
        Spherical network; None for none.
    classes : int
        2 or more.
    nside : int
        HEALPix resolution of the scans.
    strides : sequence of 4 int
        Pooling of the CKN's layers.
    shells : int
        Shells of the scans: channels of the CKN's input, or of the sphere's where there is none.
    samples : int or None
        N of the GEVNet's nonlinearities; None is the limit of infinitely many.
    pieces : Pieces or None
        How a batch is cut up.

    Examples
    --------
    >>> import torch
    >>> network = build_compound(2, "gevnet", classes=3, nside=1)
    >>> network(torch.rand(1, 6, 4, 4, 4), torch.ones(1, 4, 4, 4, dtype=torch.bool)).shape
    torch.Size([1, 3])
    """
    ckn = None
    if degree is not None:
        ckn = CKN((shells, 4, 4, 8, 8), strides=strides, kappa=Kappa(degree=degree))
    channels = 8 if ckn is not None else 8 * shells
    network: GEVNet | DeepSphere | None = None
    if sphere == "gevnet":
        network = GEVNet(healpix(nside), f"{channels}-8-12-12", samples=samples)
    elif sphere == "deepsphere":
        network = DeepSphere((channels, 32, 32, 64), 4, nside)
    return CompoundNetwork(ckn, network, classes, nside=nside, shells=shells, pieces=pieces)
