"""Draw the results: ROC, precision and recall, calibration, predicted numbers, learning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import (
    FOREGROUND,
    PALETTE,
    SOFT,
    figure,
    plain_label,
    to_svg,
)
from bids_gevnet.report.group.results import (
    Evaluation,
    as_list,
    as_map,
    as_number,
    as_numbers,
    read_value,
)
from bids_gevnet.report.group.study_files import FoldModel

_SIZE = (3.5, 3.4)
_MOST_POINTS = 2000  # above, dots are pixels of one picture and not shapes of their own
_LEGEND: Mapping[str, Any] = {
    "fontsize": 8.5,
    "labelcolor": SOFT,
    "borderpad": 0.2,
    "handlelength": 1.6,
    "labelspacing": 0.3,
}


def _square(ax: Any, x: str, y: str) -> None:
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xticks([0, 0.5, 1])
    ax.set_yticks([0, 0.5, 1])
    ax.set_aspect("equal")
    ax.set_xlabel(x)
    ax.set_ylabel(y)


def draw_roc(evaluation: Evaluation, *, name: str) -> Markup | None:
    """Draw the curve of every fold, their mean with its band, and all scans together."""
    if not any(entry.get("pooled") or as_list(entry.get("folds")) for entry in evaluation.roc):
        return None
    several = len(evaluation.roc) > 1
    with figure(*_SIZE) as (drawing, ax):
        ax.plot([0, 1], [0, 1], ":", color=SOFT, lw=1)
        for number, entry in enumerate(evaluation.roc):
            colour = PALETTE[number % len(PALETTE)]
            for fold in map(as_map, [] if several else as_list(entry.get("folds"))):
                rates = as_numbers(fold.get("fpr")), as_numbers(fold.get("tpr"))
                if len(rates[0]) == len(rates[1]):
                    ax.plot(*rates, color=SOFT, lw=0.7, alpha=0.6)
            # One fold, as of a finished model, is all scans: it has no mean beside them.
            _band(ax, entry, colour, several=several or len(evaluation.folds) == 1)
            pooled = as_map(entry.get("pooled"))
            rates = as_numbers(pooled.get("fpr")), as_numbers(pooled.get("tpr"))
            if rates[0] and len(rates[0]) == len(rates[1]):
                which = plain_label(str(entry.get("positive")), 12) if several else "all scans"
                style = "-" if several else "--"
                ax.plot(*rates, style, color=colour if several else FOREGROUND, lw=1.3,
                        label=f"{which}{_area(pooled.get('auc'))}")  # fmt: skip
        _square(ax, "False positive rate", "True positive rate")
        ax.legend(loc="lower right", **_LEGEND)
        area = evaluation.value("roc_auc").text
        whose = "each fold and their mean" if len(evaluation.folds) > 1 else "all scans"
        return to_svg(drawing, name, f"ROC curve of {whose}; area {area}.")


def _band(ax: Any, entry: Mapping[str, Any], colour: str, *, several: bool) -> None:
    grid, mean = as_numbers(entry.get("grid")), as_numbers(entry.get("mean"))
    low, high = as_numbers(entry.get("low")), as_numbers(entry.get("high"))
    if several or not grid or not len(grid) == len(mean) == len(low) == len(high):
        return
    ax.fill_between(grid, low, high, color=colour, alpha=0.2, lw=0)
    ax.plot(grid, mean, color=colour, lw=2, label="mean of folds")


def _area(value: Any) -> str:
    number = as_number(value)
    return "" if number is None else f", {number:.2f}"


def draw_pr(evaluation: Evaluation, *, name: str) -> Markup | None:
    """Draw precision against recall of every fold and of all scans together."""
    if not any(as_map(entry.get("pooled")) for entry in evaluation.pr):
        return None
    several = len(evaluation.pr) > 1
    with figure(*_SIZE) as (drawing, ax):
        for number, entry in enumerate(evaluation.pr):
            colour = PALETTE[number % len(PALETTE)]
            for fold in map(as_map, [] if several else as_list(entry.get("folds"))):
                curve = as_numbers(fold.get("recall")), as_numbers(fold.get("precision"))
                if len(curve[0]) == len(curve[1]):
                    ax.plot(*curve, color=SOFT, lw=0.7, alpha=0.6, drawstyle="steps-post")
            pooled = as_map(entry.get("pooled"))
            curve = as_numbers(pooled.get("recall")), as_numbers(pooled.get("precision"))
            which = plain_label(str(entry.get("positive")), 12) if several else "all scans"
            if len(curve[0]) == len(curve[1]):
                area = _area(pooled.get("average_precision"))
                ax.plot(*curve, color=colour, lw=2, drawstyle="steps-post", label=f"{which}{area}")
            share = as_number(entry.get("prevalence"))
            if share is not None:
                ax.axhline(share, color=colour if several else SOFT, lw=1, ls=":")
        _square(ax, "Recall", "Precision")
        ax.legend(loc="lower left", **_LEGEND)
        area = evaluation.value("average_precision").text
        return to_svg(drawing, name, f"Precision against recall; average precision {area}.")


def draw_calibration(evaluation: Evaluation, *, name: str) -> Markup | None:
    """Draw the observed frequency of a class against its predicted probability."""
    bins = [as_map(entry) for entry in as_list(evaluation.calibration.get("bins"))]
    rows = [
        (as_number(b.get("predicted")), read_value(b.get("observed")), as_number(b.get("n")))
        for b in bins
    ]
    known = [
        (x, value, n or 0) for x, value, n in rows if x is not None and value.value is not None
    ]
    if not known:
        return None
    with figure(*_SIZE, nrows=2, sharex=True, height_ratios=[4.2, 1]) as (drawing, axes):
        upper, lower = axes
        upper.plot([0, 1], [0, 1], ":", color=SOFT, lw=1)
        for x, value, _ in known:
            if value.low is not None and value.high is not None:
                upper.plot([x, x], [value.low, value.high], color=PALETTE[0], lw=1, alpha=0.6)
        upper.plot(
            [x for x, _, _ in known], [value.value for _, value, _ in known], "o-",
            color=PALETTE[0], ms=5, lw=0.8,
        )  # fmt: skip
        upper.set_ylim(-0.03, 1.03)
        upper.set_yticks([0, 0.5, 1])
        upper.set_ylabel("Observed")
        lower.bar([x for x, _, _ in known], [n for _, _, n in known], width=0.04, color=SOFT)
        lower.set_ylabel("Scans")
        lower.set_xlabel("Predicted probability")
        lower.set_xlim(-0.02, 1.02)
        lower.set_xticks([0, 0.5, 1])
        drawing.align_ylabels(axes)
        return to_svg(
            drawing, name,
            "Observed share against predicted probability; calibration error "
            f"{evaluation.value('ece').text}.",
        )  # fmt: skip


def draw_scatter(
    evaluation: Evaluation,
    *,
    target: str,
    unit: str,
    name: str,
    most_points: int = _MOST_POINTS,
) -> Markup | None:
    """Draw predicted against true numbers, a colour and shape for each fold, and equality."""
    truth = as_numbers(evaluation.scatter.get("truth"))
    predicted = as_numbers(evaluation.scatter.get("predicted"))
    folds = as_numbers(evaluation.scatter.get("fold"))
    if not truth or not len(truth) == len(predicted) == len(folds):
        return None
    unit = f" ({plain_label(unit, 12)})" if unit else ""
    with figure(_SIZE[0] + 1.2, _SIZE[1] + 0.6) as (drawing, ax):
        low, high = min(*truth, *predicted), max(*truth, *predicted)
        margin = 0.05 * (high - low) or 1.0
        ends = [low - margin, high + margin]
        ax.plot(ends, ends, ":", color=SOFT, lw=1)
        several = len(set(folds)) > 1
        for number, fold in enumerate(sorted(set(folds))):
            chosen = [i for i, other in enumerate(folds) if other == fold]
            ax.plot(
                [truth[i] for i in chosen], [predicted[i] for i in chosen],
                "os^vD"[number % 5], ms=4.5, color=PALETTE[number % len(PALETTE)], alpha=0.85,
                label=f"fold {fold:.0f}" if several else None,
                rasterized=len(truth) > most_points,
            )  # fmt: skip
        ax.set_xlim(*ends)
        ax.set_ylim(*ends)
        ax.set_aspect("equal")
        ax.set_xlabel(f"True {plain_label(target, 24)}{unit}")
        ax.set_ylabel(f"Predicted {plain_label(target, 24)}{unit}")
        if several and len(set(folds)) <= 10:
            ax.legend(loc="upper left", **_LEGEND)
        figures = f"correlation {evaluation.value('correlation').text}, mean absolute error "
        return to_svg(
            drawing,
            name,
            f"Predicted against true {plain_label(target, 24)} of held-out scans; {figures}"
            f"{evaluation.value('mae').text}.",
        )


def draw_learning(folds: Sequence[FoldModel], *, name: str) -> Markup | None:
    """Draw loss and accuracy, or error, over the epochs: folds thin and their mean thick."""
    curves = [model.curve for model in folds if model.curve.get("epoch")]
    if not curves:
        return None
    figure_of, titles = "accuracy", ("Cross entropy", "Accuracy")
    if "train_error" in curves[0]:
        figure_of, titles = "error", ("Mean squared error (SD²)", "Mean absolute error")
    with figure(6.8, 2.7, ncols=2) as (drawing, axes):
        for ax, what, title in zip(axes, ("loss", figure_of), titles, strict=True):
            for part, colour, label in (
                ("train", PALETTE[0], "training (mixed samples)"),
                ("held_out", PALETTE[1], "held out"),
            ):
                _draw_curves(ax, curves, f"{part}_{what}", colour, label)
            ax.set_xlabel("Epoch")
            ax.set_ylabel(title)
            ax.xaxis.get_major_locator().set_params(integer=True)
            if what == "accuracy":
                ax.set_ylim(-0.02, 1.02)
            else:
                ax.set_ylim(bottom=0)
                if what == "loss" and ax.get_legend_handles_labels()[0]:
                    ax.legend(loc="upper right", **_LEGEND)
        column = f"held_out_{figure_of}"
        last = [c[column][-1] for c in curves if c.get(column)]
        told = f" Held-out {figure_of} at the end {np.nanmean(last):.2f}." if _any(last) else ""
        return to_svg(drawing, name, f"Learning curves of {len(curves)} folds.{told}")


def _any(values: Sequence[float]) -> bool:
    return bool(np.isfinite(values).any()) if len(values) else False


def _draw_curves(
    ax: Any, curves: Sequence[Mapping[str, list[float]]], key: str, colour: str, label: str
) -> None:
    drawn = [(c["epoch"], c[key]) for c in curves if key in c and _any(c[key])]
    for epochs, values in drawn:
        ax.plot(epochs, values, color=colour, lw=0.7, alpha=0.45)
    if drawn:
        length = min(len(values) for _, values in drawn)
        mean = np.mean([values[:length] for _, values in drawn], axis=0)
        marker = "o" if length < 3 else ""
        ax.plot(drawn[0][0][:length], mean, marker=marker, ms=4, color=colour, lw=2, label=label)
