"""Peak memory and time of a compound network for growing volumes, each in its own process.

    python benchmarks/memory.py                       # ckn2+gevnet, training step and inference
    python benchmarks/memory.py --network ckn2+deepsphere --threads 1
    python benchmarks/memory.py --write               # also benchmarks/results/memory.md

A volume is a head-shaped ellipsoid (40 % of the box, as a brain in MNI space) of random signal in
96 directions; the largest, 77 x 95 x 77 = 563,255 voxels, is the paper's. A training step is
forward, backward and one step of Adam. Memory is the peak resident set of the process
(`getrusage`). "Beyond" is that peak minus the scan itself and minus what the process holds before
it has a scan (Python, torch, the network).

Training is measured twice: with the default pieces, which hold the small maps between two
normalisations of the CKN, and with nothing kept between passes, when only the brain voxels of the
CKN's output and their gradient (1/20 of the scan each) grow with the scan, but the CKN is computed
again for each normalisation.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

SIZES = ((24, 29, 24), (48, 60, 48), (61, 75, 61), (77, 95, 77))
FLAT = "training, nothing kept"


def peak_mb() -> float:
    """Highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_scan(size: tuple[int, ...]):
    """Random scan (1, 96, X, Y, Z) and mask (1, X, Y, Z), made without a copy of the scan."""
    import torch

    axes = [torch.linspace(-1, 1, n) for n in size]
    radius = sum(a.square() for a in torch.meshgrid(*axes, indexing="ij"))
    mask = radius < 0.85  # pi/6 * 0.85^1.5 = 41 % of the box
    scan = torch.rand(96, *size, generator=torch.Generator().manual_seed(0))
    scan.mul_(mask)
    return scan[None], mask[None]


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Run one step in this process."""
    import torch

    from bids_gevnet.nn.ckn import keep_on_sphere
    from bids_gevnet.nn.compound import Pieces
    from bids_gevnet.nn.registry import build

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    pieces = {k: v for k, v in vars(options).items() if k in Pieces.__dataclass_fields__}
    if options.mode == FLAT:
        pieces |= {"keep_volumes": False, "keep_sphere": False}
    network = build(options.network, pieces=Pieces(**pieces))
    before = peak_mb()
    scan, mask = make_scan(options.size)
    start, cpu = time.perf_counter(), time.process_time()
    if options.mode != "inference":
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-5)
        keep_on_sphere(optimizer, network)
        loss = torch.nn.functional.cross_entropy(network(scan, mask), torch.tensor([1]))
        loss.backward()
        optimizer.step()
    else:
        network.eval()
        with torch.inference_mode():
            network(scan, mask)
    return {
        "voxels": mask.numel(),
        "input": scan.nbytes / 2**20,
        "peak": peak_mb(),
        "beyond": peak_mb() - before - scan.nbytes / 2**20,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
    }


def measure_apart(
    options: argparse.Namespace, mode: str, size: tuple[int, ...]
) -> dict[str, float]:
    """Run one step in a fresh process, so that its peak is its own."""
    config = vars(options) | {"mode": mode, "size": size}
    command = [sys.executable, __file__, "--child", json.dumps(config)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(options: argparse.Namespace) -> str:
    """Markdown tables, printed line by line as the figures come in."""
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    say(f"`python benchmarks/memory.py {' '.join(sys.argv[1:])}`".replace(" `", "`"))
    say("")
    say(f"{options.network}, {options.threads} threads, Python {platform.python_version()}.")
    for mode in options.modes:
        say("")
        say(f"| {mode}: voxels | input MB | peak MB | beyond MB | wall s | CPU s |")
        say("|---:|---:|---:|---:|---:|---:|")
        for size in SIZES[options.first :]:
            row = measure_apart(options, mode, size)
            say(
                f"| {row['voxels']:,} | {row['input']:.0f} | {row['peak']:.0f} "
                f"| {row['beyond']:.0f} | {row['seconds']:.0f} | {row['cpu']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="ckn2+gevnet")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=["training", FLAT, "inference"],
        default=["training", FLAT, "inference"],
    )
    parser.add_argument("--first", type=int, default=0, help="skip so many of the smaller volumes")
    parser.add_argument("--volume-voxels", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--sphere-voxels", type=int, default=argparse.SUPPRESS)
    for part in ("volumes", "sphere"):
        parser.add_argument(
            f"--keep-{part}", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS
        )
    parser.add_argument("--write", action="store_true", help="write results/memory.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.child:
        print(json.dumps(measure(argparse.Namespace(**json.loads(options.child)))))
        return
    text = report(options)
    if options.write:
        from pages import RESULTS, write_page  # late: a child measures its own memory

        write_page(
            RESULTS / "memory.md", f"# Memory\n\n{__doc__.split(chr(10) * 2, 2)[2]}\n{text}"
        )


if __name__ == "__main__":
    main()
