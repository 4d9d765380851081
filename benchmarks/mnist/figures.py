"""Plots of spherical MNIST as SVG files that are the same bytes every time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

COLOURS = {"gevnet": "tab:blue", "genet": "tab:orange"}
TITLES = {"gevnet": "GEVNet, second order", "genet": "GENet, first order"}


@dataclass(frozen=True)
class Point:
    """Parameters of a network and its test errors in per cent, one per seed."""

    parameters: int
    errors: tuple[float, ...]


@contextmanager
def svg(path: Path, columns: int) -> Iterator[list[Axes]]:
    """Draw in so many axes side by side; no date and no random names in the file."""
    with mpl.rc_context({"svg.hashsalt": "spherical-mnist", "svg.fonttype": "none"}):
        figure, axes = plt.subplots(1, columns, figsize=(3.4 * columns, 3), squeeze=False)
        yield list(axes[0])
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def draw_curves(groups: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Training loss, and errors in training and on test images, after every epoch."""
    with svg(path, 2) as (left, right):
        for number, (title, results) in enumerate(groups.items()):
            for result in results:
                if result["options"]["seed"] != min(r["options"]["seed"] for r in results):
                    continue
                rotated = result["options"]["rotated"]
                curve = result["curve"]
                epochs = [row["epoch"] for row in curve]
                style = {"color": f"C{number}", "marker": "s" if rotated else "o", "ms": 3}
                label = f"{title}, {'R' if rotated else 'NR'}"
                left.plot(epochs, [row["train_loss"] for row in curve], label=label, **style)
                shown = [100 * (1 - row["held_out_accuracy"]) for row in curve]
                right.plot(epochs, shown, label=label, **style)
        left.set(xlabel="epoch", ylabel="training loss", yscale="log")
        right.set(xlabel="epoch", ylabel="error on some test images, %", yscale="log")
        left.legend(fontsize=6)


def draw_ablation(points: Mapping[int, Mapping[str, Sequence[Point]]], path: Path) -> None:
    """Test error against parameters, one plot per number of layers; bars are one deviation."""
    with svg(path, len(points)) as axes:
        for ax, (layers, kinds) in zip(axes, sorted(points.items()), strict=True):
            for kind, found in sorted(kinds.items(), reverse=True):
                line = sorted(found, key=lambda point: point.parameters)
                ax.errorbar(
                    [point.parameters for point in line],
                    [mean(point.errors) for point in line],
                    [stdev(point.errors) if len(point.errors) > 1 else 0 for point in line],
                    color=COLOURS[kind],
                    label=TITLES[kind],
                    marker="o",
                    ms=3,
                    capsize=2,
                )
            ax.set(title=f"{layers} layers", xlabel="parameters", ylabel="test error, %")
        axes[0].legend(fontsize=7)
