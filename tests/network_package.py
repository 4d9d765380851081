"""Somebody else's network, as a package that pip would install: a module and its dist-info.

It reads the mean signal of the brain in every direction, and learns a linear classifier of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bids_gevnet.nn import registry

NAME = "mean-signal"
TITLE = "Mean signal"
SOURCE = """
def build(*, classes, nside, strides):
    import torch
    from torch import nn

    from bids_gevnet.nn.compound import ScanNetwork

    class MeanSignal(ScanNetwork):
        def __init__(self):
            super().__init__()
            self.head = nn.Sequential(nn.Linear(6 * nside**2, classes))

        def features(self, scans, masks):
            brains = zip(scans.float(), masks, strict=True)
            return torch.stack([scan[:, mask].mean(1) for scan, mask in brains])

    return MeanSignal()


def describe():
    from bids_gevnet.nn.registry import Network

    return Network(
        name="mean-signal",
        title="Mean signal",
        sentence="a linear classifier of the brain's mean signal in every direction",
        builder="mean_signal:build",
        classifies_scans=True,
    )
"""


def write_package(
    folder: Path,
    *,
    entry: str = f"{NAME} = mean_signal:describe",
    source: str = SOURCE,
    package: str = "mean_signal",
) -> Path:
    """Write an installed package: its module and what pip leaves beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[bids_gevnet.networks]\n{entry}\n")
    return folder


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Make a folder of packages one that Python looks into, for as long as it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        registry._read.cache_clear()
        try:
            yield
        finally:
            registry._read.cache_clear()
