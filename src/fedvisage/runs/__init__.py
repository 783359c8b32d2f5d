"""Runs: training from a recipe to a run directory, and evaluation, prediction and export of finished models."""
