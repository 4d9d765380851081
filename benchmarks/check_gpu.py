"""Check a GPU against the CPU and time a step of training on it: `make check-gpu`.

    python benchmarks/check_gpu.py               # a table to paste into an issue
    python benchmarks/check_gpu.py --size 48 60 48 --batch 4
    python benchmarks/check_gpu.py --device cpu  # the same comparisons, CPU with CPU

Builds and downloads nothing. Where there is no CUDA device it says so and ends with 77. It was
written without a GPU: whoever has one is the first to run it.
"""

import argparse
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import bids_gevnet
from bids_gevnet.dwi.model_corrector.corrector import LEVELS
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.learn.cohort.store import write_scan
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.device_batches import DeviceReader
from bids_gevnet.learn.train.device_pieces import device_pieces, free_bytes
from bids_gevnet.learn.train.jobs import JobScan
from bids_gevnet.learn.train.loop import autocast
from bids_gevnet.learn.train.mixup import Mixture
from bids_gevnet.nn.ckn import keep_on_sphere
from bids_gevnet.nn.compound import Pieces, ScanNetwork
from bids_gevnet.nn.registry import build, scan_networks

SKIPPED = 77
SMALL = (16, 18, 14)
TOLERANCE = 2e-3
"""Of float32 on a GPU, whose convolutions round to TF32; of the largest value."""


@dataclass(frozen=True)
class Check:
    """One line of the table: a difference and what it may be, or a figure to read."""

    what: str
    value: str
    good: bool | None = None


def ellipsoid(size: tuple[int, ...]) -> torch.Tensor:
    """Head-shaped mask: 41 % of the box."""
    axes = [torch.linspace(-1, 1, n) for n in size]
    return sum(a.square() for a in torch.meshgrid(*axes, indexing="ij")) < 0.85  # type: ignore[return-value]


