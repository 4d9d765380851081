"""Plots of spherical MNIST as SVG files that are the same bytes every time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter, ScalarFormatter

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
def svg(path: Path, columns: int, height: float = 3) -> Iterator[list[Axes]]:
    """Draw in so many axes side by side; no date and no random names in the file."""
    with mpl.rc_context({"svg.hashsalt": "spherical-mnist", "svg.fonttype": "none"}):
        figure, axes = plt.subplots(1, columns, figsize=(3.4 * columns, height), squeeze=False)
        yield list(axes[0])
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def between_checkpoints(trace: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    """Thousands of images seen so far, with mean loss and error in per cent since the row before.

    Parameters
    ----------
    trace : sequence of (epoch, step, loss_sum, correct, seen)
        Sums since the beginning of the row's epoch.
    """
    points, total = [], 0.0
    before = (0.0, 0.0, 0.0, 0.0)
    for epoch, _, *sums in trace:
        loss, correct, seen = (
            now - then
            for now, then in zip(
                sums, before[1:] if epoch == before[0] else (0, 0, 0), strict=True
            )
        )
        total += seen
        points.append((total / 1000, loss / seen, 100 * (1 - correct / seen)))
        before = (epoch, *sums)
    return points


def draw_curves(groups: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Loss and error in training against images seen; error of the whole test as stars."""
    with svg(path, 2, height=4.5) as (left, right):
        traced = [(t, r) for t, results in groups.items() for r in results if r.get("trace")]
        for number, (title, result) in enumerate(traced):
            kind = "R" if result["options"]["rotated"] else "NR"
            images, losses, errors = zip(*between_checkpoints(result["trace"]), strict=True)
            label = f"{title}, {kind}, seed {result['options']['seed']}"
            left.plot(images, losses, color=f"C{number}", label=label)
            right.plot(images, errors, color=f"C{number}")
            for marker, (tested, accuracy) in zip("*x", result["accuracy"].items(), strict=False):
                style = {"color": f"C{number}", "linestyle": "none", "marker": marker}
                error = 100 * (1 - accuracy)
                right.plot(images[-1], error, label=f"{kind}/{tested}: {error:.2f} %", **style)
        left.set(xlabel="thousands of images seen", ylabel="training loss", yscale="log")
        right.set(xlabel="thousands of images seen", ylabel="error, %", yscale="log")
        right.set_yticks([1, 2, 5, 10, 20, 50])
        right.yaxis.set_major_formatter(ScalarFormatter())
        right.yaxis.set_minor_formatter(NullFormatter())
        if traced:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "fontsize": 6}
            left.legend(**below)
            title = "after training, all test images"
            right.legend(**below, ncols=2, title=title, title_fontsize=6)


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
