"""Pictures of what was measured, drawn from the tables of benchmarks/results."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_BEFORE, _AFTER, _REFERENCE = "0.75", "tab:blue", "tab:orange"


def write_measured_figures(folder: Path) -> None:
    """Draw every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("cleaning.png", draw_cleaning),
        ("correction.png", draw_correction),
        ("effects.png", draw_effects),
        ("harmonisation.png", draw_harmonisation),
        ("learning.png", draw_learning),
    ):
        figure = draw()
        figure.savefig(folder / name, dpi=130, facecolor="white")
        plt.close(figure)


def errors_of_fa() -> dict[tuple[str, str, str], float]:
    """RMS error of FA on phantoms, by ringing, denoising and unringing: means over seeds."""
    page = (_RESULTS / "cleaning.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| seed \d+, phantom( with ringing)? \| (\w+) \| (\w+) \| ([\d.]+) \|",
        page,
        re.MULTILINE,
    )
    by_kind: dict[tuple[str, str, str], list[float]] = {}
    for ringing, denoising, unringing, error in rows:
        by_kind.setdefault((ringing.strip(), denoising, unringing), []).append(float(error))
    return {kind: fmean(errors) for kind, errors in by_kind.items()}


def draw_cleaning() -> Any:
    """Draw the error of FA by what was done against noise and ringing."""
    titles = {"none": "nothing", "mppca": "MP-PCA", "patch2self": "Patch2Self"}
    errors = sorted(errors_of_fa().items(), key=lambda entry: entry[0][0])
    labels, values, colours = [], [], []
    for (ringing, denoising, unringing), error in errors:
        done = titles[denoising] + (", then unringing" if unringing == "yes" else "")
        labels.append(f"{done.replace('nothing, then ', '')} ({ringing or 'without ringing'})")
        values.append(error)
        colours.append(_BEFORE if done == "nothing" else _AFTER)
    figure, axis = plt.subplots(figsize=(7, 2.9), layout="constrained")
    axis.barh(labels[::-1], values[::-1], color=colours[::-1])
    axis.set(xlabel="error of FA in phantoms (RMS)")
    return figure


def displacements() -> list[tuple[str, float, float]]:
    """Case, mm before and mm after correction, of the held-out simulator in accuracy.md."""
    page = (_RESULTS / "accuracy.md").read_text(encoding="utf-8")
    found = []
    for case, text in re.findall(
        r"^\| second simulator 71, ([^|]+?) \| ([^|]+) \|", page, re.MULTILINE
    ):
        shells = re.findall(r"b (\d+): ([\d.]+) \([^)]*\) mm, ([\d.]+)", text)
        for b_value, after, before in shells:
            several = f", b {b_value}" if len(shells) > 1 else ""
            found.append((f"{case}{several}", float(before), float(after)))
    return found


def draw_correction() -> Any:
    """Draw the displacement of voxels before and after correction, case by case."""
    cases = [case for case in displacements() if "ANTs" not in case[0]]
    (rigid,) = [case for case in displacements() if "ANTs" in case[0]]
    figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
    rows = range(len(cases), 0, -1)
    for row, (_, before, after) in zip(rows, cases, strict=True):
        axis.plot([before, after], [row, row], color="0.85", zorder=0)
    axis.scatter([c[1] for c in cases], rows, color=_BEFORE, label="before")
    axis.scatter(rigid[2], len(cases), color=_REFERENCE, label="rigid registration (ANTs)")
    axis.scatter([c[2] for c in cases], rows, color=_AFTER, label="after")
    axis.set_yticks(list(rows), [c[0] for c in cases])
    axis.set(xscale="log", xlabel="displacement in the brain, mm (RMS)")
    axis.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
    figure.legend(fontsize=8, ncols=3, loc="outside upper center", frameon=False)
    return figure


def site_differences() -> list[tuple[str, float, float]]:
    """Degree, difference between sites before and after, in harmonisation.md."""
    page = (_RESULTS / "harmonisation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| degree (\d): [^|]*\| ([\d.]+) \| ([\d.]+):", page, re.MULTILINE)
    return [(degree, float(before), float(after)) for degree, before, after in rows]


def draw_harmonisation() -> Any:
    """Draw the difference between sites before and after, by degree."""
    rows = site_differences()
    figure, axis = plt.subplots(figsize=(5, 2.8), layout="constrained")
    for offset, column, colour, label in ((-0.2, 1, _BEFORE, "before"), (0.2, 2, _AFTER, "after")):
        places = [i + offset for i in range(len(rows))]
        axis.bar(places, [row[column] for row in rows], 0.4, color=colour, label=label)
    axis.set_xticks(range(len(rows)), [f"degree {row[0]}" for row in rows])
    axis.set(ylabel="|log RISH| between sites")
    axis.legend()
    return figure


def effects() -> list[tuple[str, tuple[float, ...], tuple[float, ...]]]:
    """Effect and people, balanced accuracy with interval of the network and of the best other."""
    page = (_RESULTS / "effects.md").read_text(encoding="utf-8")
    score = r"([\d.]+) \(([\d.]+) to ([\d.]+)\)"
    rows = re.findall(rf"^\| (\w+) \| (\d+) \| {score} \| [^|]+: {score} \|", page, re.MULTILINE)
    return [
        (f"{kind}, {people} a group", tuple(map(float, v[:3])), tuple(map(float, v[3:])))
        for kind, people, *v in rows
    ]


def draw_effects() -> Any:
    """Draw the network beside the best simple model, by kind of effect."""
    rows = effects()[::-1]
    figure, axis = plt.subplots(figsize=(7, 0.8 + 0.36 * len(rows)), layout="constrained")
    for offset, column, colour, label in (
        (0.13, 1, _AFTER, "CKN2 + GEVNet"),
        (-0.13, 2, "0.45", "best simple model"),
    ):
        for place, row in enumerate(rows):
            value, low, high = row[column]
            axis.plot([low, high], [place + offset] * 2, color=colour)
            axis.scatter(value, place + offset, color=colour, label="" if place else label)
    axis.axvline(0.5, color="0.7", linestyle=":")
    axis.set_yticks(range(len(rows)), [row[0] for row in rows])
    axis.set(xlabel="balanced accuracy in people not trained on (95 %)", xlim=(0.2, 1.02))
    figure.legend(fontsize=8, ncols=2, loc="outside upper center", frameon=False)
    return figure


def held_out_accuracies() -> list[tuple[str, float, float, float]]:
    """Model, balanced accuracy and its interval, in learning-micro.md."""
    page = (_RESULTS / "learning-micro.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+?) \| ([\d.]+) \(([\d.]+) to ([\d.]+)\) \|", page, re.MULTILINE)
    return [(name, *map(float, values)) for name, *values in rows]  # type: ignore[misc]


def draw_learning() -> Any:
    """Draw balanced accuracies with their intervals, networks above simple models."""
    rows = held_out_accuracies()
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for place, (name, value, low, high) in enumerate(reversed(rows)):
        network = "GEVNet" in name or name.startswith("CKN")
        colour = _AFTER if network else "0.45"
        axis.plot([low, high], [place, place], color=colour)
        axis.scatter(value, place, color=colour)
    axis.axvline(0.5, color="0.7", linestyle=":")
    axis.set_yticks(range(len(rows)), [row[0] for row in reversed(rows)], fontsize=8)
    axis.set(xlabel="balanced accuracy in people not trained on (95 %)", xlim=(0.2, 1.02))
    return figure
