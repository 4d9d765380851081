"""The six networks of the paper's Table 3, for `bids_gevnet.nn.zoo`.

    from bids_gevnet.nn import zoo
    network = zoo.build("ckn2+gevnet", classes=3)

"ckn1" has the linear and "ckn2" the quadratic kernel; see `compound` for what the two lone
networks do with the part they lack.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from bids_gevnet.nn.ckn import CKN
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.deepsphere import DeepSphere
from bids_gevnet.nn.gevnet import GEVNet
from bids_gevnet.nn.kappa import Kappa
from bids_gevnet.nn.zoo import ZooEntry
from bids_gevnet.sphere.healpix import healpix

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_compound(
    degree: int | None,
    sphere: Literal["gevnet", "deepsphere"] | None,
    *,
    classes: int = 2,
    nside: int = 4,
    strides: Sequence[int] = (2, 1, 2, 1),
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
    samples : int or None
        N of the GEVNet's nonlinearities; None is the limit of infinitely many.
    pieces : Pieces or None
        How a batch is cut up.
    """
    ckn = None if degree is None else CKN(strides=strides, kappa=Kappa(degree=degree))
    network: GEVNet | DeepSphere | None = None
    if sphere == "gevnet":
        network = GEVNet(healpix(nside), "8-8-12-12", samples=samples)
    elif sphere == "deepsphere":
        network = DeepSphere((8, 32, 32, 64), 4, nside)
    return CompoundNetwork(ckn, network, classes, nside=nside, pieces=pieces)


def _entry(
    name: str, degree: int | None, sphere: Literal["gevnet", "deepsphere"] | None
) -> ZooEntry:
    lines, paper = [], []
    if degree is not None:
        lines.append("1-4-4-8-8")
        paper.append("ckn 3164")
    if sphere is not None:
        lines.append({"gevnet": "8-8-12-12", "deepsphere": "8-32-32-64"}[sphere])
        paper.append({"gevnet": "sphere 12424", "deepsphere": "sphere 13696"}[sphere])
    parts = ("ckn",) * (degree is not None) + ("sphere",) * (sphere is not None) + ("head",)
    return ZooEntry(
        name, " + ".join(lines), partial(build_compound, degree, sphere), ", ".join(paper), parts
    )


ENTRIES: tuple[ZooEntry, ...] = (
    _entry("ckn2", 2, None),
    _entry("gevnet", None, "gevnet"),
    _entry("ckn1+deepsphere", 1, "deepsphere"),
    _entry("ckn1+gevnet", 1, "gevnet"),
    _entry("ckn2+deepsphere", 2, "deepsphere"),
    _entry("ckn2+gevnet", 2, "gevnet"),
)
