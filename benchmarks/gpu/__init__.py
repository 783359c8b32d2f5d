"""Measurements on a GPU, as one program without data and network: ``python -m benchmarks gpu`` (docs/gpu.md)."""
