"""Speed of the layers and networks on the CPU, as ratios measured in one run.

    python benchmarks/speed.py                  # two threads; prints the table
    python benchmarks/speed.py --write          # also benchmarks/results/speed.md
    python benchmarks/speed.py --quick          # fewer voxels and rounds
    python benchmarks/speed.py --threads 1 --cpu-time     # on a machine that is busy
    python benchmarks/speed.py --pytorch        # without compiled kernels, for comparison
    python benchmarks/speed.py --gem-cnn FOLDER # also the first order of gem_cnn

Everything is forward and backward. What is compared is run in turn, round after round, and the
fastest round of each is kept: on a machine that others use, means say who else was there, and
only minima of interleaved runs can be compared. The load average is printed for the same reason.
With --cpu-time the processor time of this process is taken instead of the clock on the wall: the
only figure of use where other programs hold the cores (two threads then mostly wait for each
other); caches and memory are still shared.

"All pairs" is the formula of Definition 3.3 as it stands, over all pairs of neighbours, all 60
second-order bases contracted by matrix products (the best case for it), plus our first order.

FOLDER is a copy of github.com/Qualcomm-AI-research/gauge-equivariant-mesh-cnn, which is not a part
of this project; torch_geometric must be importable (empty its `__init__.py` files where
torch_sparse and torch_scatter are not). Its layer gets the same points, neighbours, channels and
rings; the angles do not matter to the time.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from pages import RESULTS, write_page
from torch import Tensor, nn

from bids_gevnet.compiled.library import describe, level, use
from bids_gevnet.nn.deepsphere import DeepSphere
from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gauge_convolution import DEFAULT_RADII, GEConv, GEVConv
from bids_gevnet.nn.registry import build
from bids_gevnet.nn.response_matrices import response_values
from bids_gevnet.nn.steerable_kernels import response_scale, responses
from bids_gevnet.sphere.healpix_grid import healpix
from bids_gevnet.sphere.quadrature import ring_stencil

PAGE = RESULTS / "speed.md"
C_IN, C_OUT = 8, 12


class AllPairs(nn.Module):
    """Second order by summing over all pairs of neighbours, from n = 0 and n = 1 to both."""

    def __init__(self) -> None:
        super().__init__()
        grid = healpix(4)
        stencil = ring_stencil(grid, DEFAULT_RADII, 2)
        counts = np.bincount(stencil.rows, minlength=grid.n_points)
        slot = np.arange(len(stencil.rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        near = np.zeros((grid.n_points, counts.max()), dtype=np.int64)
        near[stencil.rows, slot] = stencil.cols
        self.register_buffer("near", torch.from_numpy(near))
        self.weights = nn.ParameterList()
        for n in (0, 1):
            rows = [r for m in (0, 1) for r in responses(n, m, 2)]
            scales = [response_scale(r.frequency, DEFAULT_RADII[r.ring]) for r in rows]
            values = response_values(stencil, n, rows, scales)  # (k, rows, d)
            first = np.zeros((*near.shape, *values.shape[1:]))
            first[stencil.rows, slot] = values
            k1 = torch.from_numpy(first).float()  # (points, near, rows, d)
            k0 = k1[:, :, : 2 * (n + 1)]
            pairs = torch.einsum("pjrd,pkse->prsjkde", k1, k0)  # K2(v1, v2), Proposition 3.5
            self.register_buffer(f"kernel{n}", pairs.flatten(3).flatten(1, 2))
            n_bases = self.get_buffer(f"kernel{n}").shape[1]
            self.weights.append(nn.Parameter(torch.randn(3 * C_OUT, n_bases * C_IN)))

    def forward(self, x: Tensor) -> Tensor:
        """(points, 24, batch) to (points, 36, batch); transport is inside the kernels."""
        out = 0
        for n, span in ((0, slice(0, C_IN)), (1, slice(C_IN, 3 * C_IN))):
            d = n + 1
            f = x[self.near, span].unflatten(2, (d, C_IN))  # (points, near, d, channels, batch)
            pairs = torch.einsum("pjdcb,pkecb->pjkdecb", f, f)
            kernel = self.get_buffer(f"kernel{n}")
            z = torch.bmm(
                kernel, pairs.flatten(1, 4).flatten(2)
            )  # (points, bases, channels*batch)
            z = z.view(len(z), -1, x.shape[2])
            out = out + torch.matmul(self.weights[n], z)
        return out


def step(module: nn.Module, x: Tensor) -> Callable[[], None]:
    """One forward and backward pass, with gradients in the input and the weights."""

    def run() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x).square().mean().backward()

    return run


def interleaved(
    runs: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Fastest of several rounds of each, in ms, run in turn."""
    best = dict.fromkeys(runs, float("inf"))
    for i in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if i:  # the first round warms up
                best[name] = min(best[name], 1e3 * (clock() - start))
    return best


