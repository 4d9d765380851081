"""Figures of held-out predictions with intervals: scikit-learn's estimates, our intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from bids_gevnet.learn.evaluate.curves import HeldOut, calibrated_event, calibration_gaps
from bids_gevnet.learn.evaluate.intervals import (
    NOTHING,
    Resamples,
    Value,
    mover_mean,
    newcombe,
    percentile_interval,
    wilson,
)


def measure(held_out: HeldOut, draws: Resamples) -> dict[str, Any]:
    """Figures of some held-out predictions, with intervals.

    Where a class is missing, what needs all classes has no value.
    """
    from sklearn import metrics

    truth, predicted = held_out.truth, held_out.predicted
    classes = np.arange(len(held_out.labels))
    accuracy = float(metrics.accuracy_score(truth, predicted))
    recalls = [
        wilson(float((predicted[truth == k] == k).mean()), held_out.participants(k))
        if (truth == k).any()
        else NOTHING
        for k in classes.tolist()
    ]
    balanced = mover_mean(recalls)
    if held_out.complete:
        value = float(metrics.balanced_accuracy_score(truth, predicted))
        balanced = Value(**(balanced | {"value": value}))
    return {
        "n_scans": len(held_out),
        "n_participants": held_out.participants(),
        "accuracy": wilson(accuracy, held_out.participants()),
        "balanced_accuracy": balanced,
        "roc_auc": _area(held_out, draws),
        "average_precision": _precision(held_out, draws),
        **_losses(held_out, draws),
        "recall": [
            {"label": label} | value for label, value in zip(held_out.labels, recalls, strict=True)
        ],
        "confusion": metrics.confusion_matrix(truth, predicted, labels=classes).tolist(),
    }


def _area(held_out: HeldOut, draws: Resamples) -> Value:
    """Area under the ROC curve; with more than two classes, the mean of one against the rest."""
    from sklearn.metrics import roc_auc_score

    if not held_out.complete:
        return NOTHING
    sides = list(held_out.sides())
    value = float(np.mean([roc_auc_score(truth, chance) for _, truth, chance in sides]))
    if len(sides) == 1:
        return newcombe(value, held_out.participants(0), held_out.participants(1))
    replicates = np.mean([draws.areas(truth, chance) for _, truth, chance in sides], axis=0)
    return percentile_interval(value, replicates)


def _precision(held_out: HeldOut, draws: Resamples) -> Value:
    """Average precision; with more than two classes, the mean of one against the rest."""
    from sklearn.metrics import average_precision_score

    if not held_out.complete:
        return NOTHING
    sides = list(held_out.sides())
    value = float(np.mean([average_precision_score(truth, chance) for _, truth, chance in sides]))
    if len(sides) == 1:
        return wilson(value, held_out.participants(1), method="boyd")
    replicates = np.mean([draws.precisions(truth, chance) for _, truth, chance in sides], axis=0)
    return percentile_interval(value, replicates)


def _losses(held_out: HeldOut, draws: Resamples) -> dict[str, Value]:
    """Brier score, log loss and expected calibration error.

    With two classes Brier's score is that of the second class's probability, from 0 to 1; with
    more, the sum over classes, from 0 to 2.
    """
    from sklearn import metrics

    truth, chances = held_out.truth, held_out.probabilities
    classes = np.arange(len(held_out.labels))
    of_truth = np.clip(chances[np.arange(len(truth)), truth], np.finfo(np.float64).eps, 1)
    squares = np.square(chances - np.eye(len(classes))[truth]).sum(axis=1)
    if len(classes) == 2:
        squares = squares / 2
        brier = float(metrics.brier_score_loss(truth == 1, chances[:, 1]))
    else:
        brier = float(metrics.mean_squared_error(np.eye(len(classes))[truth], chances))
        brier *= len(classes)
    loss = float(metrics.log_loss(truth, chances, labels=classes))
    outcome, chance, _ = calibrated_event(held_out)
    gaps = calibration_gaps(outcome, chance)
    errors = np.abs(draws.weights @ gaps).sum(axis=1) / draws.weights.sum(axis=1)
    error = float(np.abs(gaps.sum(axis=0)).sum() / len(chance))
    return {
        "brier": percentile_interval(brier, draws.means(squares)),
        "log_loss": percentile_interval(loss, draws.means(-np.log(of_truth))),
        "ece": percentile_interval(error, errors),
    }
