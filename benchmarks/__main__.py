"""Measure on a GPU (``python -m benchmarks gpu``) or a Ray cluster (``ray``), or run the rows of docs/benchmarks.md."""

import sys


def main() -> None:
    """Import only what the first argument needs: a machine with a GPU may lack the packages of the rows."""
    if sys.argv[1:2] == ["gpu"]:
        from benchmarks.gpu.program import main as measure

        sys.exit(measure(sys.argv[2:]))
    if sys.argv[1:2] == ["ray"]:
        from benchmarks.ray_cluster import main as measure_ray

        sys.exit(measure_ray(sys.argv[2:]))
    from benchmarks.rows import main as run_rows

    run_rows()


if __name__ == "__main__":
    main()
