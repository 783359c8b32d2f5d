"""Choose what to add to the published pair by leaving whole families out (decision 0059).

    python -m benchmarks.real.additions DIR [--out WORK]

``DIR`` holds the repositories of ``benchmarks.real``. Finished trainings in ``WORK`` are not repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.real import families
from benchmarks.real.cells import train_at
from benchmarks.real.families import MATCHED, PLAIN, SOURCES
from benchmarks.real.protocol import PLAN
from benchmarks.real.scores import CHECKOUT, Logits, auc, convert_starts, labels_of, score
from benchmarks.real.sites import SIZE, Cut
from benchmarks.real.verdicts import family_means
from fedvisage.base.files import read_arrays, write_arrays
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.faces.cropping import record_of
from fedvisage.tasks.finished_model import open_model

PAIR = {"v2": (Cut(2.7), 2.30), "v1se": (Cut(4.0), 3.79)}
"""The published networks, each with its cut and the divisor of its log-odds."""

WEIGHTS = (0.25, 0.5, 1.0, 2.0)
SEEDS = range(3)
MOST_LOST = 0.003
"""The largest loss of AUC in a family that a choice may have."""


@dataclass(frozen=True)
class Candidate:
    """A detector that the federation trains: changes to the recipe, and the sets that it trains on."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    sets: str = PLAIN


CANDIDATES = {
    "FedPAD": Candidate(),
    "FedPAD, augmented": Candidate({"training.augment.strong": True}),
    "FedPAD, rate 0.01": Candidate({"training.optimizer.lr": 0.01}),
    "GroupNorm": Candidate({"method.network.norm": "group"}),
    "FedWon": Candidate({"method.network.norm": "weight-standardised"}),
    "MixStyle": Candidate({"method.name": "mixstyle"}),
    "GA": Candidate({"method.name": "ga"}),
    "FedSR": Candidate({"method.name": "fedsr"}),
    "SSDG": Candidate({"method.name": "ssdg"}),
    "RGB and HSV": Candidate({"input.colour": "rgb+hsv"}),
    "matched resolutions": Candidate(sets=MATCHED),
    "Fused": Candidate({"method.name": "fused"}),
}

FAMILIES = PLAN.families
KINDS = [*dict.fromkeys(FAMILIES.values())]

Gains = Mapping[tuple[str, float], Mapping[str, float]]
"""Gain in AUC over the pair by family, for each candidate and weight."""


def prepare_pair(directory: Path, out: Path) -> None:
    """Write the sets of the pair's crops, OUT/CUT/SITE, of the pictures of ``families.prepare_sites``."""
    cuts = [cut for cut, _ in PAIR.values()]
    missing = [site for site in SOURCES if not all((out / cut.name / site).exists() for cut in cuts)]
    for site, faces in families.locate_faces(directory, missing, out.parent / "starts"):
        located = [(label, face) for label, entries in faces.items() for face in entries]
        for cut in cuts:
            (out / cut.name).mkdir(parents=True, exist_ok=True)
            record = record_of("face", margin=cut.margin, padding=cut.padding)
            with Writer(out / cut.name / site, name=site, size=SIZE, source=f"folder {site}", crop=record) as writer:
                for number, (label, entry) in enumerate(located):
                    name = f"{number:04d}"
                    writer.add(
                        cut.cut(entry.read(), entry.face)[np.newaxis],
                        label=[label],
                        species=["bonafide" if label else "attack"],
                        subject=[name],
                        video=[name],
                        frame=[0],
                        split=["test"],
                        item=[name],
                    )


def score_pair(directory: Path, sets: Path, out: Path) -> dict[str, Logits]:
    """Return the pair's scores of all pictures of each site, in the order of its plain set."""
    path = out / "pair.safetensors"
    if not path.exists():
        starts = convert_starts(directory, out / "starts")
        models = {variant: open_model(starts[variant]) for variant in PAIR}
        scores = dict[str, Logits]()
        for site in SOURCES:
            parts = []
            for variant, (cut, divisor) in PAIR.items():
                view = View.of(PreparedSet.open(sets / cut.name / site))
                if view.labels.tolist() != labels_of(sets / PLAIN, site).tolist():
                    raise ValueError(f"{site}: the pair's crops show other pictures than the plain set")
                parts.append(score(models[variant], view) / divisor)
            scores[site] = np.sum(parts, axis=0)
        write_arrays(path, scores)
    return dict(read_arrays(path)[0])


