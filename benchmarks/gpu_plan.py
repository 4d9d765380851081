"""What a step of training would ask of a GPU, counted without one, and what that means in hours.

    python benchmarks/gpu_plan.py              # prints the page, some minutes
    python benchmarks/gpu_plan.py --write      # also benchmarks/gpu_plan.md
    python benchmarks/gpu_plan.py --before     # counts the step in pieces for a CPU's cache, too

Our code runs on `bids_gevnet.fake_gpu` at the paper's size: forward, backward and Adam. Operators,
bytes and arithmetic are counted; seconds are a lower bound from these counts and figures of an
A100, each operator bound by memory, arithmetic or its launch. Host seconds are measured here, on
a store filled with noise. Nothing of this has run on a GPU.
"""

import argparse
import math
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from pages import HERE, current_commit, write_page

from bids_gevnet.bids.writing import write_json
from bids_gevnet.fake_gpu import Counts, fake_gpu
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.device_batches import DeviceReader, HostBatch, HostScan
from bids_gevnet.learn.train.device_pieces import device_pieces
from bids_gevnet.learn.train.jobs import JobScan
from bids_gevnet.learn.train.mixup import Mixture
from bids_gevnet.nn import ckn, nonlinearity
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.registry import build, scan_networks

PAGE = HERE / "gpu_plan.md"
SIZE = (77, 95, 77)
NSIDE = 4
INSIDE = 0.36
"""Brain of the box: 203,000 of the paper's 563,255 voxels."""

MEMORY = 76 * 10**9
"""Free bytes of an A100 with 80 GB."""
BANDWIDTH = 1.6e12
"""Bytes a second: 80 % of its 2.0e12."""
LAUNCH = 8e-6
"""Seconds in which PyTorch starts an operator."""
RATES = {8: 5e12, 4: 10e12, 2: 60e12}
"""Operations a second by bytes of a number: half of the peak of float64 and float32 without
tensor cores, a fifth of that of bfloat16 with them."""

PASSES = 3 * 5 * 15 * 800
"""Scan passes of one network in Table 3: 3 tasks, 5 folds, 15 epochs, 400 samples a class."""


def rate(itemsize: int) -> float:
    """Operations a second on numbers of some bytes."""
    return RATES.get(itemsize, RATES[4])


@dataclass(frozen=True)
class Step:
    """What one training step asks for.

    Parameters
    ----------
    counts : Counts
    scans : int
        In the step.
    whole : bool
        Whether nothing was cut up.
    """

    counts: Counts
    scans: int
    whole: bool

    @property
    def seconds(self) -> float:
        """Least time of a scan on an A100."""
        least = self.counts.seconds(bandwidth=BANDWIDTH, flops=rate, launch=LAUNCH)
        return least / self.scans

    @property
    def arithmetic(self) -> float:
        """Least time of a scan if memory and launches cost nothing."""
        counted = self.counts.launches
        return sum(one.flops / rate(one.itemsize) for one in counted) / self.scans


def count_step(name: str, n_scans: int, pieces: Pieces | None = None) -> Step:
    """Count a step of a network at the paper's size.

    Parameters
    ----------
    name : str
    n_scans : int
    pieces : Pieces, optional
        By the memory of the GPU if not given.
    """
    network = build(name, nside=NSIDE)
    assert isinstance(network, CompoundNetwork)
    spheres = n_scans * math.ceil(INSIDE * math.prod(SIZE) / network.stride**3)
    network.pieces = pieces or device_pieces(
        Pieces(),
        free=MEMORY,
        voxels=0 if network.ckn is None else n_scans * 6 * NSIDE**2 * math.prod(SIZE),
        points=0 if network.sphere is None else spheres * 12 * NSIDE**2,
        points_per_sphere=12 * NSIDE**2,
    )
    with fake_gpu(inside=INSIDE) as gpu:
        gpu.take(network)
        optimiser = torch.optim.Adam(network.parameters())
        ckn.keep_on_sphere(optimiser, network)
        scans = torch.empty(n_scans, 6 * NSIDE**2, *SIZE, device=gpu.device)
        masks = torch.empty(n_scans, *SIZE, dtype=torch.bool)
        labels = torch.empty(n_scans, dtype=torch.long, device=gpu.device)
        F.cross_entropy(network(scans, masks), labels).backward()
        optimiser.step()
    return Step(gpu.counts, n_scans, network.pieces.whole)