def gem_cnn(folder: str, voxels: int) -> Callable[[], None]:
    """Make one step of the first-order layer of gem_cnn, 8 -> 12 channels on 192 points."""
    sys.path.insert(0, folder)
    from gem_cnn.nn.gem_conv import GemConv

    stencil = ring_stencil(healpix(4), DEFAULT_RADII, 2)
    pairs = torch.from_numpy(np.stack([stencil.rows, stencil.cols])).long()
    graph = (pairs[:, None] + 192 * torch.arange(voxels)[:, None]).flatten(1)
    # Two angles, then the weights of the centre and of two rings.
    geometry = torch.rand(graph.shape[1], 2 + 1 + 2)
    geometry[:, 2] = graph[0] == graph[1]
    layer = GemConv(C_IN, C_OUT, 1, 1, n_rings=2)
    x = torch.randn(192 * voxels, C_IN, 3, requires_grad=True)

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x, graph, geometry, None).square().mean().backward()

    return run


def layer_times(
    voxels: int,
    pair_voxels: int,
    rounds: int,
    clock: Callable[[], float],
    gem: str | None = None,
) -> dict[str, float]:
    """Milliseconds per voxel of one layer 8 -> 12 on 192 points."""
    grid, a, b = healpix(4), FieldType.regular(C_IN), FieldType.regular(C_OUT)
    x = torch.randn(grid.n_points, a.dim, voxels, requires_grad=True)
    few = torch.randn(grid.n_points, a.dim, pair_voxels, requires_grad=True)
    first, second, pairs = GEConv(grid, a, b), GEVConv(grid, a, b), AllPairs()
    first_few = step(first, few)
    pairs_few = step(pairs, few)

    def both() -> None:
        first_few()
        pairs_few()

    times = interleaved({"first": step(first, x), "second": step(second, x)}, rounds, clock)
    few_rounds = max(2, rounds // 4)
    slow = interleaved({"all pairs": both}, few_rounds, clock)
    result = {
        "first": times["first"] / voxels,
        "second": times["second"] / voxels,
        "all pairs": slow["all pairs"] / pair_voxels,
    }
    if gem is not None:
        other = interleaved({"gem_cnn": gem_cnn(gem, pair_voxels)}, few_rounds, clock)
        result["gem_cnn"] = other["gem_cnn"] / pair_voxels
    return result


def network_times(voxels: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds per voxel of the dMRI networks on 192 points."""
    x = torch.randn(voxels, C_IN, 192, requires_grad=True)
    nets = {
        "gevnet-dmri (N = 7)": build("gevnet-dmri"),
        "gevnet-dmri (closed form)": build("gevnet-dmri", samples=None),
        "deepsphere 8-32-32-64": DeepSphere(),
    }
    times = interleaved({name: step(net, x) for name, net in nets.items()}, rounds, clock)
    return {name: t / voxels for name, t in times.items()}


def mnist_times(rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds per sample of training steps with Adam, 2,562 points, batch 64."""
    x, y = torch.randn(64, 1, 2562), torch.randint(0, 10, (64,))
    runs = {}
    for label, samples in (("N = 51", 51), ("N = 11", 11), ("closed form", None)):
        net = build("gevnet-mnist", samples=samples)
        optimiser = torch.optim.Adam(net.parameters(), 1e-3)

        def run(net: nn.Module = net, optimiser: torch.optim.Optimizer = optimiser) -> None:
            optimiser.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()

        runs[label] = run
    return {name: t / 64 for name, t in interleaved(runs, rounds, clock).items()}


def check_all_pairs() -> float:
    """Relative difference between all pairs and the factorised layer with the same weights."""
    torch.manual_seed(0)
    pairs, layer = AllPairs(), GEVConv(healpix(4), FieldType.regular(8), FieldType.regular(12))
    with torch.no_grad():
        for weight in layer.weights.values():
            weight[..., 0, :] = 0  # second order only
        for n in (0, 1):
            full = torch.zeros(36, sum(layer.responses.n_rows(n, m) for m in (0, 1)), 2 * n + 2, 8)
            split = layer.responses.n_rows(n, 0)
            for m, rows in ((0, slice(0, split)), (1, slice(split, None))):
                matrix = layer.matrix(n, m)
                outs = slice(0, 12) if m == 0 else slice(12, 36)
                full[outs, rows] = matrix.view(len(matrix), -1, 2 * n + 3, 8)[:, :, 1:]
            pairs.weights[n].copy_(full.flatten(1))
        x = torch.randn(192, 24, 2)
        return float((pairs(x) - layer(x)).abs().max() / layer(x).abs().max())


def table(*, quick: bool, cpu_time: bool, gem: str | None) -> str:
    """Run everything and describe it."""
    voxels, rounds = (128, 4) if quick else (512, 12)
    clock = time.process_time if cpu_time else time.perf_counter
    layers = layer_times(voxels, 2 if quick else 8, rounds, clock, gem)
    networks = network_times(voxels, rounds, clock)
    mnist = mnist_times(rounds, clock)
    second, ds = layers["second"], networks["deepsphere 8-32-32-64"]
    rows = [
        ("first order, 8 -> 12", f"{layers['first']:.3f} ms/voxel", "", ""),
        (
            "second order, 8 -> 12",
            f"{second:.3f} ms/voxel",
            f"{second / layers['first']:.2f} x first order",
            "1.3 x at most",
        ),
        (
            "all pairs, 8 -> 12",
            f"{layers['all pairs']:.2f} ms/voxel",
            f"{layers['all pairs'] / second:.0f} x second order",
            "40 x at least",
        ),
        *(
            (
                "gem_cnn, first order, 8 -> 12",
                f"{t:.2f} ms/voxel",
                f"{t / second:.1f} x second order",
                "4 x at least",
            )
            for name, t in layers.items()
            if name == "gem_cnn"
        ),
        ("DeepSphere 8-32-32-64", f"{ds:.3f} ms/voxel", "", ""),
        *(
            (name, f"{t:.3f} ms/voxel", f"{t / ds:.2f} x DeepSphere", "1.0 x at most")
            for name, t in networks.items()
            if name.startswith("gevnet")
        ),
        *(
            (f"gevnet-mnist, {name}", f"{t:.2f} ms/sample", "", "3 ms at most")
            for name, t in mnist.items()
        ),
    ]
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    unit = "processor time" if cpu_time else "wall-clock time"
    setting = (
        f"{describe()}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{os.cpu_count()} cores, {platform.machine()}; load average {load}; "
        f"{voxels} voxels of 192 points; fastest of {rounds} interleaved rounds, "
        f"forward and backward, {unit}."
    )
    head = [
        setting,
        f"All pairs and factorised layer agree to {check_all_pairs():.1e} (float32).",
        "",
        "| what | time | ratio | wanted |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--pytorch", action="store_true", help="without compiled kernels")
    parser.add_argument("--gem-cnn", metavar="FOLDER", help="copy of gem_cnn to compare with")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with use("none" if options.pytorch else level()):
        text = table(quick=options.quick, cpu_time=options.cpu_time, gem=options.gem_cnn)
    print(text)
    if options.write:
        write_page(PAGE, f"## Speed (`benchmarks/speed.py`)\n\n{text}\n")


if __name__ == "__main__":
    main()
