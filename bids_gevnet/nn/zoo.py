"""The networks of the paper, as entries of the registry.

`python -m bids_gevnet.nn.zoo` prints every network with its architecture, its parameters and the
number of parameters that the paper prints, networks of installed packages included.

"ckn1" has the linear and "ckn2" the quadratic kernel; `compound` says what the two lone networks
of Table 3 do instead of the part that they lack.
"""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from bids_gevnet.nn.registry import Network, networks

if TYPE_CHECKING:
    from collections.abc import Mapping

_ON_SPHERES = "bids_gevnet.nn.builders:build_gevnet"
_ON_SCANS = "bids_gevnet.nn.builders:build_compound"


def _mnist(name: str, architecture: str, order: int, samples: int, printed: str = "") -> Network:
    kind = "GEVNet" if order == 2 else "GENet"
    return Network(
        name=name,
        title=f"{kind} {architecture}",
        architecture=architecture,
        builder=_ON_SPHERES,
        arguments={
            "architecture": architecture,
            "grid": "icosphere",
            "level": 4,
            "order": order,
            "samples": samples,
            "classes": 10,
        },
        paper_parameters=printed,
        parts=("layers", "head"),
    )


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


def _ablation_networks() -> list[Network]:
    return [
        _mnist(ablation_name(kind, layers, i), text, order, 101, _PRINTED.get(text, ""))
        for layers, pairs in ABLATION.items()
        for i, pair in enumerate(pairs, start=1)
        for kind, order, text in (("gevnet", 2, pair[0]), ("genet", 1, pair[1]))
    ]


_CKN = {
    1: "a convolutional kernel network of first order [@ckn]",
    2: "a convolutional kernel network of second order [@ckn]",
}
_GEVNET = "a gauge equivariant Volterra network [@gevnet] of second order"
_SPHERES = {
    "gevnet": (_GEVNET, "8-8-12-12", "sphere 12424"),
    "deepsphere": ("DeepSphere [@deepsphere]", "8-32-32-64", "sphere 13696"),
}


def _table_3(
    title: str, degree: int | None, sphere: str | None, accuracies: tuple[float, ...]
) -> Network:
    """One row of Table 3: a CKN of a degree, a spherical network, or both."""
    parts, architectures, printed = [], [], []
    if degree is not None:
        parts.append("ckn")
        architectures.append("1-4-4-8-8")
        printed.append("ckn 3164")
    if sphere is not None:
        parts.append("sphere")
        architectures.append(_SPHERES[sphere][1])
        printed.append(_SPHERES[sphere][2])
    if degree is None:
        sentence = f"{_GEVNET}, which ignores neighbouring voxels"
    elif sphere is None:
        sentence = f"{_CKN[degree]}, which ignores directions"
    else:
        sentence = f"{_CKN[degree]} across voxels and {_SPHERES[sphere][0]} within each"
    names = ([] if degree is None else [f"ckn{degree}"]) + ([] if sphere is None else [sphere])
    return Network(
        name="+".join(names),
        title=title,
        architecture=" + ".join(architectures),
        builder=_ON_SCANS,
        arguments={"degree": degree, "sphere": sphere},
        sentence=sentence,
        paper_parameters=", ".join(printed),
        paper_accuracies=accuracies,
        classifies_scans=True,
        parts=(*parts, "head"),
    )


PAPER_NETWORKS: tuple[Network, ...] = (
    _mnist("gevnet-mnist", "1-3-3v-8-8v-12-12v-12", 2, 51, "31k"),
    _mnist("genet-mnist", "1-10-10v-16-16v-32-32v-32", 1, 51, "45k"),
    Network(
        name="gevnet-dmri",
        title="GEVNet for diffusion MRI",
        architecture="8-8-12-12",
        builder=_ON_SPHERES,
        arguments={"architecture": "8-8-12-12", "grid": "healpix", "level": 4, "samples": 7},
        paper_parameters="12424",
        parts=("layers",),
    ),
    Network(
        name="gevnet-qm7",
        title="GEVNet for molecules",
        architecture="5-5v-10v-10",
        builder=_ON_SPHERES,
        arguments={"architecture": "5-5v-10v-10", "grid": "icosphere", "level": 3, "samples": 101},
        paper_parameters="70k with the MLP",
        parts=("layers",),
    ),
    *_ablation_networks(),
    _table_3("CKN2", 2, None, (0.8676, 0.9032, 0.9806)),
    _table_3("GEVNet", None, "gevnet", (0.7708, 0.7236, 0.8112)),
    _table_3("CKN1 + DS", 1, "deepsphere", (0.8676, 0.7916, 0.8924)),
    _table_3("CKN1 + GEVNet", 1, "gevnet", (0.9034, 0.8630, 0.9330)),
    _table_3("CKN2 + DS", 2, "deepsphere", (0.8982, 0.9507, 0.9846)),
    _table_3("CKN2 + GEVNet", 2, "gevnet", (0.9286, 0.9836, 0.9827)),
)
"""Networks of the sphere, then those of Table 3 in its order."""


def table() -> str:
    """Markdown table of name, architecture, parameters, their parts and the paper's figure."""
    lines = [
        "| network | architecture | parameters | of which | paper |",
        "|---|---|---:|---|---|",
    ]
    for entry in networks().values():
        counts = entry.count_parameters()
        total = counts.pop("total")
        parts = ", ".join(f"{part} {count:,}" for part, count in counts.items())
        printed = entry.paper_parameters or "-"
        lines.append(f"| {entry.name} | {entry.architecture} | {total:,} | {parts} | {printed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
