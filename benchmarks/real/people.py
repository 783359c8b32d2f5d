"""Compare FedFR with FedAvg from a published start on five folds of people (decision 0061).

    python -m benchmarks.real.people PEOPLE WEIGHTS [--out WORK] [--folds 0,1,2]

PEOPLE contains photographs aligned to 112×112, one folder per person. WEIGHTS is the published file of
foamliu/MobileFaceNet. Runs go to WORK, and a later call reuses them. The figures of each fold that has ended are kept
in ``records/people/rates.json``, from which table and verdicts follow; with all folds recorded, neither PEOPLE nor
WEIGHTS is read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

import fedvisage as fv
from benchmarks.real.cells import current_commit
from benchmarks.real.recognition import prepare
from benchmarks.real.sign_flip import LEVEL, POWER, holm
from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest, read_json, read_tensors, write_atomically, write_tensors
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import without_part
from fedvisage.methods.models.face import means_of
from fedvisage.metrics.similarity import Faces, Features, label_features
from fedvisage.studies.study import slug
from fedvisage.tasks.finished_model import FinishedModel, open_model
from fedvisage.tasks.recognition.benchmarks import share_of

RECORDS = Path(__file__).parent / "records" / "people" / "rates.json"
NETWORK = "mobilefacenet-dw"
PARTS, SEEDS, FARS, REPLICATES = 20, (0, 1), (1e-3, 1e-4), 1000
TAIL = 0.05
"""Share of the highest impostor similarities that any draw of people needs for its thresholds."""

MOST = 20
"""Most photographs of a test person; one has 236, whose pairs would be most of the genuine ones."""

PUBLIC = ("13-20", "9-16", "1-8", "5-12", "9-16")
"""The parts of the public people of each fold. Fold k tests parts 4k + 1 to 4k + 4; the others are at the sites."""

FOLDS = range(len(PUBLIC))

START = "Start"
WITHOUT = {"contrast": {"weight": 0}, "customisation": {"weight": 0}}
"""FedFR's local training on public images alone."""

ROWS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedAvg and all public images": {"name": "fedfr", "hard_negatives": -1, **WITHOUT},
    "FedAvg and random public images": {"name": "fedfr", "random_negatives": True, **WITHOUT},
    "FedFR, hard negatives": {"name": "fedfr", **WITHOUT},
    "FedFR": {"name": "fedfr"},
}
"""The methods that are trained."""

PRIMARY = (
    ("FedAvg", START),
    ("FedFR", "FedAvg"),
    ("FedFR", "FedAvg and all public images"),
    ("FedFR, hard negatives", "FedAvg and random public images"),
)
SECONDARY = (
    ("FedFR", START),
    ("FedFR", "FedFR, hard negatives"),
    ("FedAvg and all public images", "FedAvg"),
    ("FedFR, hard negatives", "FedAvg"),
)


def roles(fold: int) -> tuple[str, str, dict[str, str]]:
    """Return the shares of the test people, of the public people and of the sites in a fold."""
    test, (first, last) = range(4 * fold + 1, 4 * fold + 5), map(int, PUBLIC[fold].split("-"))
    rest = [part for part in range(1, PARTS + 1) if part not in test and not first <= part <= last]
    sites = {f"site{place // 2 + 1}": f"part={rest[place]}-{rest[place + 1]}/{PARTS}" for place in range(0, 8, 2)}
    return f"part={test[0]}-{test[-1]}/{PARTS}", f"part={PUBLIC[fold]}/{PARTS}", sites