def count_before() -> Step:
    """Count a step as it was: pieces for a CPU's cache, pooling matrices copied at each call."""

    def uncached(layer: ckn.CKNLayer, n: int, like: torch.Tensor) -> torch.Tensor:
        return ckn.pooling_matrix(n, layer.stride).to(like)

    with ExitStack() as stack:
        stack.enter_context(patch.object(ckn.CKNLayer, "_pooling", uncached))
        stack.enter_context(patch.object(nonlinearity, "scratch_bytes", lambda _: 4_000_000))
        return count_step("ckn2+gevnet", 1, Pieces())


def count_batch() -> tuple[Counts, int]:
    """Count what making one mixed, harmonised scan asks of the device, and the bytes copied."""
    voxels = round(INSIDE * math.prod(SIZE))
    gains = RishGains(np.full((1, *SIZE, 4), 1.1, np.float32), ("A",))
    with fake_gpu(inside=INSIDE) as gpu:
        device = DeviceReader(ScanReader([], gains), gpu.device)
        scan = HostScan(
            torch.empty(voxels, 96, dtype=torch.float16),
            torch.empty(voxels, dtype=torch.int32),
            torch.empty(voxels, dtype=torch.int32),
            "A",
            0.5,
        )
        masks = torch.empty(1, *SIZE, dtype=torch.bool)
        batch = HostBatch([(scan, scan)], masks, torch.empty(1, dtype=torch.long))
        device.place(batch)  # the gains of the site are there from now on
        gpu.counts.launches.clear()
        device.place(batch)
    return gpu.counts, batch.nbytes


def host_seconds(folder: Path) -> tuple[float, float]:
    """Processor seconds of one mixed, harmonised scan: before, and for a device."""
    rng = np.random.default_rng(0)
    axes = [np.linspace(-1, 1, n) for n in SIZE]
    mask = sum(a**2 for a in np.meshgrid(*axes, indexing="ij")) < 0.78
    scans = []
    for name in ("a", "b"):
        target = folder / name
        target.mkdir()
        samples = rng.random((int(mask.sum()), 96), dtype=np.float32).astype(np.float16)
        np.save(target / "samples.npy", samples)
        np.save(target / "mask.npy", mask)
        write_json(target / "facts.json", {"nside": NSIDE})
        scans.append(
            JobScan(
                folder=str(target), participant=name, session=None, scan=name, label=0, site="A",
                motion=None, covariates={},
            )
        )  # fmt: skip
    gains = RishGains(rng.uniform(0.9, 1.1, (1, *SIZE, 4)).astype(np.float32), ("A",))
    reader = ScanReader(scans, gains)
    plan = [Mixture(0, 1, 0.4, 0)]
    readers = (reader, DeviceReader(reader, torch.device("cpu")))
    found = []
    for one in readers:
        one.batch(plan)  # from the disk
        start = time.process_time()
        one.batch(plan)
        found.append(time.process_time() - start)
    return found[0], found[1]


def table(steps: dict[str, Step]) -> list[str]:
    """One line a network."""
    columns = (
        "network", "scans a step", "cut up", "operators", "waits", "GB moved a scan",
        "GFLOP a scan", "peak GB", "least ms a scan", "of which arithmetic",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * 9]
    for name, step in steps.items():
        counts, n = step.counts, step.scans
        lines.append(
            f"| {name} | {n} | {'no' if step.whole else 'yes'} | {counts.operators:,} | "
            f"{counts.waits} | {counts.moved / n / 1e9:,.0f} | {counts.flops / n / 1e9:,.0f} | "
            f"{counts.peak / 1e9:.1f} | {1e3 * step.seconds:,.0f} | {1e3 * step.arithmetic:,.0f} |"
        )
    return lines


