"""What each interval and test of group_metrics.json is, in sentences that the report prints."""

from __future__ import annotations

from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION, Kind

_METHODS = {
    "unit": "The unit of all intervals and tests is the participant: several scans of a person "
    "count as one person.",
    "wilson": "Wilson score interval (Wilson 1927), n in participants.",
    "mover": "Balanced accuracy: mean of the recalls, interval from their Wilson limits (MOVER, "
    "Zou and Donner 2008).",
    "mover_paired": "Difference of two models' balanced accuracies on the same participants: "
    "paired MOVER (Newcombe 1998, method 10, averaged over classes).",
    "newcombe": "Area under the ROC curve of two classes: score interval (Newcombe 2006, method "
    "5), n in participants.",
    "boyd": "Average precision of two classes: Wilson interval with n the participants of the "
    "positive class (after Boyd, Eng and Page 2013).",
    "fisher": "Correlation of true and predicted number: Fisher's interval, n in participants.",
    "bootstrap": "Percentile bootstrap over participants, drawn within their class, seeded.",
    "bootstrap_paired": "Difference of two models' mean absolute errors on the same participants: "
    "percentile bootstrap of each participant's difference.",
    "permutation": "Labels exchanged among the participants of each site, predictions as they "
    "are, nothing trained again: tests whether balanced accuracy, or of a number its correlation "
    "with the predictions, is better than chance within sites. Whoever is tested in one fold "
    "trains the others, which at most doubles the variance without an effect; so the distance "
    "from the mean of the permutations is divided by the root of two before it is compared with "
    "theirs, except for a finished model that was trained on other people. p = (1 + permutations "
    "at least as far) / (1 + permutations).",
    "best_of_several": "The p-value of the summary allows for the number of models compared (the "
    "largest of all models in each permutation, Westfall and Young 1993) and of tasks (Holm "
    "1979). Confounds are tested among everybody and without the root of two: a warning too few "
    "costs more than one too many. The figure to be expected of the best model is from choosing "
    "it on a bootstrap sample of participants and testing it on the others (Tsamardinos 2018).",
    "swap": "Two models are compared by swapping them for participants at random, with the same "
    "root of two; over pairs of networks, p is corrected after Holm. The network adds to the "
    "simple models if it is better than every one of them.",
    "roc_band": "Mean of the folds' ROC curves at 101 false positive rates, with one standard "
    "deviation over folds on either side.",
    "calibration": "Ten bins of equal width; the expected calibration error is the mean of "
    "|observed - predicted| over bins, weighted by their scans.",
    "cross_validation": "Intervals say how well these held-out participants pin down the figures; "
    "they do not cover how models trained on another sample would differ. On few participants a "
    "model without information falls below chance: whoever is held out is missing from training.",
}
_OF_KIND: dict[Kind, set[str]] = {
    CLASSIFICATION: {
        "wilson",
        "mover",
        "mover_paired",
        "newcombe",
        "boyd",
        "roc_band",
        "calibration",
    },
    REGRESSION: {"fisher", "bootstrap_paired"},
}
"""Methods that one kind of task has alone."""


def methods_for(kind: Kind) -> dict[str, str]:
    """Give the sentences that hold for a kind of task, by the name of the method."""
    others = set().union(*(names for of, names in _OF_KIND.items() if of != kind))
    return {name: text for name, text in _METHODS.items() if name not in others}
