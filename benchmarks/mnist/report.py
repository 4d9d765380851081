"""Tables of spherical MNIST from the trainings in a folder: the paper's figures beside ours."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from pages import RESULTS, write_page

from bids_gevnet.nn import zoo
from bids_gevnet.nn.registry import networks
from mnist import figures
from mnist.networks import LARGER, describe
from mnist.training import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHMARKS = Path(__file__).parent.parent
FIGURES = BENCHMARKS / "figures"
PAPER = {"gevnet-mnist": (98.02, 96.91, 97.43), "genet-mnist": (97.30, 95.86, 95.99)}
_NUMBERS = (
    "level",
    "edge",
    "blur",
    "train_images",
    "test_images",
    "epochs",
    "batch_size",
    "learning_rate",
)
COLUMNS = (("NR/NR", False, "NR"), ("NR/R", False, "R"), ("R/R", True, "R"))


@dataclass(frozen=True)
class Group:
    """Trainings that differ in the seed, and in whether images were rotated, only.

    Parameters
    ----------
    results : tuple of dict
        Contents of their `result.json`.
    """

    results: tuple[dict[str, Any], ...]

    @cached_property
    def options(self) -> Options:
        """Of the first of them."""
        return Options(**self.results[0]["options"])

    @property
    def parameters(self) -> int:
        """Learnable numbers of the network."""
        return int(self.results[0]["parameters"])

    def accuracies(self, *, rotated: bool, tested: str) -> list[float]:
        """Per cent of test images of each seed."""
        return [
            100 * result["accuracy"][tested]
            for result in self.results
            if result["options"]["rotated"] == rotated
        ]


def collect(folder: Path) -> list[Group]:
    """Find all finished trainings of a folder, at any depth."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob("result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        same = {k: v for k, v in result["options"].items() if k not in {"seed", "rotated"}}
        found.setdefault(json.dumps(same, sort_keys=True), []).append(result)
    return [Group(tuple(results)) for results in found.values()]


