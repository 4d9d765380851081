"""Spherical MNIST: the paper's benchmark and its ablation on the number of parameters.

    python benchmarks/spherical_mnist.py --data MNIST --folder RUNS --write
    python benchmarks/spherical_mnist.py --data MNIST --folder RUNS --networks genet-mnist
    python benchmarks/spherical_mnist.py --data MNIST --folder RUNS --ablation --epochs 2
    python benchmarks/spherical_mnist.py --data MNIST --folder RUNS --quick
    torchrun --standalone --nproc-per-node 2 benchmarks/spherical_mnist.py --data MNIST ...

Each image is put on an icosphere by stereographic projection, and rotated at random, one rotation
per image (the generator of Cohen et al. draws one per 500). A training on unrotated images (NR)
is tested on unrotated and on rotated ones, NR/NR and NR/R; one on rotated images (R) gives R/R.

A run that was interrupted, or killed, resumes from its last checkpoint when the same command is
given again; what is finished is not done again. `--write` makes the tables and plots of
`benchmarks/results/spherical_mnist.md` from all that RUNS holds.
"""

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path

import torch
from mnist import report
from mnist.networks import LARGER
from mnist.training import Options, make_job, train

from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.learn.train.distributed import StopRequest, join_processes
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.nn import zoo

KINDS = ("gevnet", "genet")
NAMES = f"of the zoo (python -m bids_gevnet.nn.zoo), or {', '.join(LARGER)}"
QUICK = {
    "train_images": 256,
    "test_images": 100,
    "epochs": 1,
    "batch_size": 32,
    "curve_images": 50,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    default = Options()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the four standard MNIST files")
    add("--folder", type=Path, required=True, help="where trainings are kept")
    add("--networks", nargs="+", default=["gevnet-mnist"], metavar="NAME", help=NAMES)
    add("--train", nargs="+", choices=["NR", "R"], default=["NR", "R"])
    add("--seeds", nargs="+", type=int, default=[0])
    add("--ablation", action="store_true", help="2, 3, 4 layers, five sizes, both orders, NR/NR")
    add("--layers", nargs="+", type=int, default=sorted(zoo.ABLATION), choices=[2, 3, 4])
    add("--quick", action="store_true", help="both networks and one ablation pair, few images")
    add("--write", action="store_true", help="write results/spherical_mnist.md and the figures")
    add("--level", type=int, default=default.level, help="icosphere")
    add("--edge", type=float, default=default.edge, help="degrees from pole to image's sides")
    add("--blur", type=float, default=default.blur, help="of the image, in pixels")
    add("--nonlinearity-samples", type=int, default=default.samples, help="0: closed form")
    add("--train-images", type=int, default=default.train_images)
    add("--test-images", type=int, default=default.test_images)
    add("--epochs", type=int, default=default.epochs)
    add("--batch-size", type=int, default=default.batch_size)
    add("--accumulate", type=int, default=default.accumulate)
    add("--learning-rate", type=float, default=default.learning_rate)
    add("--precision", choices=["float32", "bfloat16", "auto"], default=default.precision)
    add("--threads", type=int, help="of each process; all cores if not given")
    return parser.parse_args(arguments)


def list_trainings(options: argparse.Namespace) -> list[Options]:
    """All trainings that the command line asks for, the shortest way to each figure first."""
    common = Options(
        level=options.level,
        edge=options.edge,
        blur=options.blur,
        samples=options.nonlinearity_samples or None,
        train_images=options.train_images,
        test_images=options.test_images,
        epochs=options.epochs,
        batch_size=options.batch_size,
        accumulate=options.accumulate,
        learning_rate=options.learning_rate,
        precision=options.precision,
    )
    if options.quick:
        common = replace(common, **QUICK)
        pair = [zoo.ablation_name(kind, 2, 1) for kind in KINDS]
        runs = [replace(common, network=name) for name in pair]
        return [*_benchmark(common, [f"{kind}-mnist" for kind in KINDS], [0], ["NR", "R"]), *runs]
    if options.ablation:
        names = [
            zoo.ablation_name(kind, layers, size)
            for layers in options.layers
            for size in range(1, 6)
            for kind in KINDS
        ]
        return _benchmark(common, names, options.seeds, ["NR"])
    return _benchmark(common, options.networks, options.seeds, options.train)


def _benchmark(
    common: Options, networks: list[str], seeds: list[int], train_on: list[str]
) -> list[Options]:
    return [
        replace(common, network=network, rotated=kind == "R", seed=seed)
        for network in networks
        for seed in seeds
        for kind in train_on
    ]


def run(options: argparse.Namespace) -> None:
    """Train all, then write the tables if asked."""
    jobs = [make_job(one, options.data, options.folder) for one in list_trainings(options)]
    with join_processes() as processes, StopRequest().listening() as stop:
        progress = TrainingProgress(len(jobs), active=processes.first)
        for job in jobs:
            train(job, processes, stop, progress)
        if processes.first:
            groups = report.collect(options.folder)
            print("\n".join(report.tables(groups)))
            if options.write:
                report.write(groups)


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code."""
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        run(options)
    except BidsGevnetError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    finally:
        torch.set_num_threads(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