def embed(model: FinishedModel, view: View) -> Features:
    """Return the features of a view's images."""
    pieces = np.array_split(np.arange(len(view)), max(1, len(view) // 256))
    return np.concatenate([model.embed(view.batch(piece).images).numpy() for piece in pieces])


def share(people: Path, part: str, split: str | None = None) -> View:
    """Return the images of a share of the people."""
    return share_of(View.of(PreparedSet.open(people), split), without_part(f"{people} {part}")[1])


def start_with_centres(people: Path, start: Path, fold: int, out: Path) -> Path:
    """Write the published network with the mean features of a fold's public people as the public classes."""
    path = out / f"start-{fold}.safetensors"
    if not path.exists():
        public = share(people, roles(fold)[1], "train")
        features = torch.from_numpy(embed(open_model(start), public))
        write_tensors(path, {**read_tensors(start)[0], "centres.weight": means_of(features, public)})
    return path


def recipe_of(row: str, fold: int, seed: int, people: Path, start: Path) -> dict[str, Any]:
    """Return the recipe of a row at the sites of a fold."""
    _, public, sites = roles(fold)
    return {
        "method": {"network": {"name": NETWORK, "embedding": 128}, **ROWS[row]},
        "data": {
            "sites": {name: f"{people} {part}" for name, part in sites.items()},
            "public": f"{people} {public}",
        },
        "input": {"size": 112, "colour": "rgb"},
        "training": {
            "rounds": 3,
            "local": {"epochs": 1},
            "optimizer": {"name": "sgd", "lr": 0.001, "momentum": 0.9, "clip_norm": 5},
            "batch": 16,
            "augment": {"flip": 0.5},
            "start": str(start),
            "statistics": "frozen",
        },
        "runtime": {"threads": 1, "seed": seed, "precision": "fp32"},
    }


def plan_digest() -> str:
    """Return the digest of all recipes, of the people of all folds, and of what is evaluated."""
    recipes = [recipe_of(row, fold, seed, Path("P"), Path("S")) for row, fold, seed in product(ROWS, FOLDS, SEEDS)]
    plan = [recipes, [roles(fold) for fold in FOLDS], MOST, TAIL, FARS, REPLICATES]
    return hashlib.sha256(json.dumps(plan).encode()).hexdigest()[:16]


def train(row: str, fold: int, seed: int, people: Path, start: Path, out: Path) -> fv.Run:
    """Train a row at the sites of a fold, or return the run of an earlier call."""
    if ROWS[row]["name"] == "fedfr":
        start = start_with_centres(people, start, fold, out)
    recipe = recipe_of(row, fold, seed, people, start)
    return fv.run(recipe, out=out / "runs" / f"{slug(row)}-{fold}-{seed}", resume=True, quiet=True)


class Pairs:
    """The pairs of a fold's test people under one model: all genuine ones, and the most similar impostors."""

    def __init__(self, faces: Faces) -> None:
        """Compute the similarities of all pairs."""
        first, second = np.triu_indices(len(faces), 1)
        similarity = (faces.features @ faces.features.T)[first, second]
        people = faces.identity[first], faces.identity[second]
        same = people[0] == people[1]
        self.genuine, self.of_person = similarity[same], people[0][same]
        impostors = similarity[~same]
        order = np.argsort(-impostors, kind="stable")[: int(TAIL * len(impostors))]
        self.highest, self.first, self.second = impostors[order], *(each[~same][order] for each in people)
        self.photographs = np.bincount(faces.identity)

    def tar(self, far: float, draws: NDArray[np.int64]) -> float:
        """Return TAR at a FAR, given how often each person was drawn; copies of a person form no impostor pair."""
        photographs = draws * self.photographs
        impostors = (photographs.sum() ** 2 - (photographs**2).sum()) / 2
        # Pairs of equal similarity are accepted together, so the threshold lies above all equal to the first too many.
        accepted = np.cumsum(draws[self.first] * draws[self.second]) <= far * impostors
        if accepted.all():
            raise ValueError(f"the threshold at FAR {far} needs more than {len(accepted):,} impostor pairs")
        passes = self.genuine > self.highest[np.argmin(accepted)]
        return float(np.average(passes, weights=draws[self.of_person]))


def replicate(fold: int, pairs: Mapping[str, Sequence[Pairs]]) -> dict[str, list[list[float]]]:
    """Return TAR by row and FAR: of the test people, then of each draw of them, averaged over seeds."""
    people = len(next(iter(pairs.values()))[0].photographs)
    rng = numpy_rng(0, "draws of people", fold)
    draws = [np.ones(people, np.int64)]
    draws += [np.bincount(rng.integers(people, size=people), minlength=people) for _ in range(REPLICATES)]
    return {
        row: [[round(fmean(each.tar(far, draw) for each in seeds), 5) for draw in draws] for far in FARS]
        for row, seeds in pairs.items()
    }


def measure(fold: int, people: Path, start: Path, out: Path) -> dict[str, Any]:
    """Train all rows of a fold; return the TAR of their models."""
    everything = share(people, roles(fold)[0])
    test = everything.subset(
        np.sort(np.concatenate([np.flatnonzero(everything.subjects == name)[:MOST] for name in everything.identities]))
    )
    identity = np.unique(test.subjects, return_inverse=True)[1]

    def pairs_of(model: FinishedModel) -> Pairs:
        return Pairs(label_features(embed(model, test), identity))

    pairs = {START: [pairs_of(open_model(start))]}
    for row in ROWS:
        pairs[row] = [pairs_of(train(row, fold, seed, people, start, out).model) for seed in SEEDS]
    everybody = np.ones(len(everything.identities), np.int64)
    by_seed = {row: [[each.tar(far, everybody) for far in FARS] for each in seeds] for row, seeds in pairs.items()}
    return {
        "commit": current_commit(),
        "plan": plan_digest(),
        "data": PreparedSet.open(people).digest,
        "start": file_digest(start),
        "tar": replicate(fold, pairs),
        "by_seed": by_seed,
    }


def lines(folds: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table and the differences, with Holm's correction of the primary ones."""
    tar = {row: np.mean([fold["tar"][row] for fold in folds.values()], axis=0) for row in (START, *ROWS)}
    yield f"| row | {' | '.join(f'TAR@{far:g}' for far in FARS)} |\n|---|---:|---:|"
    for row, rates in tar.items():
        yield f"| {row} | {' | '.join(f'{100 * rate[0]:.2f}' for rate in rates)} |"

    def gaps(pair: tuple[str, str], column: int) -> NDArray[np.float64]:
        return np.asarray(100 * (tar[pair[0]][column] - tar[pair[1]][column]))

    def describe(pair: tuple[str, str], column: int) -> str:
        observed, *drawn = gaps(pair, column)
        low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
        return f"{pair[0]} - {pair[1]}, TAR@{FARS[column]:g}: {observed:+.2f} [{low:+.2f}, {high:+.2f}]"

    p = {pair: bootstrap_p(gaps(pair, 0)[1:]) for pair in PRIMARY}
    adjusted = holm({" - ".join(pair): value for pair, value in p.items()})
    yield f"\nprimary differences (Holm over {len(PRIMARY)}):"
    for pair, value in p.items():
        corrected = adjusted[" - ".join(pair)]
        by_seed = seed_gaps(folds, pair)
        word = "holds" if by_seed[0] > 0 else "holds the other way"
        if corrected > LEVEL or len({*np.sign(by_seed)}) > 1:
            word = describe_undecided(gaps(pair, 0)[1:])
        listed = ", ".join(f"{gap:+.2f}" for gap in by_seed)
        yield f"- {describe(pair, 0)}, by seed {listed}, p = {value:.4f}, Holm {corrected:.4f}: {word}"
    yield "\nsecondary differences, uncorrected, without verdict:"
    yield from (f"- {describe(pair, 0)}" for pair in SECONDARY)
    yield from (f"- {describe(pair, 1)}" for pair in (*PRIMARY, *SECONDARY))


def seed_gaps(folds: Mapping[str, Any], pair: tuple[str, str]) -> list[float]:
    """Return the difference in TAR at the first FAR with each seed, averaged over folds; the start has no seed."""
    first, second = (
        np.mean([[rates[0] for rates in fold["by_seed"][row]] for fold in folds.values()], axis=0) for row in pair
    )
    return [float(gap) for gap in 100 * (first - second)]


def describe_undecided(replicates: NDArray[np.float64]) -> str:
    """Return the verdict with the difference that a test at Holm's smallest level would find with 80 % power."""
    needed = (ndtri(1 - LEVEL / len(PRIMARY) / 2) + ndtri(POWER)) * replicates.std(ddof=1)
    return f"undecided (80 % power at 5 % / {len(PRIMARY)} needs {needed:.2f})"


def bootstrap_p(replicates: NDArray[np.float64]) -> float:
    """Return twice the smaller share of replicates on one side of zero, with the observed sample as one more."""
    tail = min((replicates <= 0).sum(), (replicates >= 0).sum())
    return float(min(1.0, 2 * (1 + tail) / (1 + len(replicates))))


def read_records() -> dict[str, Any]:
    """Return the recorded figures by fold; refuse those of another plan, and folds of different pictures or starts."""
    folds: dict[str, Any] = read_json(RECORDS) if RECORDS.exists() else {}
    if any(fold["plan"] != plan_digest() for fold in folds.values()):
        raise UserError(str(RECORDS), "has records of another plan; restore the plan, or delete them")
    if len({(fold["data"], fold["start"]) for fold in folds.values()}) > 1:
        raise UserError(str(RECORDS), "has folds of different photographs or starts; run them again")
    return folds


def main() -> int:
    """Run what is missing; print table and verdicts if all folds have ended."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real.people", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("people", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/real-people"))
    parser.add_argument("--folds", default=",".join(map(str, FOLDS)))
    options = parser.parse_args()
    try:
        if missing := [fold for fold in options.folds.split(",") if fold not in read_records()]:
            people, start = prepare(options.people, options.weights, NETWORK, options.out, heldout=0.1)
            for fold in missing:
                figures = measure(int(fold), people, start, options.out)
                RECORDS.parent.mkdir(parents=True, exist_ok=True)
                # Other processes may have written further folds.
                recorded = dict(sorted((read_records() | {fold: figures}).items()))
                # Replicates are many numbers, so the file has no line per number.
                write_atomically(RECORDS, json.dumps(recorded, separators=(",", ":")).encode())
        recorded = read_records()
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    if len(recorded) < len(FOLDS):
        print(f"no verdicts: {len(recorded)} of {len(FOLDS)} folds have ended")
    else:
        print(*lines(recorded), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
