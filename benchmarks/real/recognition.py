"""Measure federated training from a published face network: start, result and their average on people kept apart.

    python -m benchmarks.real.recognition PEOPLE WEIGHTS [--as mobilefacenet-dw] [--out WORK] [--seeds 3] [--rate 0.001]

PEOPLE contains photographs aligned to 112×112, one folder per person; people with one photograph are left out. WEIGHTS
is a published file that `fedvisage model convert --as` reads. Half of the people evaluate, the others train at four
sites, two gentle rounds of FedAvg. A later call reuses the files in WORK.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import fedvisage as fv
from fedvisage.base.progress import discard
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.importing import import_dataset
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.sources import without_part
from fedvisage.federation.method import RESULT, START
from fedvisage.federation.server import members_of
from fedvisage.metrics.similarity import label_features
from fedvisage.metrics.verification import Verification, verify_within
from fedvisage.starts.convert import convert
from fedvisage.tasks.recognition.benchmarks import share_of

FARS = (1e-5, 1e-4, 1e-3)
SITES, APART = {f"site{part}": f"part={part}/8" for part in range(5, 9)}, "part=1-4/8"


def prepare(photographs: Path, weights: Path, network: str, out: Path, *, heldout: float) -> tuple[Path, Path]:
    """Import the people with two photographs and convert the published weights, unless an earlier call has."""
    out.mkdir(parents=True, exist_ok=True)
    people, start = out / "people", out / "start.safetensors"
    if not people.exists():
        settings = ImportOptions(size=112, aligned=True, least=2, heldout=heldout, test=0.2)
        import_dataset("identities", photographs, people, discard, name="people", options=settings)
    if not start.exists():
        convert(weights, network, start)
    return people, start


def train(out: Path, people: Path, start: Path, network: dict[str, Any], rate: float, seed: int) -> fv.Run:
    """Train gently from the start and keep it beside the result, or return the run of an earlier call."""
    recipe = {
        "method": {"name": "fedavg", "network": network, "centres": "mean-features"},
        "data": {"sites": {name: f"{people} {part}" for name, part in SITES.items()}},
        "input": {"size": 112, "colour": "rgb"},
        "training": {
            "rounds": 2,
            "local": {"epochs": 1},
            "optimizer": {"name": "sgd", "lr": rate, "momentum": 0.9, "clip_norm": 5},
            "batch": 16,
            "augment": {"flip": 0.5},
            "start": str(start),
            "statistics": "frozen",
            "keep": "average",
        },
        "runtime": {"threads": 1, "seed": seed},
    }
    return fv.run(recipe, out=out, resume=True, quiet=True)


def verify(run: fv.Run, people: Path) -> dict[str, Verification]:
    """Return the verification rates of start, result and average on the people kept apart."""
    model = run.model
    view = share_of(View.of(PreparedSet.open(people)), without_part(f"{people} {APART}")[1])
    identity = np.unique(view.subjects, return_inverse=True)[1]
    rates = {}
    for name, weights in {**members_of(model.saved.finished), "average": model.saved.finished}.items():
        model.scorer.load(weights)
        rates[name] = verify_within(label_features(model.scorer.embeddings(view).numpy(), identity), FARS)
    return rates


def main() -> None:
    """Print the rates per seed, and the figures of each site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("people", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--as", dest="network", default="mobilefacenet-dw")
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("build/real-recognition"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.001)
    options = parser.parse_args()
    people, start = prepare(options.people, options.weights, options.network, options.out, heldout=0.25)
    network = {"name": options.network, "embedding": options.embedding}
    for seed in range(options.seeds):
        run = train(options.out / f"rate{options.rate:g}-seed{seed}", people, start, network, options.rate, seed)
        rates = verify(run, people)
        counts = rates[START]
        print(f"seed {seed}, {counts.genuine:,} genuine and {counts.impostors:,} impostor pairs of people kept apart")
        for name in (START, RESULT, "average"):
            print(f"  {name:8}" + "".join(f"  TAR@{far:g} {rates[name].tar[far]:.2%}" for far in FARS))
        kept = run.metrics.part("kept")
        for site in SITES:
            before, after = (kept.part(f"{name}.{site}").rates("tar") for name in (START, RESULT))
            print(f"  {site}: {before} → {after}")


if __name__ == "__main__":
    main()