def score_branch(name: str, family: str, seed: int, sets: Path, out: Path) -> dict[str, Logits]:
    """Train a candidate on the sites of the other families; return its scores at the family's sites, over σ."""
    candidate = CANDIDATES[name]
    sites = [site for site, source in SOURCES.items() if source.family != family]
    targets = [site for site, source in SOURCES.items() if source.family == family]
    paths = {site: sets / candidate.sets / site for site in sites}
    run = train_at(paths, sets / candidate.sets / targets[0], seed, {**PLAN.changes, **candidate.changes}, out)
    kept = out / "branch.safetensors"
    if not kept.exists():
        views = [View.of(PreparedSet.open(path), "heldout") for path in paths.values()]
        sigma = np.concatenate([score(run.model, view) for view in views]).std()
        plain = {site: View.of(PreparedSet.open(sets / PLAIN / site)) for site in targets}
        write_arrays(kept, {site: score(run.model, view) / sigma for site, view in plain.items()})
    return dict(read_arrays(kept)[0])


def measure(directory: Path, out: Path) -> tuple[Gains, dict[str, float], dict[str, Mapping[str, float]]]:
    """Return all gains by family, the pair's AUC by site, and each branch's own AUC by family."""
    sets = out / "protocol"
    families.prepare_sites(directory, sets)
    prepare_pair(directory, sets)
    pair = score_pair(directory, sets, out)
    labels = {site: labels_of(sets / PLAIN, site) for site in SOURCES}
    start = {site: auc(pair[site], labels[site]) for site in SOURCES}
    gains, alone = dict[tuple[str, float], Mapping[str, float]](), dict[str, Mapping[str, float]]()
    for name in CANDIDATES:
        branch: dict[str, list[Logits]] = {site: [] for site in SOURCES}
        for family, seed in product(KINDS, SEEDS):
            run = out / "additions" / name.replace(", ", "-").replace(" ", "-") / f"without-{family}-seed{seed}"
            for site, values in score_branch(name, family, seed, sets, run).items():
                branch[site].append(values)
            print(f"{name}, without {family}, seed {seed}", flush=True)
        alone[name] = family_means(
            {site: fmean(auc(scores, labels[site]) for scores in seeds) for site, seeds in branch.items()}, FAMILIES
        )
        for weight in WEIGHTS:
            sums = {
                site: fmean(auc(pair[site] + weight * scores, labels[site]) for scores in seeds) - start[site]
                for site, seeds in branch.items()
            }
            gains[name, weight] = family_means(sums, FAMILIES)
    return gains, start, alone


def choose(gains: Gains, among: Iterable[str]) -> tuple[str, float] | None:
    """Return the candidate and weight of the largest mean gain, if no family loses more than `MOST_LOST`."""
    among = [*among]
    means = {
        choice: fmean(by_family[family] for family in among)
        for choice, by_family in gains.items()
        if min(by_family[family] for family in among) >= -MOST_LOST
    }
    best = max(means, key=lambda choice: means[choice], default=None)
    return None if best is None or means[best] <= 0 else best


def lines(gains: Gains, start: Mapping[str, float], alone: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the table, the choice, and its nested estimate."""
    yield f"| added | w | gain | {' | '.join(KINDS)} |"
    yield f"|---|{'---:|' * (2 + len(KINDS))}"
    by_family = family_means(start, FAMILIES)
    yield f"| the pair's AUC | | {fmean(by_family.values()):.3f} | {row(by_family, '.3f')} |"
    for name, values in alone.items():
        yield f"| {name} alone, AUC | | {fmean(values.values()):.3f} | {row(values, '.3f')} |"
    for (name, weight), values in gains.items():
        yield f"| {name} | {weight:g} | {fmean(values.values()):+.3f} | {row(values, '+.3f')} |"
    yield ""
    yield f"choice over all families: {choose(gains, KINDS)}"
    nested = dict[str, float]()
    for family in KINDS:
        choice = choose(gains, [other for other in KINDS if other != family])
        nested[family] = 0.0 if choice is None else gains[choice][family]
        yield f"chosen without {family}: {choice}, gain there {nested[family]:+.3f}"
    yield f"nested estimate of the gain at an unseen family: {fmean(nested.values()):+.3f}"


def row(values: Mapping[str, float], form: str) -> str:
    """Return the cells of a row."""
    return " | ".join(f"{values[family]:{form}}" for family in KINDS)


def main() -> int:
    """Print table and choice."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real.additions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/real"))
    options = parser.parse_args()
    missing = families.missing_folders(options.directory)
    missing += [] if (options.directory / CHECKOUT).is_dir() else [CHECKOUT]
    if missing:
        print(f"skipped: {options.directory} has no {missing[0]}", file=sys.stderr)
        return 1
    print(*lines(*measure(options.directory, options.out)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