def hours(steps: dict[str, Step], *, arithmetic: bool = False, without: str = "") -> float:
    """GPU hours of Table 3."""
    each = {k: s.arithmetic if arithmetic else s.seconds for k, s in steps.items() if k != without}
    return PASSES * sum(each.values()) / 3600


def page(options: argparse.Namespace) -> str:
    """Count, measure, and write it down."""
    steps = {}
    for name in options.networks:
        steps[name] = count_step(name, 1 if name == "gevnet" else options.batch)
        print(table({name: steps[name]})[-1], flush=True)
    batch, nbytes = count_batch()
    with tempfile.TemporaryDirectory() as folder:
        before_s, after_s = host_seconds(Path(folder))
    command = " ".join(["benchmarks/gpu_plan.py", *sys.argv[1:]])
    assumed = f"{BANDWIDTH / 1e12:.1f} TB/s, {RATES[4] / 1e12:.0f} TFLOP/s in float32"
    lines = [
        "# One A100, on paper",
        "",
        "**Nothing here has run on a GPU.** Operators, bytes and arithmetic are counted by",
        f"`python {command}` (commit {current_commit()})",
        "on tensors without content, in float32. Seconds are lower bounds from these counts and",
        f"{assumed} and {LAUNCH * 1e6:.0f} µs a launch.",
        "`make check-gpu` measures the real ones.",
        "",
        f"## A step at the paper's size, {' x '.join(map(str, SIZE))} voxels x 96 directions",
        "",
        *table(steps),
        "",
    ]
    if options.before:
        lines += before_lines(count_before())
    lines += [
        "## Making a mixed, harmonised scan",
        "",
        "| | before | now |",
        "| --- | ---: | ---: |",
        f"| processor seconds of the host, measured here | {before_s:.2f} | {after_s:.2f} |",
        f"| MB over the bus | {math.prod(SIZE) * 96 * 4 / 1e6:.0f} | {nbytes / 1e6:.0f} |",
        f"| operators on the device | 0 | {batch.operators} |",
        "| batches read at a time | 1 | 4 |",
        "",
        f"A scan that is not mixed is one of the two: {nbytes / 2e6:.0f} MB.",
        "",
        "## Table 3 of the paper",
        "",
        f"3 tasks, 5 folds, 15 epochs, 800 samples: {PASSES:,} scan passes a network.",
        "At least, in GPU hours:",
        "",
        "| | all six | without the lone GEVNet |",
        "| --- | ---: | ---: |",
    ]
    for share in (1.0, 0.1):
        for arithmetic in (False, True):
            values = [
                share * hours(steps, arithmetic=arithmetic, without=without)
                for without in ("", "gevnet")
            ]
            what = "arithmetic alone" if arithmetic else "as the code is"
            brain = "whole brain" if share == 1 else f"{100 * share:.0f} % of the brain a step"
            lines.append(f"| {brain}, {what} | {values[0]:,.1f} | {values[1]:,.1f} |")
    return "\n".join(lines)


def before_lines(before: Step) -> list[str]:
    """Compare one scan of ckn2+gevnet with how it was."""
    now = count_step("ckn2+gevnet", 1)
    rows = {
        "operators launched": (before.counts.operators, now.counts.operators),
        "PyTorch calls, views among them": (before.counts.calls, now.counts.calls),
        "kB copied to the device beside the scan": (
            before.counts.to_device // 1000,
            now.counts.to_device // 1000,
        ),
    }
    lines = ["One scan of ckn2+gevnet, cut up for a CPU's cache as it was, and now:", ""]
    lines += ["| | before | now |", "| --- | ---: | ---: |"]
    lines += [f"| {what} | {a:,} | {b:,} |" for what, (a, b) in rows.items()]
    return [*lines, ""]


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(scan_networks()[:6]))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = page(options)
    print(text)
    if options.write:
        write_page(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