def is_ablation(group: Group) -> bool:
    """Whether a group belongs to the ablation on the number of parameters."""
    return "layer" in group.options.network


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean, and the standard deviation over seeds where there are several."""
    if not values:
        return "not run"
    text = f"{mean(values):.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f} ({len(values)})" if len(values) > 1 else text


def epochs(options: Options) -> str:
    """Say how long it was trained."""
    return f"{options.epochs} epoch" + "s" * (options.epochs > 1)


def what_was_run(options: Options) -> str:
    """Say what decides a training, in words."""
    samples = options.samples or "closed form"
    return (
        f"{options.train_images:,} images, {epochs(options)}, batch {options.batch_size}, "
        f"rate {options.learning_rate:g}, level {options.level}, edge {options.edge:g}°, "
        f"blur {options.blur:g}, "
        f"N = {samples}; {options.test_images:,} test images"
    )


def command(groups: Sequence[Group]) -> str:
    """Write the command that gives a group again, or all groups of the ablation."""
    results = [result["options"] for group in groups for result in group.results]
    options = groups[0].options
    words = ["python benchmarks/spherical_mnist.py --data MNIST --folder RUNS"]
    if is_ablation(groups[0]):
        layers = {group.options.network.split("-mnist-")[1][0] for group in groups}
        words.append(f"--ablation --layers {' '.join(sorted(layers))}")
    else:
        kinds = ["R" if rotated else "NR" for rotated in sorted({r["rotated"] for r in results})]
        words.append(f"--networks {options.network} --train {' '.join(kinds)}")
    words.append("--seeds " + " ".join(str(s) for s in sorted({r["seed"] for r in results})))
    default = Options()
    words += [
        f"--{name.replace('_', '-')} {getattr(options, name):g}"
        for name in _NUMBERS
        if getattr(options, name) != getattr(default, name)
    ]
    return " ".join(words)


def benchmark_table(groups: Sequence[Group]) -> list[str]:
    """NR/NR, NR/R and R/R of each network, with the paper's figures."""
    lines = [
        "| network | parameters | what was run | NR/NR | NR/R | R/R |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for name, paper in PAPER.items():
        own = [group for group in groups if group.options.network == name]
        cells = " | ".join(f"{value:.2f}" for value in paper)
        lines.append(f"| {name} | {networks()[name].paper_parameters} | the paper | {cells} |")
        for group in own:
            about = f"{group.parameters:,} | {what_was_run(group.options)}"
            lines.append(f"| {name} | {about} | {' | '.join(_accuracies(group))} |")
    return lines


def larger_table(groups: Sequence[Group]) -> list[str]:
    """NR/NR, NR/R and R/R of networks that are larger than the paper's."""
    lines = [
        "| network | architecture | parameters | what was run | NR/NR | NR/R | R/R |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for group in groups:
        name = group.options.network
        about = f"{describe(name)} | {group.parameters:,} | {what_was_run(group.options)}"
        lines.append(f"| {name} | {about} | {' | '.join(_accuracies(group))} |")
    return lines


def _accuracies(group: Group) -> list[str]:
    return [
        spread(group.accuracies(rotated=rotated, tested=tested)) for _, rotated, tested in COLUMNS
    ]


def runs_table(groups: Sequence[Group]) -> list[str]:
    """One row per training: seed, commit, minutes of processor time, what the curve ended with."""
    lines = [
        "| training | images | epochs | seed | commit | training + tests | last loss | tests |",
        "|---|---:|---:|---:|---|---:|---:|---|",
    ]
    for group in groups:
        for result in group.results:
            kind = "R" if result["options"]["rotated"] else "NR"
            times = [result[f"{what}_seconds"] / 60 for what in ("training", "testing")]
            tested = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["accuracy"].items())
            lines.append(
                f"| {group.options.network}, {kind} | {group.options.train_images:,} "
                f"| {group.options.epochs} "
                f"| {result['options']['seed']} | {result['commit']} "
                f"| {times[0]:.1f} + {times[1]:.1f} min "
                f"| {result['curve'][-1]['train_loss']:.4f} | {tested} |"
            )
    return lines


def ablation_points(groups: Sequence[Group]) -> dict[int, dict[str, list[figures.Point]]]:
    """Parameters and test errors by number of layers and kind of network."""
    found: dict[int, dict[str, list[figures.Point]]] = {}
    for group in groups:
        kind, layers = re.match(r"(\w+)-mnist-(\d)layer", group.options.network).groups()
        errors = [100 - value for value in group.accuracies(rotated=False, tested="NR")]
        points = found.setdefault(int(layers), {}).setdefault(kind, [])
        points.append(figures.Point(group.parameters, tuple(errors)))
    return found


def ablation_table(groups: Sequence[Group]) -> list[str]:
    """Test errors of pairs of networks of about the same size."""
    lines = [
        "| layers | size | GEVNet | parameters | error, % | GENet | parameters | error, % |",
        "|---:|---:|---|---:|---:|---|---:|---:|",
    ]
    by_name = {group.options.network: group for group in groups}
    for layers, pairs in zoo.ABLATION.items():
        for size, texts in enumerate(pairs, start=1):
            cells = []
            pair = [by_name.get(zoo.ablation_name(k, layers, size)) for k in ("gevnet", "genet")]
            if not any(pair):
                continue
            for group, text in zip(pair, texts, strict=True):
                if group is None:
                    cells.append(f"{text} | | not run")
                    continue
                errors = [100 - a for a in group.accuracies(rotated=False, tested="NR")]
                cells.append(f"{text} | {group.parameters:,} | {spread(errors)}")
            lines.append(f"| {layers} | {size} | {' | '.join(cells)} |")
    return lines


def tables(groups: Sequence[Group]) -> list[str]:
    """All tables, as lines of Markdown."""
    benchmark = [group for group in groups if not is_ablation(group)]
    ablation = [group for group in groups if is_ablation(group)]
    lines = ["### Benchmark", "", "Accuracy on the test images in per cent.", ""]
    lines += [*benchmark_table(benchmark), "", *runs_table(benchmark), ""]
    larger = [group for group in benchmark if group.options.network in LARGER]
    if larger:
        lines += ["Larger networks. The best known with 58,000 parameters: 99.35, 99.34, 99.38."]
        lines += ["", *larger_table(larger), ""]
    lines += [f"    {command([group])}" for group in benchmark]
    if ablation:
        seconds = sum(result["training_seconds"] for group in ablation for result in group.results)
        lines += ["", "### Ablation on the number of parameters", ""]
        lines += [f"NR/NR; {what_was_run(ablation[0].options)}. The paper: 20 epochs, batch 512."]
        commits = sorted({r["commit"] for group in ablation for r in group.results})
        lines += [f"Commit {', '.join(commits)}, {seconds / 60:.0f} minutes of processor time."]
        lines += ["", *ablation_table(ablation), ""]
        lines.append(f"    {command(ablation)}")
    return lines


def write(groups: Sequence[Group]) -> None:
    """Write `results/spherical_mnist.md`, keeping its notes, and the figures."""
    lines = ["## Spherical MNIST (`benchmarks/spherical_mnist.py`)", "", *tables(groups), ""]
    benchmark = [group for group in groups if not is_ablation(group)]
    ablation = [group for group in groups if is_ablation(group)]
    figures.draw_curves(
        {
            ", ".join(
                [g.options.network, f"{g.options.train_images:,} images", epochs(g.options)]
            ): g.results
            for g in benchmark
            if g.options.network in PAPER
        },
        FIGURES / "spherical_mnist_curves.svg",
    )
    lines += ["![Learning curves](../figures/spherical_mnist_curves.svg)", ""]
    if ablation:
        figures.draw_ablation(ablation_points(ablation), FIGURES / "spherical_mnist_ablation.svg")
        lines += ["![Ablation](../figures/spherical_mnist_ablation.svg)", ""]
    write_page(RESULTS / "spherical_mnist.md", "\n".join(lines))
