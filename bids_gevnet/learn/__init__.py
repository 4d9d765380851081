"""Cohort, folds, training, evaluation."""
