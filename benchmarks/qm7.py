"""QM7: atomisation energies of molecules from potentials on spheres around their atoms.

    python benchmarks/qm7.py --data qm7.npz --folder out --write      # five folds
    python benchmarks/qm7.py --data qm7.npz --folder out --folds 5    # one of them
    torchrun --nproc-per-node 2 benchmarks/qm7.py --data qm7.npz ...  # several processes
    python benchmarks/qm7.py --quick                                  # planted molecules

A GEVNet of the paper's three layers, the last one wider, looks at the sphere of each atom, a
DeepSet adds up the atoms, and both learn what a small MLP on the composition leaves. Train on
four of the five predefined folds, test on the fifth. Started again with the same folder, a run
goes on where it was; folds may be trained one by one, and whatever is finished stands in the
table.
"""

import argparse
import contextlib
import logging
import os
import platform
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from molecules.data import Molecules, Options, plant_molecules, read_qm7
from molecules.training import finished_folds, train_fold
from pages import RESULTS, current_commit, write_page

from bids_gevnet.errors import BidsGevnetError, InputError
from bids_gevnet.learn.train.distributed import StopRequest, join_processes

HERE = Path(__file__).parent
QUICK = Options(
    architecture="5-4v-6",
    phi=(48, 48),
    psi=(16,),
    baseline_steps=0,
    epochs=8,
    set_epochs=24,
    rate=1e-2,
    set_rate=1e-2,
    batch=8,
    orientations=2,
    score_every=8,
)
PAPER = """\
| model | RMSE, kcal/mol | parameters |
|---|---:|---:|
| this run | {ours} | {parameters:,} |
| GEVNet (paper) | 5.57 | 70k |
| Cobb et al., best known | 3.16 | 337k |
| Banerjee et al. | 5.92 | 128k |
| Kondor et al. | 7.97 | 1.1M |
| Cohen et al. | 8.47 | 1.4M |
"""


COLUMNS = (
    "fold",
    "RMSE",
    "MAE",
    "RMSE of the composition alone",
    "RMSE in one orientation",
    "spread over orientations",
    "RMSE in training",
    "processor time",
    "commit",
)


def describe(results: list[dict[str, Any]], options: Options, command: str) -> str:
    """Tables of finished folds, as Markdown."""
    rmse = torch.tensor([result["rmse"] for result in results], dtype=torch.float64)
    count = len(results)
    names = ", ".join(str(result["fold"]) for result in results)
    ours = f"{rmse.mean():.2f}" + (f" ± {rmse.std():.2f}" if count > 1 else "")
    ours += f" (folds {names})" if count > 1 else f" (fold {names} alone)"
    first = results[0]
    lines = [
        f"`{command}`",
        "",
        f"torch {torch.__version__}, {os.cpu_count()} cores, {platform.machine()}. Options: "
        + ", ".join(f"{f.name} {getattr(options, f.name)}" for f in fields(options))
        + ".",
        "",
        PAPER.format(ours=ours, parameters=first["parameters"]),
        f"{first['sphere_parameters']:,} of the parameters are the GEVNet's.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for result in results:
        last = [*result["curves"]["together"], *result["curves"]["set"]][-1]
        cells = [
            str(result["fold"]),
            *(f"{result[key]:.2f}" for key in ("rmse", "mae", "baseline_rmse")),
            *(f"{result[key]:.2f}" for key in ("rmse_one_orientation", "orientation_spread")),
            f"{last['train_rmse']:.2f}",
            f"{result['processor_s']:.0f} s",
            result["commit"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the learning curves of finished folds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for k, result in enumerate(results):
        rows = [*result["curves"]["together"], *result["curves"]["set"]]
        seconds = torch.tensor([row["processor_s"] for row in rows]).cumsum(0).tolist()
        trained = [row["train_rmse"] for row in rows]
        axes.plot(seconds, trained, color=f"C{k}", linewidth=0.7, alpha=0.5)
        scored = [
            (s, row["held_out_rmse"])
            for s, row in zip(seconds, rows, strict=True)
            if row["held_out_rmse"] is not None
        ]
        label = f"fold {result['fold']}"
        axes.plot(*zip(*scored, strict=True), "o-", color=f"C{k}", markersize=2, label=label)
    axes.axhline(5.57, color="black", linewidth=0.8, linestyle="--", label="paper, 5.57")
    axes.set(xlabel="processor seconds", ylabel="RMSE, kcal/mol", yscale="log")
    axes.set_title("QM7: held out (points) and in training (thin)", fontsize=9)
    axes.legend(fontsize=7)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "qm7"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="qm7.npz with R, Z, T and P")
    parser.add_argument("--quick", action="store_true", help="planted molecules, under a minute")
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="1..5")
    parser.add_argument("--folder", type=Path, help="checkpoints, results, table and figure")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="also results/ and figures/")
    for field in fields(Options):
        name = f"--{field.name.replace('_', '-')}"
        several = {"nargs": "+", "type": int} if field.name in ("phi", "psi") else {}
        kind = several or {"type": type(field.default)}
        parser.add_argument(name, **kind, help=f"{field.default} unless told")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick measures planted molecules; --write is for QM7")
    if not set(options.folds) <= {1, 2, 3, 4, 5}:
        parser.error("folds are 1 to 5")
    return options


def chosen_options(arguments: argparse.Namespace) -> Options:
    """Defaults, or those of the quick mode, with what the command line changes."""
    start = QUICK if arguments.quick else Options()
    given = {f.name: getattr(arguments, f.name) for f in fields(Options)}
    changed = {
        k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None
    }
    return Options(
        **{f.name: changed.get(f.name, getattr(start, f.name)) for f in fields(Options)}
    )


def find_molecules(arguments: argparse.Namespace) -> Molecules:
    if arguments.quick:
        return plant_molecules(120)
    if arguments.data is None:
        raise InputError(
            expected="--data FILE with the QM7 molecules",
            found="no --data",
            remedy="make one from qm7.mat of http://quantum-machine.org/datasets, or try --quick",
        )
    return read_qm7(arguments.data)


def run(arguments: argparse.Namespace, folder: Path) -> None:
    """Train the folds asked for, then describe all that are finished."""
    data, options = find_molecules(arguments), chosen_options(arguments)
    folder.mkdir(parents=True, exist_ok=True)
    commit = current_commit()
    with join_processes() as processes, StopRequest().listening() as stop:
        for fold in arguments.folds:
            train_fold(data, fold - 1, options, folder, processes, stop, commit)
        if not processes.first:
            return
    results = finished_folds(data, options, folder)
    words = [Path(word).name for word in sys.argv[1:]]  # where files are is nobody's concern
    command = " ".join(["python", "benchmarks/qm7.py", *words])
    text = describe(results, options, command)
    places = [(folder / "qm7.md", folder / "qm7.svg")]
    if arguments.write:
        places.append((RESULTS / "qm7.md", HERE / "figures" / "qm7.svg"))
    for table, figure in places:
        shown = f"{text}\n![learning curves](../figures/qm7.svg)"
        write_page(table, f"## QM7 (`benchmarks/qm7.py`)\n\n{shown}")
        draw(results, figure)
    print(text)


def main() -> int:
    arguments = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(arguments.threads)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            run(arguments, folder)
        except BidsGevnetError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
