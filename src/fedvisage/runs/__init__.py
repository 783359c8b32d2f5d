"""Runs: from a recipe to a run directory, and what can be done with a finished one."""
