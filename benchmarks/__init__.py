"""Measurements behind every claim of speed or memory; ``python -m benchmarks`` runs all, into docs/benchmarks.md."""
