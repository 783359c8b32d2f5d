"""Train FedPAD at three rendered sites and compare it with sites that train alone.

python examples/train_and_compare.py runs/example
"""

import argparse
from pathlib import Path

import fedvisage as fv


def main() -> None:
    """Train both methods with the same data, seed and amount of work, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("--subjects", type=int, default=12, help="people per site")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--size", type=int, default=64, help="image size in pixels")
    options = parser.parse_args()

    entry = f"subjects={options.subjects} frames=2 size={options.size}"
    changes = {
        "data.sites": {name: f"synth: {name} {entry}" for name in "OCI"},
        "data.target": f"synth: M {entry}",
        "input.size": options.size,
        "training.rounds": options.rounds,
    }
    # `single` trains one model per site; its figures are the mean over the sites.
    runs = [
        fv.run("demo/fedpad", out=options.out / method, changes={"method.name": method, **changes})
        for method in ("fedpad", "single")
    ]
    print(fv.compare(runs))
    for run in runs:
        print(f"{run.metrics['method']}: report in {run.directory / 'report.html'}")


if __name__ == "__main__":
    main()