def difference(there: torch.Tensor, here: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    here = here.double()
    return float((there.detach().cpu().double() - here).abs().max() / here.abs().max())


def step(network: ScanNetwork, scans: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Scores of a batch, with gradients of its loss in the parameters."""
    network.zero_grad(set_to_none=True)
    scores: torch.Tensor = network(scans, masks)
    labels = torch.arange(len(scans), device=scans.device) % scores.shape[1]
    F.cross_entropy(scores.float(), labels).backward()
    return scores.detach()


def compare_network(name: str, device: torch.device, nside: int) -> list[Check]:
    """Scores and gradients of one network, and scores as it is trained by default."""
    torch.manual_seed(0)
    network = build(name, nside=nside)
    assert isinstance(network, ScanNetwork)
    mask = ellipsoid(SMALL)
    masks = mask.expand(2, *SMALL).contiguous()
    scans = torch.rand(2, 6 * nside**2, *SMALL) * mask
    here = step(network, scans, masks)
    expected = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    network.to(device)
    there = step(network, scans.to(device), masks)
    gradients = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    with torch.no_grad(), autocast("bfloat16", device):
        half = network(scans.to(device), masks)
    found = {
        "scores": difference(there, here),
        "gradients": difference(gradients, expected),
    }
    lines = [Check(f"{name}: {k}", f"{v:.1e}", v < TOLERANCE) for k, v in found.items()]
    return [*lines, Check(f"{name}: scores in bfloat16", f"{difference(half, here):.1e}")]


def compare_batches(device: torch.device) -> list[Check]:
    """Make a mixed, harmonised batch on the host and on the device."""
    rng = np.random.default_rng(0)
    mask = ellipsoid(SMALL).numpy()
    with tempfile.TemporaryDirectory() as folder:
        scans = []
        for name in ("a", "b"):
            samples = rng.random((int(mask.sum()), 24)).astype(np.float16)
            write_scan(Path(folder) / name, samples, mask, nside=2, voxel_mm=2.0)
            scans.append(
                JobScan(
                    folder=str(Path(folder) / name), participant=name, session=None, scan=name,
                    label=0, site="A", motion=None, covariates={},
                )
            )  # fmt: skip
        values = rng.uniform(0.8, 1.2, (1, *SMALL, 2)).astype(np.float32)
        gains = RishGains(values, ("A",), degrees=(0, 2), nside=2)
        reader = ScanReader(scans, gains)
        plan = [Mixture(0, 1, 0.3, 0), Mixture(1, 1, 1.0, 0)]
        made = DeviceReader(reader, device)
        value = difference(made.place(made.batch(plan))[0], reader.batch(plan)[0])
    return [Check("batch: mixed and harmonised", f"{value:.1e}", value < 1e-4)]


def compare_correction(device: torch.device) -> list[Check]:
    """Motion that the model-based correction finds."""
    scan = bids_gevnet.phantom.simulate(directions=8, voxel_mm=9, snr=50)
    found = [
        bids_gevnet.dwi.correct(
            scan.data, scan.affine, scan.bvals, scan.bvecs_fsl, levels=LEVELS[:1], device=where
        ).motion
        for where in ("cpu", device)
    ]
    value = float(np.abs(found[0] - found[1]).max())
    return [Check("correction: motion, mm and degrees", f"{value:.1e}", value < 1e-2)]


def time_steps(
    name: str, device: torch.device, size: tuple[int, ...], batch: int, precision: str, nside: int
) -> list[Check]:
    """Seconds of a training step after two to warm up, and the memory it took."""
    torch.manual_seed(0)
    network = build(name, nside=nside)
    assert isinstance(network, ScanNetwork)
    mask = ellipsoid(size)
    scans = torch.rand(batch, 6 * nside**2, *size, device=device) * mask.to(device)
    masks = mask.expand(batch, *size)
    brain = int(mask.sum())
    free = free_bytes(device)
    if free is not None:
        voxels, spheres = scans.numel(), batch * -(-brain // network.stride**3)
        points = 12 * nside**2
        network.pieces = device_pieces(
            Pieces(), free=free, voxels=voxels, points=spheres * points, points_per_sphere=points
        )
        torch.cuda.reset_peak_memory_stats(device)
    network.to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-5)
    keep_on_sphere(optimiser, network)
    seconds = []
    for _ in range(5 if free is not None else 1):
        start = time.perf_counter()
        with autocast(precision, device):
            step(network, scans, masks)
        optimiser.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    what = f"{name}, {batch} x {'x'.join(map(str, size))} x {6 * nside**2}, {precision}"
    rest = f"{min(seconds):.3f} s a step, {min(seconds) / batch:.3f} s a scan"
    if free is not None:
        peak = torch.cuda.max_memory_allocated(device)
        rest += f", {peak / 1e9:.1f} of {free / 1e9:.1f} GB, whole: {network.pieces.whole}"
    return [Check(what, rest)]


def attempt(function, *arguments) -> list[Check]:
    """Run a check; what it raises is a line of the table."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - everything that fails is a finding
        words = " ".join(str(error).split())[:160]
        return [
            Check(
                f"{function.__name__} {arguments[0]}",
                f"{type(error).__name__}: {words}",
                good=False,
            )
        ]


def about(device: torch.device) -> str:
    """Name the machine."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    return f"{name}; {versions}, Python {platform.python_version()}"


def main() -> int:
    """Check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, nargs=3, default=(77, 95, 77))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--nside", type=int, default=4)
    parser.add_argument("--networks", nargs="+", default=list(scan_networks()[:6]))
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return SKIPPED
    device = torch.device(options.device)
    checks: list[Check] = []
    for name in options.networks:
        checks += attempt(compare_network, name, device, options.nside)
    checks += attempt(compare_batches, device)
    checks += attempt(compare_correction, device)
    for name in options.networks:
        # The lone GEVNet takes every brain voxel of the scan: one scan is enough to wait for.
        batch = 1 if name == "gevnet" else options.batch
        for precision in ("float32", "bfloat16") if device.type == "cuda" else ("float32",):
            checks += attempt(
                time_steps, name, device, tuple(options.size), batch, precision, options.nside
            )
    print(f"{about(device)}\n\n| check | found | |\n| --- | --- | --- |")
    for check in checks:
        verdict = "" if check.good is None else "ok" if check.good else "**FAILED**"
        print(f"| {check.what} | {check.value} | {verdict} |")
    failed = sum(check.good is False for check in checks)
    print(f"\n{failed} of {sum(c.good is not None for c in checks)} checks failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
