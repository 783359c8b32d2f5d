"""Train with your own images: arrays in memory become the data of sites.

    python examples/own_dataset.py runs/example

The images here are rendered. Replace `load_images` by a function that reads face crops of your own.
"""

import argparse
from pathlib import Path

import numpy as np

import fedvisage as fv
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import resolve


def load_images(domain: str, cache: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return square RGB crops (uint8, N×S×S×3), labels (1: bona fide, 0: attack), and the person in each crop."""
    rendered = PreparedSet.open(resolve(f"synth: {domain} subjects=8 frames=1 size=64", cache=cache))
    return np.asarray(rendered.images), rendered.rows.label, rendered.rows.subject.tolist()


def main() -> None:
    """Make one dataset per site and one for the target, train FedPAD, and print its error rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of the run and of the datasets")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()

    cache = options.out / "cache"
    datasets = {}
    for site, domain in {"bank": "O", "border": "C", "phone": "I", "target": "M"}.items():
        images, labels, people = load_images(domain, cache)
        # No person is in both splits: a quarter of the people set the threshold.
        datasets[site] = fv.dataset(images, labels, subjects=people, name=site, cache=cache)
    target = datasets.pop("target")
    recipe = {
        "method": "fedpad",
        "data": {
            "sites": {name: str(prepared.path) for name, prepared in datasets.items()},
            "target": str(target.path),
        },
        "input": {"size": 64},
        "training": {"rounds": options.rounds, "local": {"epochs": 1}},
    }
    run = fv.run(recipe, out=options.out / "run")
    print(f"target: HTER {100 * run.metrics['hter']:.1f} %, AUC {100 * run.metrics['auc']:.1f} %")


if __name__ == "__main__":
    main()
