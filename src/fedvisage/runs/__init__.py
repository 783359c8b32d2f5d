"""Runs: training from a recipe to a run directory, and evaluation, prediction and export of finished models."""

PRELOAD = "fedvisage.runs.preload"
"""The module that the fork server of local workers imports; it loads torch."""
