"""Simulated cohorts with known truth."""
